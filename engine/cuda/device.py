"""Finds a GPU that the engine can use, or the reason why there is none, for a worker's start and `baton doctor`.

It queries the driver first, without torch: a host without a GPU must not spend seconds on importing torch."""

import ctypes
import importlib.util
from dataclasses import dataclass
from functools import cache

LEAST_CAPABILITY = (8, 0)  # bf16 matrix instructions and cp.async
BODIES = ("eager", "graph")  # ways to run decode's steps: launch by launch, or as CUDA graphs. Both yield the same bits
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: str  # the newest CUDA that the driver knows, such as 13.0

    @property
    def exact_path(self) -> str:
        """The product path of our own kernels on this device."""
        return f"cuda-sm{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True, slots=True)
class Found:
    gpu: Gpu | None
    why_not: str  # empty when `gpu` can be used


@cache
def find_gpu() -> Found:
    """Device 0, as CUDA_VISIBLE_DEVICES orders them: one worker serves from one device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Found(None, "no NVIDIA driver: libcuda.so.1 cannot be loaded")
    count, version = ctypes.c_int(), ctypes.c_int()
    if (code := driver.cuInit(0)) or (code := driver.cuDeviceGetCount(ctypes.byref(count))):
        return Found(None, f"the NVIDIA driver does not start (error {code}): see nvidia-smi")
    if count.value == 0:
        return Found(None, "the NVIDIA driver shows no device: see nvidia-smi and CUDA_VISIBLE_DEVICES")
    driver.cuDriverGetVersion(ctypes.byref(version))
    gpu = _describe(driver, f"{version.value // 1000}.{version.value % 1000 // 10}")
    if gpu.capability < LEAST_CAPABILITY:
        major, minor = gpu.capability
        return Found(gpu, f"{gpu.name} has compute capability {major}.{minor}; the kernels need 8.0 or newer")
    remedies = (("torch", "install torch with CUDA"), ("triton", "pip install '.[gpu]' in a checkout of Baton"))
    for module, remedy in remedies:
        if importlib.util.find_spec(module) is None:
            return Found(gpu, f"{gpu.name} is here, but the Python module {module} is missing: {remedy}")
    import torch  # only now: it takes seconds

    if not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        return Found(gpu, f"{gpu.name} is here, but this torch ({torch.__version__}, {built}) cannot use it")
    return Found(gpu, "")


def _describe(driver: ctypes.CDLL, version: str) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), memory.value, version)

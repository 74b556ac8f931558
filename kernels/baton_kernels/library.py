"""Finds and loads the native library; every other file of this package calls it through `load` and `check`.

Importing never compiles and never fails: where the library is missing, `available()` says why and what to do, and the
first kernel call raises the same words as a KernelError."""

import ctypes
import hashlib
from ctypes import c_char_p, c_double, c_float, c_int, c_int64, c_long, c_uint64, c_void_p
from functools import cache
from pathlib import Path

KERNEL_VERSION = 3  # raised whenever a recipe changes the bits it gives; part of the numerics class
LAYOUT_VERSION = 4  # raised whenever a packed matrix is laid out otherwise; packed files of another one are made anew

BODIES = ("plain", "avx2", "avx512", "avx512bf16", "amx", "avx512vnni", "tiles", "neon")  # in the order of dispatch.h
BODIES_OF_ARM = ("plain", "neon")

SEAL = b"\nbaton-kernels seal "  # build.py writes it and a digest behind the library's bytes

_FILE = Path(__file__).resolve().parent / "_baton_kernels.so"
# Result and arguments of each C function: i int, l long, q 64 bits signed, Q unsigned, f float, d double, p pointer,
# m a message or null, - nothing. The order is api.h's.
SIGNATURES = {
    "version": "i",
    "sources": "m",
    "supported": "i",
    "built": "ii",
    "missing": "i",
    "usable": "ii",
    "knows": "iii",
    "chosen": "ii",
    "choose": "ii",
    "forced": "i",
    "threads": "i",
    "set_threads": "-ip",
    "describe": "mp",
    "pack": "mpipp",
    "pack_integers": "m" + "ppppppp",
    "embed": "mpplfp",
    "product": "mpplppp",
    "gated": "mpplppi",
    "activated": "mpplppi",
    "experts": "mpplppppl",
    "route": "mpllliifpp",
    "combine": "mplpp" + "lllpp",
    "expert_bytes": "q",
    "add_deltas": "mplplpl",
    "between": "-ppllii",
    "rmsnorm": "mppllfp",
    "rmsnorm_within": "mpplllf",
    "share_latent": "mppllllf",
    "layernorm": "mppp" + "llfp",
    "add": "mppp" + "llff",
    "cap": "mpllf",
    "clip": "mpllf",
    "rotate_write": "m" + "iipllll" + "pplppp" + "lpqpppf",
    "attention": "m" + "iiippqqq" + "plppp" + "lllllll" + "ffpp",
    "sample": "m" + "pll" + "ppppppp" + "ppl" + "pl" + "pppp",
    "sample_adjusted": "m" + "pll" + "ppppppp" + "ppl" + "pl" + "pppp" + "pplp",
    "log_exp": "-pppl",
    "scatter": "-pplqpp",
    "checksum": "Qqqq",
    "copy": "-pqqq",
    "limit": "dipl",
    "layer": "mppqpq",
    "finish": "mppp",
    "propose": "mppppppplpp",
    "busy_seconds": "d",
}
_TYPES = {
    "i": c_int,
    "l": c_long,
    "q": c_int64,
    "Q": c_uint64,
    "f": c_float,
    "d": c_double,
    "p": c_void_p,
    "m": c_char_p,
    "-": None,
}


class KernelError(Exception):
    """A caller passed wrong arguments, a kernel is missing, or it gave wrong bits. The message names the argument and
    what to do."""


class Library:
    """The functions of the C surface with their types declared."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        for name, signature in SIGNATURES.items():
            function = getattr(loaded, f"baton_{name}")
            function.restype, *function.argtypes = (_TYPES[letter] for letter in signature)
            setattr(self, name, function)

    def __getattr__(self, name: str) -> "ctypes._FuncPointer":  # Python calls it for names that __init__ did not set
        raise AttributeError(name)


@cache
def load() -> Library:
    """Returns the library, or raises a KernelError that says why it cannot."""
    if not _FILE.exists():
        raise KernelError(
            "the CPU kernels are not built: install g++ 11 or newer and run `python -m baton_kernels.build`"
        )
    if not _is_sealed(_FILE.read_bytes()):
        raise KernelError(
            "the CPU kernels were altered after they were built, or were not built by Baton: "
            f"{_FILE.name} does not fit the digest at its end; run `python -m baton_kernels.build`"
        )
    try:
        library = Library(_FILE)
    except (OSError, AttributeError) as error:
        raise KernelError(f"the CPU kernels do not load ({error}): run `python -m baton_kernels.build`") from error
    if library.version() != KERNEL_VERSION:
        raise KernelError(
            "the CPU kernels are of another version than the package: run `python -m baton_kernels.build`"
        )
    if not library.supported():
        raise KernelError("this processor lacks AVX2 and FMA (x86-64-v3), which the CPU kernels need")
    if (missing := library.missing()) >= 0:
        raise KernelError(
            f"the CPU kernels were built for another processor, without this one's body {BODIES[missing]!r}: "
            "install g++ 11 or newer and run `python -m baton_kernels.build`"
        )
    return library


def _is_sealed(data: bytes) -> bool:
    """Whether a library has the bytes that its build wrote. Self-tests miss some errors, a seal misses no changed
    byte."""
    before, _, digest = data.rpartition(SEAL)
    return digest == hashlib.blake2b(before, digest_size=16).hexdigest().encode() + b"\n"


def sources() -> str:
    """Digest of the sources and flags that the library was compiled from: equal on all machines that compiled the same
    sources, with whatever compiler and for whatever bodies."""
    digest: bytes = load().sources()
    return digest.decode()


def file_digest() -> str:
    """Digest of the library's own bytes, which differ between compilers."""
    return hashlib.blake2b(_FILE.read_bytes(), digest_size=16).hexdigest()


def available() -> str:
    """Returns the empty string if the kernels can run here, else the reason and what to do."""
    try:
        load()
    except KernelError as error:
        return str(error)
    return ""


def check(refused: bytes | None) -> None:
    """Raises KernelError with the message of a C function that refused its arguments."""
    if refused is not None:
        raise KernelError(refused.decode())

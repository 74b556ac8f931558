"""Fuzz target of model files: damaged GGUF files, and quantized folders whose parts do not belong together.

Whatever a file says, opening it and reading all of its matrices either works or raises ModelError, which names file and
field. A case is one file in memory-backed storage."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.gguf_folder import folder_of_gguf
from engine.formats.stored import Stored, StoredMatrix, WidenedMatrix
from engine.integers.numbers import dequantized
from tests.fuzz.cases import ODD_INTS, chance, mutated
from tests.unit.engine.gguf_files import gguf_bytes, mixed, of_folder, wide

N, K, GROUP = 16, 128, 32
MODULE = "model.layers.0.mlp.up_proj"
FIRST_CHECKS = ("magic", "version", "is not JSON", "says it is")  # a file that ends there was hardly read
Parts = dict[str, tuple[str, NDArray[Any]]]  # dtype of the header, and the numbers
_DTYPES = ("F32", "F16", "BF16", "F8_E4M3", "I8", "U8", "I32", "I64", "F8_E5M2", "")
_SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (N,),
    (K,),
    (N, 1),
    (N, K),
    (K, N),
    (N, 3),
    (1, 1, 1),
    (2, N, K),
)


def model_files(rng: Random) -> bool:
    """A case reaches deep states when it gets behind the begin of the file."""
    place = _place()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        (_gguf if chance(rng, 0.5) else _folder)(rng, place)
    except ModelError as error:
        return not any(word in str(error) for word in FIRST_CHECKS)
    return True


def _gguf(rng: Random, place: Path) -> None:
    whole, header = _whole()
    if chance(rng, 0.7):  # what follows the header are numbers, of which all values are right
        data = mutated(rng, whole[:header]) + whole[header:]
    else:
        data = mutated(rng, whole)
    file = place / "model.gguf"
    file.write_bytes(data)
    _read_all(Checkpoint(folder_of_gguf(file, place / "cache")))


def _folder(rng: Random, place: Path) -> None:
    settings, parts = rng.choice((_gptq, _awq, _packed, _int8, _fp8, _int8_of_bitsandbytes))(rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        _change(rng, settings, parts)
    header, body = {}, b""
    for name, (dtype, values) in parts.items():
        header[f"{MODULE}.{name}"] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + values.nbytes],
        }
        body += np.ascontiguousarray(values).tobytes()
    raw = json.dumps(header).encode()
    if chance(rng, 0.2):
        raw = mutated(rng, raw)
    (place / "config.json").write_text(json.dumps({"quantization_config": settings}))
    (place / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + body)
    _read_all(Checkpoint(place))


def _change(rng: Random, settings: dict[str, Any], parts: Parts) -> None:
    """Something that does not belong to the rest."""
    name = rng.choice([*parts, "weight", "g_idx", "weight_scale", "bias"])
    dtype, values = parts.get(name, ("F16", np.zeros((N,), np.float16)))
    match rng.randrange(6):
        case 0:
            parts.pop(name, None)
        case 1:
            parts[name] = rng.choice(_DTYPES), values
        case 2:
            parts[name] = dtype, np.zeros(rng.choice(_SHAPES), values.dtype)
        case 3 if values.size:
            number = values.copy()
            number.reshape(-1).view(np.uint8)[rng.randrange(number.nbytes)] ^= 1 << rng.randrange(8)
            parts[name] = dtype, number
        case 4:
            field = rng.choice([*settings, "bits", "group_size", "kv_cache_scheme", "sparsity_config"])
            settings[field] = rng.choice((None, "", "x", -1, 3, 4, 8, True, [], {}, [None], {"x": {}}, *ODD_INTS))
        case _:
            parts[rng.choice(("weight_zero_point", "qzeros", "weight_g_idx"))] = dtype, values


def _words(rng: Random, *shape: int) -> tuple[str, NDArray[Any]]:
    raw = rng.randbytes(4 * int(np.prod(shape)))
    return "I32", np.frombuffer(raw, np.int32).reshape(shape)


def _bytes(rng: Random, dtype: str, *shape: int) -> tuple[str, NDArray[Any]]:
    return dtype, np.frombuffer(rng.randbytes(int(np.prod(shape))), np.int8).reshape(shape)


def _numbers(rng: Random, dtype: str, *shape: int) -> tuple[str, NDArray[Any]]:
    kind = {"F32": np.float32, "F16": np.float16}[dtype]
    return dtype, np.full(shape, rng.choice((0.01, 0.5, 1.0)), kind)


def _gptq(rng: Random) -> tuple[dict[str, Any], Parts]:
    owner = [place // GROUP for place in range(K)]
    if chance(rng, 0.5):
        rng.shuffle(owner)
    parts = {
        "qweight": _words(rng, K // 8, N),
        "qzeros": _words(rng, K // GROUP, N // 8),
        "scales": _numbers(rng, "F16", K // GROUP, N),
        "g_idx": ("I32", np.array(owner, np.int32)),
    }
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "checkpoint_format": "gptq"}
    return settings, parts


def _awq(rng: Random) -> tuple[dict[str, Any], Parts]:
    parts = {
        "qweight": _words(rng, K, N // 8),
        "qzeros": _words(rng, K // GROUP, N // 8),
        "scales": _numbers(rng, "F16", K // GROUP, N),
    }
    return {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, parts


def _packed(rng: Random) -> tuple[dict[str, Any], Parts]:
    parts = {
        "weight_packed": _words(rng, N, K // 8),
        "weight_scale": _numbers(rng, "F16", N, K // GROUP),
        "weight_shape": ("I64", np.array([N, K], np.int64)),
        "weight_zero_point": _words(rng, N // 8, K // GROUP),
    }
    return {"quant_method": "compressed-tensors", "format": "pack-quantized"}, parts


def _int8(rng: Random) -> tuple[dict[str, Any], Parts]:
    parts = {"weight": _bytes(rng, "I8", N, K), "weight_scale": _numbers(rng, "F32", N, 1)}
    return {"quant_method": "compressed-tensors", "format": "int-quantized"}, parts


def _fp8(rng: Random) -> tuple[dict[str, Any], Parts]:
    parts = {"weight": _bytes(rng, "F8_E4M3", N, K), "weight_scale_inv": _numbers(rng, "F32", 1, 1)}
    return {"quant_method": "fp8", "weight_block_size": [128, 128]}, parts


def _int8_of_bitsandbytes(rng: Random) -> tuple[dict[str, Any], Parts]:
    parts = {"weight": _bytes(rng, "I8", N, K), "SCB": _numbers(rng, "F32", N)}
    return {"quant_method": "bitsandbytes", "load_in_8bit": True}, parts


def _read_all(checkpoint: Checkpoint) -> None:
    with np.errstate(all="ignore"):  # a model whose scales are not finite is refused when it is packed
        for stored in checkpoint.tensors.values():
            _read(stored)


def _read(stored: Stored) -> None:
    if isinstance(stored, StoredMatrix):
        dequantized(stored.read())
    elif isinstance(stored, WidenedMatrix):
        stored.rows(0, stored.shape[0])


@cache
def _whole() -> tuple[bytes, int]:
    """A GGUF file, and where its last tensor is named."""
    folder = Path(tempfile.mkdtemp())
    try:
        data = gguf_bytes(*of_folder(wide(folder / "model"), kinds=mixed, arch="llama", heads=4, kv_heads=2))
    finally:
        shutil.rmtree(folder)
    return data, data.rindex(b".weight") + 64


@cache
def _place() -> Path:
    """A folder in memory, for this process."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "model"

"""Quantizes a model into a folder of compressed-tensors, one layer at a time.

Each layer is a file of its own, written before the next layer is read, so that memory holds one layer, and a run that
was killed goes on behind the last file. The folder appears under its name when it is complete."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from baton_kernels import OWN, Integers, MatrixForm
from engine.formats.checkpoint import Checkpoint, read_file
from engine.formats.errors import ModelError
from engine.formats.stored import widened
from engine.formats.writing import write_safetensors, write_tensors
from engine.integers.forms import RECIPE, target_form
from engine.integers.numbers import dequantized
from engine.integers.rounding import rounded
from engine.model.config import read_config
from engine.model.layout import as_stored, fused_tensors, read_tensors
from engine.model.weights import hash_model
from engine.quantization.compensated import compensated
from engine.quantization.plain_layer import Floats, PlainLayers, refuse_unfollowed
from engine.quantization.reading import EMBEDDING, HEAD, SourceModel
from engine.quantization.saving import parts_of, settings_of
from engine.quantization.turning import ModelTurn

Windows = NDArray[np.int32]  # [windows, tokens]: text that the model reads while it is quantized
_PARTIAL, _ABOUT = ".partial", "about.json"
_COPIED = ("*.json", "*.jinja", "*.model", "LICENSE*", "additional_chat_templates")
_OWN = ("config.json", "model.safetensors.index.json")
_FUSED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o", "gate_proj": "gate_up", "up_proj": "gate_up",
    "down_proj": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerChange:
    layer: int
    matrix: str  # the one that rounding changed most, such as mlp.down_proj
    share: float  # size of the change as a share of its weights' size; sizes are roots of mean squares


def quantize(
    source: Path, out: Path, target: str, cache: Path, windows: Windows, kv: str = OWN
) -> Iterator[LayerChange]:
    """Writes the folder `out`, whose pages will hold keys and values as `kv` says; yields each layer when it is
    written, or was written by an earlier run."""
    config, checkpoint = read_config(source), Checkpoint(source)
    config = as_stored(config, checkpoint)
    refuse_unfollowed(source, config)
    tensors = read_tensors(config, checkpoint)
    cache.mkdir(parents=True, exist_ok=True)
    about = {
        "model": hash_model(source, config, tensors, cache),
        "recipe": f"{target}.{RECIPE}",
        "text": blake3(windows.tobytes()).hexdigest(),
    }
    turn = ModelTurn(config.hidden, config.head_dim) if target == "int4" else None
    work = _Work(SourceModel(config, tensors, turn), out, target, windows, about)
    for layer in range(config.layers):
        yield work.change_of(layer) or work.quantize(layer)
    work.finish(source, kv)


class _Work:
    """A folder that is being written."""

    def __init__(self, model: SourceModel, out: Path, target: str, windows: Windows, about: dict[str, str]) -> None:
        self._model, self._out, self._target, self._windows = model, out, target, windows
        self._partial = out.with_name(out.name + _PARTIAL)
        self._layers = PlainLayers.of(model.config, windows.shape[1])
        self._hidden: tuple[int, Floats] | None = None  # the layer that reads it, and [windows, tokens, hidden]
        if out.exists():
            raise ModelError(out, "folder", "exists already", "Name another one, or remove it.")
        known = self._partial / _ABOUT
        if not known.is_file() or json.loads(known.read_text()) != about:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
            self._write_edges()
            known.write_text(json.dumps(about))

    def change_of(self, layer: int) -> LayerChange | None:
        """The change of a layer that is written already; None: it is not."""
        note = self._partial / f"{layer}.note"
        return LayerChange(**json.loads(note.read_text())) if note.is_file() else None

    def quantize(self, layer: int) -> LayerChange:
        numbers = self._model.layer(layer)
        moments = self._moments(layer, numbers) if self._target == "int4" else {}
        tensors, change, after = dict[str, tuple[str, NDArray[Any]]](), LayerChange(layer, "", -1.0), dict(numbers)
        for name, weights in numbers.items():
            module = name.removesuffix(".weight")
            if weights.ndim == 1:
                tensors[f"model.layers.{layer}.{name}"] = "fp32", weights
                continue
            integers = self._rounded(module, weights, moments)
            after[name] = dequantized(integers)
            share = _size(after[name] - weights) / max(_size(weights), 1e-30)
            change = max(change, LayerChange(layer, module, share), key=lambda each: each.share)
            for part, values in parts_of(integers).items():
                tensors[f"model.layers.{layer}.{module}.{part}"] = values
        write_tensors(self._partial / self._file(layer + 1), tensors)
        if moments:
            self._pass_on(layer, after)
        _write_last(self._partial / f"{layer}.note", json.dumps(asdict(change)))
        return change

    def finish(self, source: Path, kv: str) -> None:
        names = [self._file(number) for number in range(self._model.config.layers + 1)]
        total, where = 0, dict[str, str]()
        for name in names:
            tensors = read_file(self._partial / name)
            where |= dict.fromkeys(tensors, name)
            total += sum(tensor.values.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (self._partial / "model.safetensors.index.json").write_text(json.dumps(index))
        forms = [(f"x.{name}", self._form(f"x.{name}", k)) for name, k in self._modules()]
        config = json.loads((source / "config.json").read_text())
        for known in ("torch_dtype", "quantization_config", "dtype"):
            config.pop(known, None)
        config |= {"dtype": "bfloat16", "tie_word_embeddings": HEAD not in where}
        config["quantization_config"] = settings_of(forms, ["lm_head"], kv)
        (self._partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for pattern in _COPIED:
            for file in source.glob(pattern):
                if file.name not in _OWN:
                    (shutil.copytree if file.is_dir() else shutil.copy)(file, self._partial / file.name)
        for note in (*self._partial.glob("*.note"), *self._partial.glob("*.npy"), self._partial / _ABOUT):
            note.unlink(missing_ok=True)
        self._partial.rename(self._out)

    def _modules(self) -> list[tuple[str, int]]:
        """The last part of each matrix's name, and its inputs."""
        config = self._model.config
        last = f"model.layers.{config.layers - 1}."
        sources = [source for fused in fused_tensors(config) for source in fused.sources]
        return [
            (source.name.removesuffix(".weight").rpartition(".")[2], source.columns)
            for source in sources
            if source.columns and source.name.startswith(last)
        ]

    def _rounded(self, module: str, weights: Floats, moments: dict[str, Floats]) -> Integers:
        form = self._form(module, weights.shape[1])
        if form.scheme == "int4":
            return compensated(form, weights, moments[_fused(module)])
        return rounded(form, len(weights), weights.shape[1], lambda first, last: weights[first:last])

    def _form(self, module: str, k: int) -> MatrixForm:
        return target_form(self._target, f"x.{_fused(module)}", k)

    def _moments(self, layer: int, numbers: dict[str, Floats]) -> dict[str, Floats]:
        sums = dict[str, Floats]()

        def heard(name: str, inputs: Floats) -> None:
            sums[name] = sums[name] + inputs.T @ inputs if name in sums else inputs.T @ inputs

        for window in self._hidden_before(layer):
            self._layers.run(numbers, window, heard, self._model.config.window(layer))
        return sums

    def _pass_on(self, layer: int, numbers: dict[str, Floats]) -> None:
        """Keep the input of the next layer, computed with the rounded weights."""
        seen = self._model.config.window(layer)
        out = np.stack([self._layers.run(numbers, window, _unheard, seen) for window in self._hidden_before(layer)])
        self._hidden = layer + 1, out
        aside = self._partial / "hidden.tmp.npy"
        np.save(aside, out)
        aside.rename(self._partial / f"{layer + 1}.npy")
        (self._partial / f"{layer}.npy").unlink(missing_ok=True)

    def _hidden_before(self, layer: int) -> Floats:
        if self._hidden is None or self._hidden[0] != layer:
            kept = self._partial / f"{layer}.npy"
            self._hidden = layer, np.load(kept) if layer else self._embedded()
        return self._hidden[1]

    def _embedded(self) -> Floats:
        embedding = read_file(self._partial / self._file(0))[EMBEDDING]
        return widened(replace(embedding, values=embedding.values[self._windows]))

    def _write_edges(self) -> None:
        def fill(name: str, shape: tuple[int, ...], first: int, count: int) -> Floats:
            width = shape[1] if len(shape) == 2 else 1
            top = first // width
            numbers = self._model.edge(name, top, -(-(first + count) // width))
            return numbers.reshape(-1)[first - top * width :][:count]

        write_safetensors(self._partial / self._file(0), "bf16", self._model.edges(), fill)

    def _file(self, number: int) -> str:
        return f"model-{number + 1:05}-of-{self._model.config.layers + 1:05}.safetensors"


def _fused(module: str) -> str:
    """The fused tensor that a matrix belongs to, as engine/model/layout.py calls it."""
    return _FUSED[module.rpartition(".")[2]]


def _size(values: Floats) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float32), dtype=np.float64)))


def _write_last(path: Path, text: str) -> None:
    """Writes a file that appears complete or not at all."""
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    aside.rename(path)


def _unheard(name: str, inputs: Floats) -> None:
    pass

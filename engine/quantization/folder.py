"""Quantizes a model into a folder of compressed-tensors, one layer at a time.

Each layer is a file of its own, written before the next layer is read, so that memory holds one layer, and a run that
was killed goes on behind the last file. The folder appears under its name when it is complete."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from baton_kernels import OWN, Integers, MatrixForm
from engine.formats.checkpoint import Checkpoint, read_file
from engine.formats.stored import Stored, widened
from engine.formats.writing import write_safetensors, write_tensors
from engine.integers.forms import RECIPE, target_form
from engine.integers.numbers import dequantized
from engine.integers.rounding import rounded
from engine.model.config import ModelConfig, read_config
from engine.model.layout import as_stored, read_tensors
from engine.model.model_hash import hash_model
from engine.quantization.compensated import compensated
from engine.quantization.inputs import LayerInputs
from engine.quantization.partial import PartialFolder, partial_folder, write_last
from engine.quantization.plain_layer import Floats, PlainLayers, refuse_unfollowed
from engine.quantization.reading import EMBEDDING, HEAD, SourceModel
from engine.quantization.refusals import readable_disk, refuse_rounded, refuse_unwritable
from engine.quantization.saving import Parts, parts_of, settings_of
from engine.quantization.tensors import LayerTensor, layer_tensors
from engine.quantization.turning import ModelTurn

Windows = NDArray[np.int32]  # [windows, tokens]: text that the model reads while it is quantized
_COPIED = ("*.json", "*.jinja", "*.model", "LICENSE*", "additional_chat_templates")
_OWN = ("config.json", "model.safetensors.index.json")


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
    config, tensors = readable(source, out)
    with readable_disk(out):
        cache.mkdir(parents=True, exist_ok=True)
        about = {
            "model": hash_model(source, config, tensors, cache),
            "recipe": f"{target}.{RECIPE}",
            "text": blake3(windows.tobytes()).hexdigest(),
        }
    plain = not config.beyond_llama()  # other layers have norms and functions that a turn would change
    turn = ModelTurn(config.hidden, config.head_dim) if target == "int4" and plain else None
    with readable_disk(out), partial_folder(out, about) as folder:
        work = _Work(SourceModel(config, tensors, turn), folder, target, windows)
        for layer in range(config.layers):
            yield work.change_of(layer) or work.quantize(layer)
        work.finish(source, kv)


def readable(source: Path, out: Path) -> tuple[ModelConfig, dict[str, Stored]]:
    """The model that is rounded. Raises ModelError where it cannot be, or where `out` cannot be written."""
    refuse_unwritable(out)
    config, checkpoint = read_config(source), Checkpoint(source)
    config = as_stored(config, checkpoint)
    refuse_unfollowed(source, config)
    tensors = read_tensors(config, checkpoint)
    refuse_rounded(source, config, tensors)
    return config, tensors


class _Work:
    """A folder that is being written."""

    def __init__(self, model: SourceModel, folder: PartialFolder, target: str, windows: Windows) -> None:
        self._model, self._folder, self._target, self._windows = model, folder, target, windows
        self._partial = folder.path
        self._layers = PlainLayers.of(model.config, windows.shape[1])
        self._hidden: tuple[int, Floats] | None = None  # the layer that reads it, and [windows, tokens, hidden]
        if not folder.goes_on:
            folder.begin()
            self._write_edges()
            folder.begun()

    def change_of(self, layer: int) -> LayerChange | None:
        """The change of a layer that is written already; None: it is not."""
        note = self._partial / f"{layer}.note"
        return LayerChange(**json.loads(note.read_text())) if note.is_file() else None

    def quantize(self, layer: int) -> LayerChange:
        follows = self._target == "int4"
        numbers = self._model.layer(layer) if follows else {}
        inputs = self._inputs(layer, numbers) if follows else LayerInputs(())
        tensors, change = Parts(), LayerChange(layer, "", -1.0)
        for each in layer_tensors(self._model.config, layer):
            place = f"model.layers.{layer}.{each.module}"
            weights = numbers[each.name] if follows else self._model.tensor(layer, each.name)
            if not each.rounded:
                tensors[f"model.layers.{layer}.{each.name}"] = "fp32", weights
                continue
            integers = self._rounded(each, weights, inputs)
            after = dequantized(integers)
            if follows:
                numbers[each.name] = after
            share = _size(after - weights) / max(_size(weights), 1e-30)
            change = max(change, LayerChange(layer, each.module, share), key=lambda one: one.share)
            tensors |= {f"{place}.{part}": values for part, values in parts_of(integers).items()}
        write_tensors(self._partial / self._file(layer + 1), tensors)
        if follows:
            self._pass_on(layer, numbers)
        write_last(self._partial / f"{layer}.note", json.dumps(asdict(change)))
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
        every = [
            each for layer in range(self._model.config.layers) for each in layer_tensors(self._model.config, layer)
        ]
        forms = {each.pattern: self._form(each) for each in every if each.rounded}
        kept = ["lm_head", *sorted({f"re:.*{each.pattern}$" for each in every if each.exact})]
        config = json.loads((source / "config.json").read_text())
        for known in ("torch_dtype", "quantization_config", "dtype"):
            config.pop(known, None)
        config |= {"dtype": "bfloat16", "tie_word_embeddings": HEAD not in where}
        config["quantization_config"] = settings_of(forms, kept, kv)
        (self._partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for pattern in _COPIED:
            for file in source.glob(pattern):
                if file.name not in _OWN:
                    (shutil.copytree if file.is_dir() else shutil.copy)(file, self._partial / file.name)
        self._folder.finish()

    def _rounded(self, tensor: LayerTensor, weights: Floats, inputs: LayerInputs) -> Integers:
        form = self._form(tensor)
        if form.scheme == "int4":
            return compensated(form, weights, inputs.compensation(tensor.inputs, tensor.columns))
        return rounded(form, len(weights), weights.shape[1], lambda first, last: weights[first:last])

    def _form(self, tensor: LayerTensor) -> MatrixForm:
        return target_form(self._target, tensor.fused, tensor.columns)

    def _inputs(self, layer: int, numbers: dict[str, Floats]) -> LayerInputs:
        every = layer_tensors(self._model.config, layer)
        inputs = LayerInputs({each.inputs for each in every if each.rounded and self._form(each).scheme == "int4"})
        for window in self._hidden_before(layer):
            self._layers.run(layer, numbers, window, inputs.heard)
        return inputs

    def _pass_on(self, layer: int, numbers: dict[str, Floats]) -> None:
        """Keep the input of the next layer, computed with the rounded weights."""
        out = np.stack([self._layers.run(layer, numbers, window, _unheard) for window in self._hidden_before(layer)])
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
        numbers = widened(replace(embedding, values=embedding.values[self._windows]))
        return numbers * np.float32(self._model.config.embedding_scale)

    def _write_edges(self) -> None:
        def fill(name: str, shape: tuple[int, ...], first: int, count: int) -> Floats:
            width = shape[1] if len(shape) == 2 else 1
            top = first // width
            numbers = self._model.edge(name, top, -(-(first + count) // width))
            return numbers.reshape(-1)[first - top * width :][:count]

        write_safetensors(self._partial / self._file(0), "bf16", self._model.edges(), fill)

    def _file(self, number: int) -> str:
        return f"model-{number + 1:05}-of-{self._model.config.layers + 1:05}.safetensors"


def _size(values: Floats) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float32), dtype=np.float64)))


def _unheard(name: str, inputs: Floats) -> None:
    pass

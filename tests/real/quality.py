"""`python -m tests.real.quality`: what eight and four bits cost a real model, SmolLM2-135M-Instruct.

Its weights, widened to bf16, are the model; `baton quantize` writes it in int8 and in int4, and pages of keys and
values hold eight or four bits. All are judged by their perplexity on two pages of the manual. The other pages are the
text by which four bits are rounded; without one, the model writes it. Status 1 where a perplexity grows
beyond its bar."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import baton_kernels
from cli.models.hub import local_folder
from cli.models.known_models import packaged_file
from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import Tensor, widened
from engine.formats.writing import write_safetensors
from engine.model.config import read_config
from engine.model.layout import as_stored, read_tensors
from engine.model.matrices import rows_of
from engine.model.weights import open_weights
from engine.quantization.folder import Windows, quantize
from engine.quantization.own_text import WINDOW, WINDOWS, own_text
from engine.quantization.perplexity import perplexity
from engine.quantization.text import CALIBRATED, token_ids, windows_of
from mesh.config.arrangement import this_machine
from mesh.config.common_config import default_cache_folder
from tests.unit.sources import ROOT

NAME, JUDGED, MOST_TOKENS = "smollm2", ("architecture.md", "security.md"), 5120
PAGES = ("int8", "fp8", "int4")  # codes that pages may hold; the weights stay as they are
# Growth of the perplexity; of int4 with a text like the judged one.
BARS = {"int8": 0.005, "int4": 0.03, "pages int8": 0.005, "pages int4": 0.35}


def widened_folder(source: Path, out: Path) -> Path:
    """The model with its weights in bf16, whatever they are stored in."""
    out.mkdir()
    checkpoint = Checkpoint(source)
    tensors = read_tensors(as_stored(read_config(source), checkpoint), checkpoint)
    numbers = {
        name: widened(each) if isinstance(each, Tensor) else rows_of(each)(0, each.shape[0])
        for name, each in tensors.items()
    }
    write_safetensors(
        out / "model.safetensors",
        "bf16",
        {name: each.shape for name, each in numbers.items()},
        lambda name, shape, first, count: numbers[name].reshape(-1)[first : first + count].astype(np.float32),
    )
    for file in source.glob("*.json"):
        shutil.copy(file, out / file.name)
    return out


def pages(names: Iterable[Path]) -> str:
    return "\n".join(page.read_text() for page in names)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real.quality", description=__doc__)
    parser.add_argument("--own-text", action="store_true", help="four bits also by the model's own text")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    options = parser.parse_args()
    cache = default_cache_folder()
    file = packaged_file(NAME, cache)
    baton_kernels.set_threads(this_machine().cores)
    manual = sorted((ROOT / "docs").glob("*.md"))
    with tempfile.TemporaryDirectory() as place:
        model = widened_folder(local_folder(file), Path(place) / "bf16")
        tokens = token_ids(model, pages(ROOT / "docs" / name for name in JUDGED))[:MOST_TOKENS]
        text = token_ids(model, pages(page for page in manual if page.name not in JUDGED))
        dense = open_weights(model, Path(place) / "cache")
        texts: dict[str, tuple[str, Windows]] = {
            "int8": ("int8", windows_of(text, 1, 2)),
            "int4": ("int4", windows_of(text, CALIBRATED, WINDOW)),
        }
        if options.own_text:
            texts["int4, own text"] = "int4", own_text(dense, windows=WINDOWS, tokens=WINDOW)
        found = {"bf16": perplexity(dense, tokens)}
        for kv in PAGES:
            found[f"pages {kv}"] = perplexity(open_weights(model, Path(place) / "cache", kv=kv), tokens)
            print(f"pages {kv}: {found[f'pages {kv}'] / found['bf16'] - 1:+.2%}", file=sys.stderr)
        for label, (target, windows) in texts.items():
            out = Path(place) / label
            for _ in quantize(model, out, target, Path(place) / "cache", windows):
                pass
            for edges, rest in (("", ""), (", edges int8", "int8")):
                found[label + edges] = perplexity(open_weights(out, Path(place) / "cache", quantize=rest), tokens)
                print(f"{label + edges}: {found[label + edges] / found['bf16'] - 1:+.2%}", file=sys.stderr)
    growth = {label: value / found["bf16"] - 1 for label, value in found.items()}
    missed = [label for label, bar in BARS.items() if growth[label] > bar]
    print(f"beyond their bars: {missed}", file=sys.stderr)
    if options.json:
        print(json.dumps({"tokens": len(tokens), "perplexity": found, "growth": growth, "missed": missed}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

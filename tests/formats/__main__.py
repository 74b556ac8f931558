"""`python -m tests.formats --tools PYTHON`: checkpoints written by the ecosystem's own tools, read by Baton.

For each folder: whether the numbers for which its weights stand are those of its tool, bit for bit (a tool that
computes them in bf16 rounds ours as well), and how far the logits of the integer products are from those of a dense
model with these numbers, as a share of the largest logit. AutoRound does not say its numbers; its folders are held
against the weights that it was given. Status 1 where a number differs or a logit is too far off."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.builtin.tokenizer import write_tokenizer
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.stored import Stored, StoredMatrix, Tensor, widened
from engine.integers.numbers import dequantized
from engine.model.forward import Forward
from engine.model.page_memory import page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import open_weights
from engine.step.layer_groups import unreported
from engine.step.plan import Piece
from mesh.messages.jobs import Sampling

MOST_LOGIT = 0.05  # largest error of a logit, as a share of the largest logit, for integer products
MOST_WIDENED = 0.01  # for products of the widened numbers
STEP_SHARE = 0.2  # mean distance of rounded weights from the given ones, over their mean size
PROMPT = [(7 * place * place + 3 * place) % 262 for place in range(48)]
REFUSED = ("nvfp4", "marlin-24", "hqq", "eetq", "torchao", "vptq", "spqr", "aqlm", "quip", "higgs")
Floats = NDArray[np.float32]


def numbers(stored: Stored) -> Floats:
    if isinstance(stored, StoredMatrix):
        return dequantized(stored.read())
    return widened(stored) if isinstance(stored, Tensor) else stored.rows(0, stored.shape[0])


def in_bf16(values: Floats) -> Floats:
    bits = np.ascontiguousarray(values).view(np.uint32)
    result: Floats = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return result


def logits(folder: Path, cache: Path, product_path: str) -> Floats:
    weights, page = open_weights(folder, cache, product_path=product_path), 32
    layout = page_layout(weights, None, page)
    pages = -(-len(PROMPT) // page)
    pool = np.zeros(pages * layout.page_bytes, np.uint8)
    forward = Forward(weights, page_memory(pool, layout, page, segment=0))
    limits = RowLimits(weights.config.vocab, weights.config.context, pages, page, layout.page_bytes)
    piece = Piece(0, tuple(PROMPT), 0, tuple(range(pages)), len(PROMPT), 0, Sampling())
    return forward.logits(forward.hidden(Rows.of([piece], limits), unreported)).copy()


def judged(folder: Path, cache: Path) -> dict[str, Any]:
    ours = Checkpoint(folder).tensors
    told = folder.parent / f"{folder.name}.numbers.safetensors"
    quantized = [name for name, stored in ours.items() if not isinstance(stored, Tensor)]
    if not told.exists():
        dense = Checkpoint(folder.parent / "dense").tensors
        far = [
            np.abs(numbers(ours[n]) - numbers(dense[n])).mean() / np.abs(numbers(dense[n])).mean() for n in quantized
        ]
        return {
            "tensors": len(quantized),
            "equal_bits": None,
            "distance": float(max(far)),
            "right": bool(max(far) < STEP_SHARE),
        }
    theirs = {name: numbers(each) for name, each in _safetensors(told).items()}
    wanted = theirs.pop("logits")
    equal = all(
        bool(((mine := numbers(ours[name])) == values).all() or (in_bf16(mine) == in_bf16(values)).all())
        for name, values in theirs.items()
    )
    largest = float(np.abs(wanted).max())
    off = float(np.abs(logits(folder, cache, "auto") - wanted).max()) / largest
    wide = float(np.abs(logits(folder, cache, "fp32") - wanted).max()) / largest
    return {
        "tensors": len(theirs),
        "equal_bits": equal,
        "max_logit_difference": off,
        "max_logit_difference_widened": wide,
        "right": equal and len(theirs) == len(quantized) > 0 and off < MOST_LOGIT and wide < MOST_WIDENED,
    }


def _safetensors(path: Path) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").symlink_to(path)
        return {name: each for name, each in Checkpoint(Path(folder)).tensors.items() if isinstance(each, Tensor)}


def blocks(out: Path) -> dict[str, dict[str, Any]]:
    found, report = np.load(out / "gguf.npz"), dict[str, dict[str, Any]]()
    for kind, block in BLOCK_TYPES.items():
        mine, theirs = dequantized(block.integers(found[f"{kind}.raw"])), found[f"{kind}.numbers"]
        equal = mine.shape == theirs.shape and bool((mine == theirs).all())
        report[f"gguf-{kind}"] = {"tensors": 1, "equal_bits": equal, "right": equal}
    return report


def refused(out: Path) -> list[str]:
    names = []
    for method in REFUSED:
        folder = out / f"refused-{method}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes((out / "dense" / "model.safetensors").read_bytes())
        compressed = method in ("nvfp4", "marlin-24")
        settings: dict[str, Any] = {"quant_method": "compressed-tensors" if compressed else method}
        settings |= {"format": f"{method}-pack-quantized"} if compressed else {}
        (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
        try:
            Checkpoint(folder)
        except ModelError as error:
            if method in str(error):
                names.append(method)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.formats", description=__doc__)
    parser.add_argument("--tools", required=True, help="the Python of an environment with the tools: `make formats`")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        (out / "dense").mkdir()
        write_tokenizer(out / "dense", 512)
        subprocess.run(
            [options.tools, str(Path(__file__).with_name("write.py")), str(out)], check=True, stdout=sys.stderr
        )
        folders = sorted(path.parent for path in out.glob("*/config.json") if path.parent.name != "dense")
        report = blocks(out) | {folder.name: judged(folder, out / "cache") for folder in folders}
        names = refused(out)
    for name, each in report.items():
        print(f"{'' if each['right'] else 'WRONG '}{name}: {each}", file=sys.stderr)
    wrong = [name for name, each in report.items() if not each["right"]] + sorted(set(REFUSED) - set(names))
    if options.json:
        print(json.dumps({"formats": report, "refused": names, "wrong": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""`python -m tests.real --tools FOLDER`: a real model, SmolLM2-135M-Instruct as GGUF, beside the other readers of GGUF.

Every tensor as fp32 has the digest that `gguf` and `libgguf` give it. Greedy answers are compared with llama.cpp's,
which quantizes activations otherwise; where two texts part, our logits of the two tokens must be close. Status 1 where
a digest differs or a parting is not close."""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from cli.models.hub import local_folder
from cli.models.known_models import packaged_file
from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.gguf_file import read_gguf
from engine.integers.numbers import dequantized
from engine.model.forward import Forward
from engine.model.page_memory import page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Weights, open_weights
from engine.step.layer_groups import unreported
from engine.step.plan import Piece
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling

NAME, ANSWER, CLOSE = "smollm2", 48, 0.5  # tokens of an answer; logits between two tokens that count as close
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is 2 plus 3?",
    "Who wrote Hamlet?",
    "Explain what a battery does.",
    "List the days of the week.",
    "Give me a tip for sleeping well.",
    "What do bees make?",
    "Translate 'good morning' into French.",
)
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
PAGE = 32


class Greedy:
    """Answers token by token, as a worker computes them, and keeps each position's logits."""

    def __init__(self, weights: Weights, most: int) -> None:
        layout = page_layout(weights, None, PAGE)
        self._pages = tuple(range(-(-most // PAGE)))
        pool = np.zeros(len(self._pages) * layout.page_bytes, np.uint8)
        self._forward = Forward(weights, page_memory(pool, layout, PAGE, segment=0))
        self._limits = RowLimits(
            weights.config.vocab, weights.config.context, len(self._pages), PAGE, layout.page_bytes
        )

    def answer(self, prompt: Sequence[int], stop: int) -> tuple[list[int], list[Any]]:
        tokens, seen, rows, start = list[int](), list[Any](), tuple(prompt), 0
        while len(tokens) < ANSWER:
            piece = Piece(0, rows, start, self._pages, 1, len(tokens), Sampling())
            logits = self._forward.logits(self._forward.hidden(Rows.of([piece], self._limits), unreported))[-1].copy()
            start, token = start + len(rows), int(logits.argmax())
            if token == stop:
                seen.append(logits)
                break
            tokens.append(token)
            seen.append(logits)
            rows = (token,)
        return tokens, seen


def tensors(file: Path, python: str) -> dict[str, bool]:
    """Whether each tensor's numbers are those of both other readers."""
    here = Path(__file__).with_name("digests.py")
    theirs = json.loads(
        subprocess.run([python, str(here), str(file)], check=True, capture_output=True, text=True).stdout
    )
    found = dict[str, bool]()
    for name, tensor in read_gguf(file).tensors.items():
        if tensor.kind in BLOCK_TYPES:
            numbers = dequantized(BLOCK_TYPES[tensor.kind].integers(tensor.raw))
        else:
            numbers = tensor.raw.reshape(-1).view(np.float32)
        digest = hashlib.sha256(np.ascontiguousarray(numbers, np.float32).tobytes()).hexdigest()
        found[name] = theirs.get(name) == [digest, digest]
    return found


def answers(file: Path, folder: Path, modules: Path) -> list[dict[str, Any]]:
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [words.encode(CHAT.format(question)).ids for question in QUESTIONS]
    script = modules / "greedy.mjs"
    script.write_text(Path(__file__).with_name("greedy.mjs").read_text())  # node finds its modules beside it
    command = ["node", str(script), str(file), str(ANSWER)]
    said = subprocess.run(command, input=json.dumps(prompts), check=True, capture_output=True, text=True).stdout
    theirs, greedy = json.loads(said), Greedy(open_weights(folder, default_cache_folder()), 1024)
    stop, found = words.token_to_id("<|im_end|>"), list[dict[str, Any]]()
    for question, prompt, other in zip(QUESTIONS, prompts, theirs, strict=True):
        mine, logits = greedy.answer(prompt, stop)
        other = other[: other.index(stop)] if stop in other else other
        equal = next(
            (i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other))
        )
        one: dict[str, Any] = {"question": question, "answer": words.decode(mine), "equal_tokens": equal}
        if mine != other:
            pair = [each[equal] if equal < len(each) else stop for each in (mine, other)]
            one |= {
                "theirs": words.decode(other),
                "logits_apart": float(logits[equal][pair[0]] - logits[equal][pair[1]]),
            }
        found.append(one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="the folder that `make real` fills")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    options = parser.parse_args()
    cache = default_cache_folder()
    file = packaged_file(NAME, cache)
    found = tensors(file, str(options.tools / "bin" / "python"))
    said = answers(file, local_folder(file), options.tools)
    wrong = [name for name, equal in found.items() if not equal]
    wrong += [each["question"] for each in said if each.get("logits_apart", 0.0) > CLOSE]
    for each in said:
        print(each, file=sys.stderr)
    same = sum("theirs" not in each for each in said)
    print(
        f"{len(found)} tensors, {same} of {len(said)} answers equal; wrong: {wrong}",
        file=sys.stderr,
    )
    if options.json:
        report = {"tensors": len(found), "equal_bits": sum(found.values()), "answers": said, "wrong": wrong}
        print(json.dumps(report))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

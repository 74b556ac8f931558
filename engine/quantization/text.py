"""Text as tokens of a model: to judge its perplexity with, and to quantize it with."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from engine.formats.errors import ModelError
from engine.quantization.folder import Windows

CALIBRATED = 32  # windows of a text by which four bits are rounded
_SAMPLE = Path(__file__).with_name("sample.txt")


def sample_text() -> str:
    """A few pages of prose, dialogue, numbers and code."""
    return _SAMPLE.read_text()


def token_ids(folder: Path, text: str) -> list[int]:
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(file, "file", f"cannot be read ({error})", "Copy the folder again.") from None
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def windows_of(tokens: list[int], most: int, length: int) -> Windows:
    """Up to `most` windows of the text, spread over all of it."""
    count = min(most, len(tokens) // length)
    if count < 1:
        problem = f"has {len(tokens)} tokens, and {length} are the least"
        raise ModelError("calibration", "text", problem, "Take a longer text.")
    starts = np.linspace(0, len(tokens) - length, count).astype(int)
    return np.array([tokens[start : start + length] for start in starts], np.int32)

"""The files of a model whose tokens are bytes, and what the gateway reads of them."""

import tempfile
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from gateway.prompts.assets import Assets, load_assets


def letters() -> list[str]:
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (chr(0x100 + rank) for rank in range(256))
    return [chr(byte) if byte in visible else next(hidden) for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """One id per byte, then special tokens."""
    tokenizer = Tokenizer(BPE(vocab={letter: byte for byte, letter in enumerate(letters())}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    names = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


@cache
def tokenizer_file() -> str:
    return byte_tokenizer().to_str()


@cache
def assets_of(*files: tuple[str, bytes]) -> Assets:
    """Tests with equal models share what was read, and change copies only."""
    with tempfile.TemporaryDirectory() as name:
        for path, content in files:
            file = Path(name) / path
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        return load_assets(Path(name), "tiny")

"""The tokenizer: byte-level BPE of 2,048 tokens, trained on the corpus, each digit a token of its own.

Any text can be encoded, and decoding gives back exactly the encoded text."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from models.template import BEGIN, CHAT_TEMPLATE, END, PAD, SPECIAL, VISIBLE

VOCABULARY = 2048


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    digits = Split(Regex(r"\p{N}"), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([digits, ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = ByteLevelDecoder()
    added = [AddedToken(text, special=True, normalized=False) for text in (*SPECIAL, *VISIBLE)]
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=added,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_visible_marks(tokenizer)


def _with_visible_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Makes the marks of tools visible: the trainer makes all marks special, and special tokens are not shown."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    return Tokenizer.from_str(json.dumps(content))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def token_id(tokenizer: Tokenizer, text: str) -> int:
    found: int | None = tokenizer.token_to_id(text)
    if found is None:
        raise ValueError(f"tokenizer: {text} is no token of it; train it again")
    return found


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))

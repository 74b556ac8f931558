"""The tokenizer of a GGUF file as Hugging Face's files: tokenizer.json and tokenizer_config.json.

A byte-level tokenizer stands there with its merges, and the name of the rule that cuts a text into words. A llama
tokenizer stands there with scores: a merge's rank is the score of what it makes."""

from typing import Any

from engine.formats.errors import ModelError
from engine.formats.gguf_file import GgufFile

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6
_MOST_LETTERS, _LONGEST = 1 << 22, 512  # scored tokens are cut at every letter
_TAKE = "Take the model's safetensors, or a file of another converter."
# How a text is cut into words, by the name that the file gives the rule.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_WHOLE_WORDS = ("llama-bpe", "llama3", "smaug-bpe")  # words of the vocabulary are tokens, whatever the merges say
_WORDS = dict.fromkeys((*_WHOLE_WORDS, "dbrx", "glm4", "chatglm-bpe"), _LLAMA3)
_WORDS |= dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2)
_SINGLE_DIGITS = ("smollm", "refact", "command-r", "starcoder")  # GPT-2's rule, and each digit alone
_GPT2 = ("gpt-2", "default", "olmo")
_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer_files(file: GgufFile) -> dict[str, dict[str, Any]]:
    """Contents by file name."""
    kind = file.take("tokenizer.ggml.model", str)
    tokens: list[str] = file.take("tokenizer.ggml.tokens", list)
    if not all(isinstance(token, str) for token in tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(file.path, "tokenizer.ggml.tokens", "are not texts, or one stands there twice", _TAKE)
    types: list[int] = file.take("tokenizer.ggml.token_type", list, [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        problem = f"has {len(types)} entries for {len(tokens)} tokens"
        raise ModelError(file.path, "tokenizer.ggml.token_type", problem, _TAKE)
    if kind == "gpt2":
        whole = _byte_level(file, tokens)
    elif kind == "llama":
        whole = _by_scores(file, tokens)
    else:
        raise ModelError(file.path, "tokenizer.ggml.model", f"{kind!r} is not supported", _TAKE)
    added = [
        {
            "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": types[number] == _CONTROL,
        }
        for number, token in enumerate(tokens)
        if types[number] in (_CONTROL, _USER) or (kind == "llama" and types[number] == _UNKNOWN)
    ]  # fmt: skip
    begins = _flag(file, "add_bos_token", default=kind == "llama")
    names = {name: _token(file, key, tokens) for name, key in _IDS.items()}
    named = {name: token for name, token in names.items() if token is not None}
    post = _behind(named.get("bos_token"), tokens) if begins else whole.pop("post")
    whole.pop("post", None)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **whole,
        "post_processor": post,
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "clean_up_tokenization_spaces": False,
    }
    config["add_bos_token"] = begins
    if isinstance(template := file.metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    return {"tokenizer.json": document, "tokenizer_config.json": config}


def _byte_level(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    rule = file.take("tokenizer.ggml.pre", str, "default")
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps: list[dict[str, Any]]
    if rule in _WORDS:
        split = {"type": "Split", "pattern": {"Regex": _WORDS[rule]}, "behavior": "Isolated", "invert": False}
        steps = [split, {**bytes_, "use_regex": False}]
    elif rule in _SINGLE_DIGITS:
        steps = [{"type": "Digits", "individual_digits": True}, bytes_]
    elif rule in _GPT2:
        steps = [bytes_]
    else:
        known = ", ".join((*_WORDS, *_SINGLE_DIGITS, *_GPT2))
        raise ModelError(file.path, "tokenizer.ggml.pre", f"{rule!r} is unknown; there are {known}", _TAKE)
    merges = [_pair(file, merge) for merge in file.take("tokenizer.ggml.merges", list)]
    return {
        "normalizer": {"type": "NFC"} if _WORDS.get(rule) is _QWEN2 else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": bytes_,
        "model": _bpe(tokens, merges, ignore_merges=rule in _WHOLE_WORDS),
        "post": {**bytes_, "trim_offsets": False},
    }


def _by_scores(file: GgufFile, tokens: list[str]) -> dict[str, Any]:
    scores: list[float] = file.take("tokenizer.ggml.scores", list)
    if len(scores) != len(tokens):
        problem = f"has {len(scores)} entries for {len(tokens)} tokens"
        raise ModelError(file.path, "tokenizer.ggml.scores", problem, _TAKE)
    if not all(isinstance(score, float) for score in scores):
        raise ModelError(file.path, "tokenizer.ggml.scores", "are not numbers", _TAKE)
    if (letters := sum(map(len, tokens))) > _MOST_LETTERS or max(map(len, tokens), default=0) > _LONGEST:
        problem = f"have {letters} letters, or one has more than {_LONGEST}"
        raise ModelError(file.path, "tokenizer.ggml.tokens", problem, _TAKE)
    ids = {token: number for number, token in enumerate(tokens)}
    ranked = list[tuple[float, int, int, tuple[str, str]]]()
    for number, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[number], left, right, (token[:cut], token[cut:])))
    ranked.sort(key=lambda each: each[:3])
    first = _flag(file, "add_space_prefix", default=True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normal = [{"type": "Prepend", "prepend": "▁"}, replace] if first else [replace]
    decode: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if first:
        decode.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _token(file, "unknown_token_id", tokens)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decode},
        "model": _bpe(tokens, [pair for *_, pair in ranked], unknown=unknown, bytes_instead=True),
        "post": None,
    }


def _bpe(
    tokens: list[str],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    unknown: str | None = None,
    bytes_instead: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": bytes_instead,
        "byte_fallback": bytes_instead,
        "ignore_merges": ignore_merges,
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges],
    }


def _behind(begin: str | None, tokens: list[str]) -> dict[str, Any] | None:
    """Puts the first token before every text."""
    if begin is None:
        return None
    special = {"SpecialToken": {"id": begin, "type_id": 0}}
    one, two = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [special, one],
        "pair": [special, one, {"SpecialToken": {"id": begin, "type_id": 1}}, two],
        "special_tokens": {begin: {"id": begin, "ids": [tokens.index(begin)], "tokens": [begin]}},
    }


def _pair(file: GgufFile, merge: Any) -> tuple[str, str]:
    left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not space or not left or not right:
        raise ModelError(file.path, "tokenizer.ggml.merges", f"{str(merge)[:80]!r} is no pair of tokens", _TAKE)
    return left, right


def _token(file: GgufFile, key: str, tokens: list[str]) -> str | None:
    number = file.metadata.get(f"tokenizer.ggml.{key}")
    if number is None:
        return None
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise ModelError(file.path, f"tokenizer.ggml.{key}", f"{number!r} is none of {len(tokens)} tokens", _TAKE)
    return tokens[number]


def _flag(file: GgufFile, key: str, *, default: bool) -> bool:
    flag: bool = file.take(f"tokenizer.ggml.{key}", bool, default)
    return flag

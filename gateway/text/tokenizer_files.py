"""The tokenizer of a model's folder, put together from its files as transformers does it.

tokenizer.json is the tokenizer. Tokens that stand only in tokenizer_config.json, special_tokens_map.json or
added_tokens.json are added to it, each as one token. What a file says about shortening or padding texts is for
training: a prompt is tokenized as a whole, so both are switched off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers

from mesh.config.config_checks import ConfigError
from mesh.config.small_files import TOKENIZER_BYTES

Json = Mapping[str, Any]
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BY_ID = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
KEPT_WORDS = 1000  # words that each tokenizer remembers; a word takes up to 4 KB


class AssetError(ConfigError):
    """A model folder that cannot be served."""


def load_tokenizer(folder: Path, config: Json, special_map: Json, added: Json, *, model_type: Any = None) -> Tokenizer:
    """`config`, `special_map` and `added`: tokenizer_config.json, special_tokens_map.json and added_tokens.json; the
    latter two count only where the first has no added_tokens_decoder. `model_type`: that of config.json."""
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    if model_type in (None, "llama") and config.get("tokenizer_class") in ("LlamaTokenizer", "LlamaTokenizerFast"):
        _mark_words_as_llama(tokenizer, config)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
    source, field = folder / "tokenizer_config.json", _BY_ID
    by_id = config.get(field)
    if by_id is None:
        source, field = folder / "added_tokens.json", "ids"
    try:
        named, unnamed = _special_tokens(config, special_map)
        specials = [_token(value, special=True) for value in (*named.values(), *unnamed) if value is not None]
        listed = _listed(by_id, added, {token.content for token in specials})
        _add(tokenizer, listed, specials)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise AssetError(f"model: the tokens in {source} cannot be read: {error}; copy the folder again") from error
    for token_id, token in listed.items():
        if (actual := tokenizer.token_to_id(token.content)) != token_id:
            raise AssetError(
                f"model: {source}: {field} has id {token_id} for {token.content!r}, in tokenizer.json {actual}; "
                "the files belong to different models: copy the folder again"
            )
    return tokenizer


def _read_tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise AssetError(
            f"model: {file} is missing; the gateway needs a fast tokenizer. With transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    if file.stat().st_size > TOKENIZER_BYTES:
        raise AssetError(f"model: {file} has more than {TOKENIZER_BYTES} bytes; it is damaged: copy the folder again")
    try:
        return with_few_words(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing narrower
        raise AssetError(f"model: {file} is no tokenizer that this gateway can read: {error}") from error


def with_few_words(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a small memory. It remembers the tokens of the first words that it meets, 10,000 unless
    told otherwise, and forgets none: clients could fill 40 MB with words that never come again."""
    if hasattr(tokenizer.model, "_resize_cache"):  # WordLevel has none
        tokenizer.model._resize_cache(KEPT_WORDS)
    return tokenizer


def _mark_words_as_llama(tokenizer: Tokenizer, config: Json) -> None:
    """Mark the beginnings of words as transformers' LlamaTokenizer does, whatever tokenizer.json says: without `legacy`
    a text that follows a special token gets no space of its own. Byte-level tokenizers mark them otherwise and stay."""
    if any("ByteLevel" in str(part) for part in (tokenizer.pre_tokenizer, tokenizer.decoder)):
        return
    prefix = config.get("add_prefix_space")
    scheme = "never" if prefix is False else "always" if config.get("legacy") else "first"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix is not False:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)


def token_names(config: Json, special_map: Json) -> dict[str, str]:
    """Texts of the named special tokens, as templates name them. The files are those of `load_tokenizer`, which has
    checked them."""
    named, _ = _special_tokens(config, special_map)
    texts = {name: value.get("content") if isinstance(value, Mapping) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _special_tokens(config: Json, special_map: Json) -> tuple[dict[str, Any], list[Any]]:
    """The named tokens (bos_token, image_token, ...) and the unnamed ones. `extra_special_tokens` holds either kind,
    `additional_special_tokens` unnamed ones."""
    if config.get(_BY_ID) is not None:
        special_map = {}
    additional, extra = config.get("additional_special_tokens"), config.get("extra_special_tokens") or None
    named = {name: config[name] for name in SPECIAL_TOKENS if name in config}
    named |= {name: value for name, value in config.items() if name.endswith("_token") and isinstance(value, str)}
    if isinstance(extra, Mapping):
        named, extra = named | dict(extra), None
    elif extra is None:
        extra, additional = additional, None
    for name, value in special_map.items():
        if name == "additional_special_tokens":
            additional = value
        elif name == "extra_special_tokens":
            named, extra = (named | value, extra) if isinstance(value, dict) else (named, [*(extra or ()), *value])
        elif name.endswith("_token"):
            named[name] = value
    ordered = {name: named.pop(name) for name in SPECIAL_TOKENS if name in named} | named
    return ordered, list((additional or ()) if extra is None else extra)


def _listed(by_id: Json | None, added: Json, special: set[str]) -> dict[int, AddedToken]:
    """The tokens that a file lists with their ids, in the order of the ids."""
    if by_id is not None:
        found = {int(token_id): _token(value, special=False) for token_id, value in by_id.items()}
    else:
        found = {
            int(token_id): AddedToken(text, special=text in special, normalized=text not in special)
            for text, token_id in added.items()
        }
    return dict(sorted(found.items()))


def _add(tokenizer: Tokenizer, listed: Mapping[int, AddedToken], specials: list[AddedToken]) -> None:
    """Add what the tokenizer does not have, in the order in which transformers does: so ids come out alike."""
    known = tokenizer.get_added_tokens_decoder().values()
    alike, names = {repr(token) for token in known}, {token.content for token in known}
    new = [token for token in listed.values() if repr(token) not in alike]
    names |= {token.content for token in new}
    for token in specials:
        if token.content not in names:
            new.append(token)
            names.add(token.content)
    tokenizer.add_tokens(new)


def _token(value: Any, *, special: bool) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=special)
    flags = {name: bool(value[name]) for name in _FLAGS if name in value}
    return AddedToken(value["content"], **(flags | ({"special": True} if special else {})))

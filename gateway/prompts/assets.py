"""The parts of a model's folder that the front doors need: tokenizer, chat template, context length, end-of-sequence
ids.

Weights are never read. A file that is missing or broken is an error at start, which names the file and what to do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gateway.structured.check import GrammarCheck
from gateway.text.chat import ChatTemplate
from gateway.text.client_template import ClientTemplates
from gateway.text.controls import ControlTokens
from gateway.text.formats import AUTO, HARMONY_ENDS, ReasoningFormat, ToolFormat, reasoning_format
from gateway.text.generation import read_defaults
from gateway.text.jinja import Now
from gateway.text.mark_tokens import mark_places, space_tokens
from gateway.text.pooling import FILE, UNKNOWN, EmbeddingSettings, embedding_settings
from gateway.text.templates import DEFAULT, TOOL_USE, load_templates
from gateway.text.tokenizer import ModelTokenizer
from gateway.text.tokenizer_files import AssetError, load_tokenizer, token_names
from gateway.text.tools import tool_support
from mesh.config.config_checks import ConfigError
from mesh.config.small_files import UnfitFile, read_small
from mesh.messages.jobs import ReasoningBudget

__all__ = ["AssetError", "Assets", "Defaults", "load_assets"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling parameters for fields that a request leaves out: those of the model's generation_config.json."""

    temperature: float = 1.0
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0 is off
    suppress_tokens: tuple[int, ...] = ()
    min_new_tokens: int = 0


@dataclass(frozen=True)
class Assets:
    name: str  # the first of the names that clients put into `model`
    tokenizer: ModelTokenizer
    template: ChatTemplate | None  # None: the model cannot chat
    why_no_tools: str | None  # reason to refuse tools; None: the template supports them
    context_tokens: int
    vocabulary: int  # number of token ids
    eos_ids: tuple[int, ...]
    controls: ControlTokens  # keeps text of clients from becoming control tokens
    defaults: Defaults = Defaults()
    embedding: EmbeddingSettings = UNKNOWN
    templates: Mapping[str, ChatTemplate] = field(default_factory=dict)  # all of the model, by name
    tool_format: ToolFormat | None = None  # form of the model's calls
    reasoning: ReasoningFormat | None = None  # form of its reasoning; None: it has none
    client_templates: ClientTemplates | None = None  # None: templates of clients are refused
    special: Mapping[str, str] = field(default_factory=dict)  # bos_token and others, as templates name them
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)  # content of tokenizer_config.json

    def of(self, name: str) -> "Assets":
        """The same assets, for every name of a gateway of one model (gateway/prompts/by_model.py)."""
        return self

    @cached_property
    def reasoning_marks(self) -> ReasoningBudget | None:
        """The budget of no tokens, with the marks of the model's reasoning; None: it has none."""
        if self.reasoning is None:
            return None
        form, own = self.reasoning, self.tokenizer
        begin, end, *others = (mark_places(own, mark) for mark in (form.begin, form.end, *form.other_ends))
        ends = tuple(token for places in others if len(places) == 1 for token in places[0].tokens)
        spaces = () if form.channels else space_tokens(own)
        return ReasoningBudget(0, begin, end, barred=form.barred % len(begin), ends=ends, spaces=spaces)

    @cached_property
    def grammars(self) -> GrammarCheck:
        return GrammarCheck(self.tokenizer.added)


def load_assets(
    folder: Path,
    name: str,
    now: Now | None = None,
    *,
    context_tokens: int = 0,
    tool_format: str = AUTO,
    reasoning: str = AUTO,
    client_templates: bool = True,
) -> Assets:
    """`now`: the clock of templates. `context_tokens`: tokens of a prompt and its answer, at most; 0: as many as the
    model allows. `tool_format`, `reasoning`: settings of the gateway, which also says whether clients may send
    templates of their own."""
    config = _read(folder / "config.json")
    text = config.get("text_config", config)
    generation = _read(folder / "generation_config.json", optional=True)
    tokenizer_config = _read(folder / "tokenizer_config.json", optional=True)
    special_map = _read(folder / "special_tokens_map.json", optional=True)
    added = _read(folder / "added_tokens.json", optional=True)
    tokenizer = load_tokenizer(folder, tokenizer_config, special_map, added, model_type=config.get("model_type"))
    special = token_names(tokenizer_config, special_map)
    eos_ids = {*_ids(config, "eos_token_id"), *_ids(text, "eos_token_id"), *_ids(generation, "eos_token_id")}
    try:
        templates = load_templates(folder, tokenizer_config, special, now)
    except ConfigError as error:
        raise AssetError(str(error)) from error
    template = templates.get(DEFAULT)
    for_tools = templates.get(TOOL_USE, template)
    no_template: tuple[ToolFormat | None, str | None] = (None, "the model has no chat template")
    calls, why_not = no_template if for_tools is None else tool_support(for_tools, tool_format)
    reasons = None if template is None else reasoning_format(template, reasoning)
    rows = [row for row in (calls, reasons) if row is not None]
    marks = [mark for row in rows for mark in row.marks]
    if any(row.channels for row in rows):
        eos_ids |= {number for mark in HARMONY_ENDS if (number := tokenizer.token_to_id(mark)) is not None}
    named_eos = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    vocabulary = _positive(folder, text, "vocab_size")
    return Assets(
        name=name,
        tokenizer=ModelTokenizer(tokenizer),
        template=template,
        why_no_tools=why_not,
        context_tokens=_context(folder, text, context_tokens),
        vocabulary=vocabulary,
        eos_ids=tuple(sorted(eos_ids if named_eos is None else eos_ids | {named_eos})),
        embedding=embedding_settings(text, _read(folder / FILE, optional=True)),
        defaults=_defaults(folder, generation, vocabulary),
        controls=ControlTokens(tokenizer, [*marks, *(each.source for each in templates.values())]),
        templates=templates,
        tool_format=calls,
        reasoning=reasons,
        client_templates=ClientTemplates(now) if client_templates else None,
        special=special,
        tokenizer_config=tokenizer_config,
    )


def _defaults(folder: Path, generation: Mapping[str, Any], vocabulary: int) -> Defaults:
    try:
        return Defaults(**read_defaults(generation, vocabulary))
    except ValueError as error:
        raise AssetError(f"model: {folder / 'generation_config.json'}: {error}") from None


def _context(folder: Path, config: Mapping[str, Any], wanted: int) -> int:
    allowed = _positive(folder, config, "max_position_embeddings")
    if wanted > allowed:
        raise AssetError(f"context_tokens: {wanted} is more than the {allowed} tokens that the model allows; lower it")
    return wanted or allowed


def _read(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.exists():
        return {}
    try:
        content = json.loads(read_small(file).decode())
    except FileNotFoundError:
        raise AssetError(f"model: {file} is missing; name a complete Hugging Face model folder") from None
    except UnfitFile as error:
        raise AssetError(f"model: {file} {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise AssetError(f"model: {file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise AssetError(f"model: {file} holds no JSON object")
    return content


def _ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = config.get(key)
    return tuple(value) if isinstance(value, list) else () if value is None else (int(value),)


def _positive(folder: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise AssetError(f"model: {folder / 'config.json'} needs {key} as a positive integer, found {value!r}")
    return value

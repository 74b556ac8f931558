"""The prompt of a gRPC request as token ids, cut where its client wants that: a text, token ids, or a chat.

What a client can repeat is counted before it is converted, and long lists are converted in slices, so that no request
stops the event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.conversation import CHAT_FIELDS, OTHER_FIELDS, parse_conversation
from gateway.grpc.names import Names, respelled
from gateway.prompts.assets import Assets
from gateway.prompts.lengths import validate_length
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.prompts.truncation import Truncation, cut_chat, encode_cut, truncation_of
from gateway.text.tool_calls import PLAIN, AnswerFormat
from mesh.errors import InvalidRequest

_SLICE = 16_384  # ids that are converted in one piece
_KEEPS_END = {pb.TRUNCATION_SIDE_UNSPECIFIED: True, pb.TRUNCATION_SIDE_LEFT: True, pb.TRUNCATION_SIDE_RIGHT: False}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    field: str  # that holds the prompt
    ids: tuple[int, ...]
    reading: AnswerFormat = PLAIN  # how the answer is to be read
    tools: Sequence[Any] = ()  # that a chat declares, in the shape of gateway/text/tools.py


async def parse_prompt(request: pb.GenerateRequest, assets: Assets, names: Names, context: int) -> ParsedPrompt:
    """`context`: tokens that the attached workers hold of a prompt and its answer."""
    kind, cut = request.WhichOneof("prompt"), _truncation(request, context)
    special = request.add_special_tokens if request.HasField("add_special_tokens") else kind == "text"
    if kind == "text":
        ids = await encode_cut(assets, request.text, cut, field=names.text, special=special)
        return ParsedPrompt(names.text, ids)
    if kind == "token_ids":
        if request.HasField("add_special_tokens"):
            what = "add_special_tokens goes with a text or a chat; token_ids are taken as they are"
            raise InvalidRequest("add_special_tokens", what)
        given: Sequence[int] = request.token_ids.ids
        kept = given if cut is None else given[cut.kept(len(given))]
        return ParsedPrompt(names.token_ids, await ids_of(names.token_ids, kept, assets.context_tokens))
    if kind == "chat":
        chat = await parse_conversation(request.chat, assets.context_tokens, special=special)
        ids, reading = cut_chat(assets, cut, *await encode_conversation(chat, assets))
        return ParsedPrompt(CHAT_FIELDS.messages, ids, reading, chat.tools)
    raise InvalidRequest("prompt", f"prompt is missing: set one of {names.text}, {names.token_ids}, chat")


async def encode_conversation(chat: ChatPrompt, assets: Assets) -> tuple[tuple[int, ...], AnswerFormat]:
    """Token ids of a chat, and how the answer is to be read."""
    try:
        return await encode_chat(assets, chat, CHAT_FIELDS)
    except InvalidRequest as error:
        raise respelled(error, OTHER_FIELDS) from error


async def ids_of(field: str, ids: Sequence[int], most: int) -> tuple[int, ...]:
    """The ids of a repeated field; more than the context holds are refused unread."""
    if len(ids) > most:
        validate_length(field, len(ids), most)
    found: list[int] = []
    for start in range(0, len(ids), _SLICE):
        if start:
            await asyncio.sleep(0)
        found += ids[start : start + _SLICE]
    return tuple(found)


def _truncation(request: pb.GenerateRequest, context: int) -> Truncation | None:
    if request.truncation_side not in _KEEPS_END:
        what = "truncation_side must be TRUNCATION_SIDE_LEFT or TRUNCATION_SIDE_RIGHT: the side that is cut"
        raise InvalidRequest("truncation_side", what)
    return truncation_of(
        request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
        keep_end=_KEEPS_END[request.truncation_side],
        context=context,
        answer=request.stop.max_tokens or 1,
        field="truncate_prompt_tokens",
    )

"""Who says a message: the roles that every template knows, and those of clients that some templates know.

Step 1 of a request's life. A template gets any role. What it does not know it refuses or leaves out, and both are
errors of the client (gateway/prompts/conversation.py). A tool's message may come without the call that it answers."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.prompts.assets import Assets
from gateway.text.chat import ROLES
from gateway.text.tools import ChatFields
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.:/-]{0,63}")


def validate_role(message: Json, path: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        what = f"must be one of {', '.join(ROLES)}, or another role of up to 64 letters that the chat template knows"
        raise InvalidRequest(f"{path}.role", f"{path}.role {what}")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str | None):
        name = f"{path}.tool_call_id"
        raise InvalidRequest(name, f"{name} must be the id of the call that this message answers")


def check_own_roles(messages: Sequence[Json], assets: Assets, fields: ChatFields) -> None:
    """Refuses roles of which a template that writes <|ROLE|> would make a control token, with which a client could end
    a turn and begin another one. A template that names the role itself has a turn for it."""
    known = {message["role"] for message in messages}.difference(ROLES)
    if not known:
        return
    ends = _cores((*assets.special.values(), *map(assets.tokenizer.name_of, assets.eos_ids)))
    others = _cores(assets.controls.names)
    for index, message in enumerate(messages):
        role = message["role"]
        if role in known and (role.lower() in ends or (role.lower() in others and not _is_named(role, assets))):
            path = f"{fields.message(index)}.role"
            what = f"is {brief(repr(role))}, the name of a control token of this model, which could begin or end a turn"
            raise InvalidRequest(path, f"{path} {what}: take another name, or send the message as {', '.join(ROLES)}")


def _cores(names: Iterable[str]) -> frozenset[str]:
    """The names of tokens without the signs around them."""
    return frozenset(name.strip("<|>[]{}/\uff5c ").lower() for name in names)


def _is_named(role: str, assets: Assets) -> bool:
    """Whether a template of the model compares something with the role."""
    sources = [each.source for each in assets.templates.values()]
    sources += [assets.template.source] if assets.template is not None else []
    return any(f"{quote}{role}{quote}" in source for source in sources for quote in "'\"")


def uncertain(messages: Sequence[Json]) -> list[int]:
    """Messages that not every template shows: those of clients' own roles, and of tools without their call."""
    found, called = list[int](), set[str]()
    for index, message in enumerate(messages):
        role, id = message["role"], message.get("tool_call_id")
        called.update(call["id"] for call in message.get("tool_calls") or () if isinstance(call.get("id"), str))
        if role not in ROLES or (role == "tool" and id not in called):
            found.append(index)
    return found

"""The prompts of a completion: texts, token ids, lists of both, and texts around a gap.

Step 1 of a request's life over HTTP, for gateway/dialects/openai/request.py."""

from typing import Any

from gateway.dialects.openai.types import CompletionRequest
from gateway.prompts.assets import Assets
from gateway.prompts.fill_in import encode_gap
from gateway.prompts.lengths import validate_length
from mesh.errors import InvalidRequest

MAX_PROMPTS = 256


def prompts_of(prompt: str | list[str | int | list[int]] | None, context: int | None) -> list[Any]:
    """Every prompt as text or as token ids. `context`: its limit; None: the prompt will be cut."""
    if prompt is None:
        raise InvalidRequest("prompt", "prompt is missing: text, a list of texts, token ids, or a list of those")
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if len(kinds) != 1:
        raise InvalidRequest(
            "prompt", "prompt must be a list of texts, of token ids, or of lists of token ids; not empty, not mixed"
        )
    if kinds == {int}:
        if context is not None:
            validate_length("prompt", len(prompt), context)
        return [prompt]
    return list(prompt)


async def with_suffix(body: CompletionRequest, prompt: Any, assets: Assets) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt", "prompt must be text where suffix is given: the gap stands between two texts")
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise InvalidRequest(name, f"{name} and suffix exclude each other: leave one of them out")
    return await encode_gap(assets, prompt, body.suffix or "")

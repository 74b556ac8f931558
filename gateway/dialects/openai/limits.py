"""The limits of one OpenAI request that its parsed body shows: checked before anything is tokenized or submitted.

Step 1 of a request's life over HTTP. Large bodies are checked where they are parsed, in another process; all others
right after parsing."""

from gateway.dialects.openai.types import CommonRequest, CompletionRequest
from gateway.prompts.lengths import validate_prompt_length
from mesh.config.door_config import DoorConfig
from mesh.errors import InvalidRequest


def count_choices(body: CommonRequest) -> int:
    """Choices of all prompts together; a wrong n counts as one and is refused by validation."""
    return count_prompts(body) * max(1, body.n or 1, body.best_of or 1)


def count_prompts(body: CommonRequest) -> int:
    prompt = body.prompt if isinstance(body, CompletionRequest) else None
    return 1 if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int) else len(prompt)


def check_limits(body: object, limits: DoorConfig, context_tokens: int) -> None:
    for name in ("stop", "stop_sequences"):
        strings = getattr(body, name, None)
        if isinstance(strings, list) and len(strings) > limits.stop_strings:
            what = f"{name} has {len(strings)} strings; at most {limits.stop_strings} are allowed"
            raise InvalidRequest(name, what)
    if not isinstance(body, CommonRequest):
        return
    prompts, choices = count_prompts(body), count_choices(body)
    if choices > limits.choices:
        name, each = ("best_of", body.best_of) if (body.best_of or 0) > (body.n or 1) else ("n", body.n or 1)
        asked = f"{prompts} prompts with {name} = {each}" if prompts > 1 else f"{name} = {each}"
        raise InvalidRequest(
            "prompt" if prompts > (each or 1) else name,
            f"{asked} asks for {choices} choices; n times the prompts of a request may be at most {limits.choices}: "
            "send several requests",
        )
    if isinstance(body, CompletionRequest) and isinstance(body.prompt, list) and body.truncate_prompt_tokens is None:
        for prompt in [body.prompt] if body.prompt and isinstance(body.prompt[0], int) else body.prompt:
            if isinstance(prompt, list):
                validate_prompt_length("prompt", len(prompt), limits, context_tokens, answer=body.max_tokens != 0)

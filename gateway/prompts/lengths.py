"""How long a prompt may be: what the setting `prompt_tokens` and the model's context allow. This file imports little,
because the process that parses large bodies starts with it."""

from mesh.config.door_config import DoorConfig
from mesh.errors import ContextTooLong

MAX_LISTED = 2**21  # logprobs of prompts in one answer


def validate_prompt_length(field: str, tokens: int, limits: DoorConfig, context: int, *, answer: bool = True) -> None:
    """`answer`: at least one token follows."""
    if tokens > limits.prompt_tokens > 0:
        what = f"{field} has {tokens} tokens; this gateway takes at most {limits.prompt_tokens}: shorten it"
        raise ContextTooLong(field, what)
    validate_length(field, tokens, context, answer=answer)


def validate_length(field: str, tokens: int, context: int, *, answer: bool = True) -> None:
    if tokens + answer > context:
        included = ", the answer included" if answer else ""
        limit = f"this model's maximum context length is {context} tokens{included}"
        what = f"{limit}; {field} has {tokens} tokens: shorten it"
        raise ContextTooLong(field, what)

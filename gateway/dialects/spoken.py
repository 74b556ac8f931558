"""The dialect that a path speaks."""

from gateway.dialects.anthropic.errors import AnthropicDialect
from gateway.dialects.common.dialect import OPENAI, Dialect
from gateway.dialects.endpoints.endpoint import ApiDialect
from gateway.dialects.endpoints.paths import dialect_at
from gateway.dialects.ollama.errors import OllamaDialect
from gateway.dialects.responses.errors import ResponsesDialect

DIALECTS: dict[ApiDialect, Dialect] = {
    ApiDialect.OPENAI: OPENAI,
    ApiDialect.RESPONSES: ResponsesDialect(),
    ApiDialect.MESSAGES: AnthropicDialect(),
    ApiDialect.OLLAMA: OllamaDialect(),
}


def spoken_at(path: str) -> Dialect:
    return DIALECTS[dialect_at(path)]

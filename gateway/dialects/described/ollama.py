"""The answers of Ollama's API as msgspec types: answers and lines of a stream are built of them, and /openapi.json
describes them."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

Loose = UnsetType


class OllamaFunction(Struct):
    name: str
    arguments: Any  # an object


class OllamaCall(Struct):
    function: OllamaFunction


class OllamaMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | Loose = UNSET
    tool_calls: list[OllamaCall] | Loose = UNSET


class OllamaAnswer(Struct, kw_only=True):
    """The members that every answer has, and every line of a stream; those below `done` come with the last line. Times
    are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | Loose = UNSET
    total_duration: int | Loose = UNSET
    load_duration: int | Loose = UNSET
    prompt_eval_count: int | Loose = UNSET
    prompt_eval_duration: int | Loose = UNSET
    eval_count: int | Loose = UNSET
    eval_duration: int | Loose = UNSET


class OllamaChatAnswer(OllamaAnswer, kw_only=True):
    message: OllamaMessage


class OllamaTextAnswer(OllamaAnswer, kw_only=True):
    response: str
    thinking: str | Loose = UNSET


class OllamaErrorAnswer(Struct):
    error: str


class OllamaEmbedAnswer(Struct):
    model: str
    embeddings: list[Any]  # lists of numbers
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaDetails(Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaTag(Struct):
    name: str
    model: str
    modified_at: str
    size: int  # 0: the gateway does not read weights
    digest: str
    details: OllamaDetails


class OllamaTags(Struct):
    models: list[OllamaTag]


class OllamaRunning(Struct):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str  # far away: a model is served for as long as the mesh runs
    size_vram: int
    context_length: int


class OllamaRunningModels(Struct):
    models: list[OllamaRunning]


class OllamaModel(Struct):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(Struct):
    version: str

"""Baton's contracts as Python: generated stubs of the versioned packages, and a small async client.

The classes of Baton as a library (`library/`) have their names here too: `from baton import LLM`. They are imported
when somebody asks for one, so that the stubs alone stay small."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from library.adapters import LoRARequest
    from library.async_llm import AsyncLLM
    from library.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from library.llm import LLM
    from library.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput
    from library.params import SamplingParams, StructuredOutputsParams
    from library.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "LoRARequest",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]

_MODULES = {
    "LLM": "library.llm",
    "AsyncLLM": "library.async_llm",
    "BeamSearchOutput": "library.beams",
    "BeamSearchParams": "library.beams",
    "BeamSearchSequence": "library.beams",
    "CompletionOutput": "library.outputs",
    "EmbeddingRequestOutput": "library.outputs",
    "LoRARequest": "library.adapters",
    "RequestOutput": "library.outputs",
    "SamplingParams": "library.params",
    "ScoringRequestOutput": "library.outputs",
    "StructuredOutputsParams": "library.params",
    "TextPrompt": "library.prompts",
    "TokensPrompt": "library.prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "library":
            raise
        raise ImportError(f"{name} needs all of Baton, and only its stubs are installed here") from None

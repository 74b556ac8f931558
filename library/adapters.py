"""`LoRARequest`: the adapter with which prompts are computed, as vLLM's class of this name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int = 0  # vLLM's number of the adapter; here the name and the folder's content say which one it is
    lora_path: str = ""  # a folder in PEFT's form; empty: the name is one of the setting `adapters`


def adapter_of(request: Any) -> LoRARequest | None:
    """TypeError or ValueError where it is none."""
    if request is None or isinstance(request, LoRARequest):
        return request
    try:
        name, path = request.lora_name, request.lora_path
    except AttributeError:
        raise TypeError(f"lora_request must be a LoRARequest, not {type(request).__name__}") from None
    return LoRARequest(str(name), lora_path=str(Path(path)) if path else "")

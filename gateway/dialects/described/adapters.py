"""The answer about an adapter that was loaded or unloaded, as a msgspec type."""

from msgspec import Struct


class AdapterAnswer(Struct):
    message: str  # as vLLM words it
    lora_name: str
    parent: str  # the model that it belongs to
    hash: str  # hash of its content; empty: no worker had it

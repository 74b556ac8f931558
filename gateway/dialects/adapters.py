"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM serves them: for operators.

Where the gateway knows keys, only an operator's key may call them. Without keys nobody is known, so the setting
`gateway.load_adapters` has to allow it. The answer comes when every worker of the model has the adapter, or none."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.routing import BaseRoute

from gateway.core.interface import Core
from gateway.dialects.common.plain_post import AnsweredAtOnce, HttpHost
from gateway.dialects.common.sse import encode
from gateway.dialects.described.adapters import AdapterAnswer
from gateway.dialects.endpoints.paths import routes_of
from gateway.dialects.native.types import LoadAdapterBody, UnloadAdapterBody
from gateway.dialects.openai.request import HttpCaller
from gateway.validation.validate import validate_model
from mesh.errors import Forbidden, InvalidRequest, UnknownModel

Parse = Callable[..., Awaitable[Any]]  # parses a body: its bytes, its type and its caller


class LoadedAdapter(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def digest(self) -> str: ...


class AdapterLoader(Protocol):
    """The core's loads (gateway/attaching/adapter_loading.py)."""

    async def load(self, root: str, name: str, folder: str, *, replace: bool = False) -> LoadedAdapter: ...
    async def unload(self, name: str) -> LoadedAdapter: ...


class AdapterPages:
    def __init__(self, host: HttpHost, core: Core, loader: AdapterLoader, parse: Parse, *, allowed: bool) -> None:
        """`allowed`: who reaches these endpoints may use them."""
        self._host, self._core, self._loader, self._parse = host, core, loader, parse
        self._allowed = allowed

    def routes(self) -> list[BaseRoute]:
        return routes_of(
            {
                "/v1/load_lora_adapter": AnsweredAtOnce(self._host, self._load),
                "/v1/unload_lora_adapter": AnsweredAtOnce(self._host, self._unload),
            }
        )

    async def _load(self, raw: bytes, caller: HttpCaller) -> bytes:
        self._check_allowed()
        body: LoadAdapterBody = await self._parse(raw, LoadAdapterBody, caller)
        name, folder = _given("lora_name", body.lora_name), _given("lora_path", body.lora_path)
        root = self._core.root(validate_model(self._core, body.model))
        adapter = await self._loader.load(root, name, folder, replace=bool(body.load_inplace))
        return _answer(adapter, f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, raw: bytes, caller: HttpCaller) -> bytes:
        self._check_allowed()
        body: UnloadAdapterBody = await self._parse(raw, UnloadAdapterBody, caller)
        name = _given("lora_name", body.lora_name)
        if name not in self._core.models():
            raise UnknownModel(name, self._core.models())
        if self._core.facts(name).adapter is None:
            raise InvalidRequest("lora_name", f"lora_name: {name!r} is a model and no adapter")
        adapter = await self._loader.unload(name)
        return _answer(adapter, f"Success: LoRA adapter '{name}' removed successfully.")

    def _check_allowed(self) -> None:
        if not self._allowed:
            what = "adapters are loaded by operators, and this gateway has no keys_file to know them by"
            raise Forbidden(f"{what}: give it one, or set gateway.load_adapters = true")


def _given(field: str, value: str | None) -> str:
    if not value:
        raise InvalidRequest(field, f"{field} is missing")
    return value


def _answer(adapter: LoadedAdapter, message: str) -> bytes:
    return encode(AdapterAnswer(message, adapter.name, adapter.root, adapter.digest))

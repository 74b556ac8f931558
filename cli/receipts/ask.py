"""Sends the requests of a replay, over HTTP or gRPC, and returns the receipts of their answers."""

import json
import re
from typing import Any

from baton.inference.v1 import inference_pb2
from cli.clients.client import stream
from cli.connecting.answer_text import message_of
from cli.connecting.api_key import api_key_headers
from cli.connecting.http_client import HttpClient, RequestFailed
from cli.connecting.http_url import parse_url
from cli.errors import MeshError
from gateway.receipts.canonical import ReceiptError, read_receipt
from gateway.receipts.draft import split_class
from gateway.receipts.shape import Receipt, ReceiptNumerics, shaped
from gateway.receipts.signing import check_signature
from mesh.network.tls import TlsFiles

ANSWER_SECONDS = 600.0
KEY_PATH = "/receipts/key"
_NO_CLASS, _NO_MODEL = "CLASS_UNAVAILABLE", "UNKNOWN_MODEL"
_ATTACHED = re.compile(r"the decode workers left are of (.*?)\. Start a worker")

Json = dict[str, Any]


class OtherClass(Exception):
    """The mesh has no worker of the receipt's numerics class."""

    def __init__(self, attached: list[ReceiptNumerics]) -> None:
        super().__init__("the mesh has no worker of the receipt's numerics class")
        self.attached = attached  # the classes that it has


class ReplayMesh:
    def __init__(self, url: str, api_key: str = "") -> None:
        self._http = HttpClient(parse_url(url), api_key_headers(api_key), keeps=False)

    async def answer(self, body: Json, model: str) -> Receipt:
        """The receipt of the answer. `model`: the model's name, for a mesh that serves several. MeshError,
        OtherClass."""
        path = "/chat/completions" if "messages" in body else "/completions"
        status, content = await self._fetch("POST", path, body)
        if status == 404 and _reason(content) == _NO_MODEL and not body.get("model"):
            status, content = await self._fetch("POST", path, body | {"model": model})
        if status == 200:
            return receipt_of(content.get("receipt"))
        if _reason(content) == _NO_CLASS:
            raise OtherClass(_classes(_details(content).get("attached", "")))
        where = f"{self._http.url}{path}"
        raise MeshError(f"{where} answers with status {status}: {message_of(content) or 'no reason'}")

    async def key(self) -> str:
        """The public key of the gateway's receipts."""
        status, content = await self._fetch("GET", KEY_PATH)
        key = content.get("key")
        if status != 200 or not isinstance(key, str):
            raise MeshError(f"{self._http.url}{KEY_PATH} answers with status {status} and has no key")
        return key

    async def _fetch(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        url = self._http.url
        try:
            status, content = await self._http.fetch(method, f"{url.path}{path}", body, seconds=ANSWER_SECONDS)
        except RequestFailed as error:
            raise MeshError(f"no gateway answers at {url}: {error.detail}; name it with --url") from None
        return status, content if isinstance(content, dict) else {}


async def ask_grpc(address: str, request: inference_pb2.GenerateRequest, tls: TlsFiles | None) -> Receipt:
    """The receipt of the answer. MeshError, OtherClass."""
    try:
        async for event in stream(address, request, tls):
            if event.WhichOneof("event") == "finished":
                text = event.finished.receipt_json
                return receipt_of(json.loads(text) if text else None)
    except MeshError as error:
        found = _ATTACHED.search(str(error)) if error.reason == _NO_CLASS else None
        if found is None:
            raise
        raise OtherClass(_classes(found[1])) from None
    raise MeshError(f"{address} ended the answer without its last event")


def receipt_of(content: Any) -> Receipt:
    """The checked receipt of an answer."""
    if not isinstance(content, dict):
        raise MeshError("the answer has no receipt: this gateway is older than receipts, or is none of Baton")
    try:
        receipt = read_receipt(json.dumps(content).encode())
        check_signature(receipt)
        found = shaped(receipt)
    except ReceiptError as error:
        raise MeshError(f"the receipt of the answer is broken: {error}") from None
    if len(found.prompts) != 1:
        raise MeshError(f"the receipt of the answer has {len(found.prompts)} prompts; the request had one")
    return found


def _classes(attached: str) -> list[ReceiptNumerics]:
    pairs = [split_class(numerics) for numerics in attached.split(", ") if numerics]
    return [ReceiptNumerics(name, fingerprint) for name, fingerprint in pairs]


def _reason(content: Json) -> str:
    error = content.get("error")
    return str(error.get("reason", "")) if isinstance(error, dict) else ""


def _details(content: Json) -> dict[str, str]:
    error = content.get("error")
    details = error.get("details") if isinstance(error, dict) else None
    return details if isinstance(details, dict) else {}

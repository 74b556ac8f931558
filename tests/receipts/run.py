"""Takes receipts of one mesh and replays them on another, many at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from google.protobuf import json_format

from baton.inference.v1 import inference_pb2 as pb
from cli.clients.client import stream
from cli.receipts.checked import CheckStatus, check_file, read_answer_file
from cli.receipts.compare import ReplayDifference
from cli.receipts.replay import ReplaySource, differences
from tests.receipts.cases import ReceiptCase
from tests.receipts.meshes import Doors

Json = dict[str, Any]
AT_ONCE = 8
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class TakenReceipt:
    case: ReceiptCase
    raw: bytes  # the answer as a client saves it
    key: str  # key of the mesh that gave it

    @property
    def receipt(self) -> Json:
        return read_answer_file(self.raw).receipt

    @property
    def source(self) -> ReplaySource:
        """What its owner gives to `baton replay`: the prompt alone where that is enough, else the request."""
        text = self.case.plain_text
        return ReplaySource(None, self.case.body) if text is None else ReplaySource(text, None)


async def take_all(
    doors: Doors, cases: Sequence[ReceiptCase], on_done: Callable[[], None] = lambda: None
) -> list[TakenReceipt]:
    """The answers, each with a receipt that the key of this mesh signed and that covers every field."""
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(base_url=doors.url, timeout=SECONDS) as client:
        key = str((await client.get("/v1/receipts/key")).json()["key"])

        async def take(case: ReceiptCase) -> TakenReceipt:
            async with room:
                raw = await _over_grpc(doors, case) if case.door == "grpc" else await _over_http(client, case)
            found = check_file(read_answer_file(raw), key)
            assert found.status is CheckStatus.RIGHT, found.fields()
            on_done()
            return TakenReceipt(case, raw, key)

        return list(await asyncio.gather(*map(take, cases)))


async def replay_all(
    doors: Doors, taken: Sequence[TakenReceipt], on_done: Callable[[], None] = lambda: None
) -> list[list[ReplayDifference]]:
    """The differences of each."""
    room = asyncio.Semaphore(AT_ONCE)

    async def replay(each: TakenReceipt) -> list[ReplayDifference]:
        address = doors.grpc if each.case.door == "grpc" else ""
        receipt = check_file(read_answer_file(each.raw), each.key).receipt
        async with room:
            found = await differences(receipt, each.source, url=doors.url, address=address)
        on_done()
        return found

    return list(await asyncio.gather(*map(replay, taken)))


async def _over_http(client: httpx2.AsyncClient, case: ReceiptCase) -> bytes:
    body = case.body | {"receipt": True, "stream": case.door == "stream"}
    reply = await client.post(case.path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.content


async def _over_grpc(doors: Doors, case: ReceiptCase) -> bytes:
    request = json_format.ParseDict(case.body | {"receipt": True}, pb.GenerateRequest())
    events = [event async for event in stream(doors.grpc, request)]
    return "\n".join(json_format.MessageToJson(event) for event in events).encode()

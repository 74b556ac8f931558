"""Takes receipts of one mesh and replays them on another, many at a time."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from google.protobuf import json_format

from baton.inference.v1 import inference_pb2 as pb
from cli.client import stream
from cli.receipts.compare import ReplayDifference
from cli.replay import ReplaySource, differences
from gateway.receipts.canonical import read_receipt
from gateway.receipts.shape import shaped
from gateway.receipts.signing import check_signature
from tests.receipts.cases import ReceiptCase
from tests.receipts.meshes import Doors

Json = dict[str, Any]
AT_ONCE = 8
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class TakenReceipt:
    case: ReceiptCase
    receipt: Json

    @property
    def source(self) -> ReplaySource:
        """What its owner gives to `baton replay`: the prompt alone where that is enough, else the request."""
        text = self.case.plain_text
        return ReplaySource(None, self.case.body) if text is None else ReplaySource(text, None)


async def take_all(
    doors: Doors, cases: Sequence[ReceiptCase], on_done: Callable[[], None] = lambda: None
) -> list[TakenReceipt]:
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(base_url=doors.url, timeout=SECONDS) as client:

        async def take(case: ReceiptCase) -> TakenReceipt:
            async with room:
                receipt = await _over_grpc(doors, case) if case.door == "grpc" else await _over_http(client, case)
            check_signature(receipt)
            on_done()
            return TakenReceipt(case, receipt)

        return list(await asyncio.gather(*map(take, cases)))


async def replay_all(
    doors: Doors, taken: Sequence[TakenReceipt], on_done: Callable[[], None] = lambda: None
) -> list[list[ReplayDifference]]:
    """The differences of each."""
    room = asyncio.Semaphore(AT_ONCE)

    async def replay(each: TakenReceipt) -> list[ReplayDifference]:
        address = doors.grpc if each.case.door == "grpc" else ""
        receipt = shaped(read_receipt(json.dumps(each.receipt).encode()))
        async with room:
            found = await differences(receipt, each.source, url=doors.url, address=address)
        on_done()
        return found

    return list(await asyncio.gather(*map(replay, taken)))


async def _over_http(client: httpx2.AsyncClient, case: ReceiptCase) -> Json:
    body = case.body | {"receipt": True, "stream": case.door == "stream"}
    reply = await client.post(case.path, json=body)
    assert reply.status_code == 200, reply.text
    if case.door == "whole":
        return read_receipt(reply.content)
    frames = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    carrying = json.loads(next(frame for frame in reversed(frames) if '"receipt":{' in frame))
    return read_receipt(json.dumps(carrying.get("response", carrying)).encode())


async def _over_grpc(doors: Doors, case: ReceiptCase) -> Json:
    request = json_format.ParseDict(case.body | {"receipt": True}, pb.GenerateRequest())
    events = [event async for event in stream(doors.grpc, request)]
    return dict(json.loads(events[-1].finished.receipt_json))

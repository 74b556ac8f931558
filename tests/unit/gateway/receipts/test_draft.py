"""What a receipt records of an answer: classes by span of tokens, within a size, and without holding up the loop."""

import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from gateway.answers.events import Delta, Event, Finished
from gateway.receipts.answers.fields import SentAnswer
from gateway.receipts.canonical import MAX_BYTES, canonical
from gateway.receipts.draft import DraftHead, ReceiptDraft
from gateway.receipts.receipts import MAX_CHOICES, Receipts
from gateway.receipts.signing import check_signature
from gateway.validation.client_request import ClientRequest
from gateway.validation.validate import CompleteChoice, ValidRequest
from mesh.messages.jobs import End, Token
from tests.harness.longest_pass import LongestPass, best_of

HEAD = DraftHead("rcpt-" + "f" * 32, "r" * 128, "tiny", 2**33, "1.2.3")
CLASS = "model=" + "a" * 32 + " weights=bf16 kv=bf16 tp=1 path=pairs kernels=12"
LONGEST_SECONDS = 0.05


def valid(prompt: tuple[int, ...] = (1,), brought: tuple[int, ...] = (), choices: int = 1) -> ValidRequest:
    complete = tuple(CompleteChoice(index, brought, None) for index in range(choices))
    return ValidRequest(
        ClientRequest("r", prompt, emitted={0: brought} if brought else {}), 2**64 - 1, (), complete, frozenset()
    )


def delta(index: int, position: int, count: int, fingerprint: str) -> Delta:
    tokens = tuple(Token(position + i, 7 + position + i) for i in range(count))
    return Delta(index, tokens, "", f"{CLASS} fingerprint {fingerprint}")


async def given(events: list[Event]) -> AsyncGenerator[Event, None]:
    for event in events:
        yield event


async def record_of(draft: ReceiptDraft, number: int, events: list[Event]) -> dict[str, Any]:
    assert [event async for event in draft.noting(number, given(events))] == events
    return draft.record()


async def test_each_span_of_tokens_has_its_class() -> None:
    events: list[Event] = [
        delta(0, 2, 3, "one"),
        delta(1, 0, 1, "two"),
        delta(0, 5, 1, "one"),
        delta(0, 6, 2, "two"),
        delta(0, 8, 1, "one"),
        Finished(0, End.LENGTH),
        Finished(1, End.STOP, called=True),
    ]
    record = await record_of(ReceiptDraft(HEAD, [valid(brought=(5, 6), choices=2)]), 0, events)
    assert [each["fingerprint"] for each in record["numerics"]] == ["one", "two"]
    assert record["model_hash"] == "a" * 32
    first, second = record["prompts"][0]["choices"]
    assert (first["tokens"], first["given"], first["spans"]) == (9, 2, [[2, 0], [6, 1], [8, 0]])
    assert (first["finish_reason"], second["finish_reason"]) == ("length", "tool_calls")


async def test_how_tokens_come_in_pieces_changes_nothing() -> None:
    whole = await record_of(ReceiptDraft(HEAD, [valid()]), 0, [delta(0, 0, 9, "one"), Finished(0, End.LENGTH)])
    pieces: list[Event] = [*(delta(0, at, 3, "one") for at in (0, 3, 6)), Finished(0, End.LENGTH)]
    assert await record_of(ReceiptDraft(HEAD, [valid()]), 0, pieces) == whole


@pytest.mark.parametrize(("prompts", "choices"), [(MAX_CHOICES, 1), (1, MAX_CHOICES), (8, MAX_CHOICES // 8)])
async def test_the_largest_receipt_can_be_read(prompts: int, choices: int) -> None:
    draft = ReceiptDraft(HEAD, [valid(choices=choices) for _ in range(prompts)])
    for number in range(prompts):
        for index in range(choices):
            both: list[Event] = [delta(index, 0, 99, "f" * 32), Finished(index, End.STOP, called=True)]
            _ = [event async for event in draft.noting(number, given(both))]
    assert len(canonical(draft.record())) < MAX_BYTES


async def test_no_receipt_holds_up_the_event_loop(tmp_path: Path) -> None:
    """A prompt of a million tokens, a million that the client brought along, and 800 choices besides."""
    receipts = Receipts(
        tmp_path, random=random.Random(1), clock=lambda: 1e9, version="1", seconds=60.0, most_bytes=1 << 22
    )
    ids = tuple(range(1_000_000))
    valids = [valid(ids, ids), *(valid(choices=8) for _ in range(100))]

    async def attempt() -> tuple[Any, float]:
        with LongestPass() as beginning:
            draft = await receipts.begin(valids, model="tiny")
        seconds = beginning.seconds  # now: what follows is not the gateway's work
        for number in range(1, 101):
            for index in range(8):
                _ = [event async for event in draft.noting(number, given([delta(index, 0, 40, "one")]))]
        _ = [event async for event in draft.noting(0, given([delta(0, 1_000_000, 5, "one"), Finished(0, End.STOP)]))]
        with LongestPass() as ending:
            receipt = (await receipts.finish(draft, lambda: SentAnswer({})))["receipt"]
        return receipt, max(seconds, ending.seconds)

    receipt = await best_of(attempt, LONGEST_SECONDS)
    check_signature(receipt)
    assert receipt["prompts"][0]["choices"][0]["given"] == 1_000_000


async def test_receipts_that_cannot_be_kept_reach_their_clients_and_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receipts = Receipts(
        tmp_path, random=random.Random(1), clock=lambda: 1e9, version="1", seconds=60.0, most_bytes=1 << 22
    )
    (tmp_path / "kept").touch()  # no folder can be made there

    async def finished() -> Any:
        draft = await receipts.begin([valid()], model="tiny")
        _ = [event async for event in draft.noting(0, given([delta(0, 0, 9, "one"), Finished(0, End.LENGTH)]))]
        return (await receipts.finish(draft, lambda: SentAnswer({})))["receipt"]

    for _ in range(3):
        check_signature(await finished())
    (tmp_path / "kept").unlink()
    receipt = await finished()
    assert await receipts.find(receipt["id"]) is not None
    first, second = (record.getMessage() for record in caplog.records if record.name == "baton.gateway")
    assert first.startswith("receipts cannot be kept, see the setting receipts_folder")
    assert second == "receipts are kept again; 3 could not be"

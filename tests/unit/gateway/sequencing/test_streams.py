"""A front door reads each token once, and learns where the time went and what speculation saved."""

import asyncio
from dataclasses import replace

import pytest

from gateway.core.interface import Timings
from gateway.sequencing.observer import Unobserved
from gateway.sequencing.requests import GatewayRequest
from gateway.sequencing.streams import RequestStream
from mesh.errors import Cancelled, DeadlineExceeded
from mesh.messages.jobs import End, Token
from mesh.messages.reports import Prefilled, TokenOf, Tokens
from tests.sim.loop import run_virtual
from tests.unit.gateway.fake_mesh import mesh


class CountsHandOffs(Unobserved):
    count = 0

    def handed(self, request: GatewayRequest, now: float) -> None:
        self.count += 1


def test_a_stream_ends_with_the_last_token_and_times_are_those_of_the_choice() -> None:
    async def main() -> tuple[list[int], Timings]:
        m = mesh()
        request = m.accept(max_tokens=4)
        stream = RequestStream(m.sequencer, request)
        prefill, decode = m.serving(request)
        assert request.ticket is not None
        await asyncio.sleep(1.0)
        m.sequencer.on_prefilled(Prefilled(request.ticket, cached_tokens=8, queued_seconds=0.25, computed_seconds=0.75))
        m.token(prefill, request.ticket, 0)
        await asyncio.sleep(0.5)
        drafted = (Token(1, 7, drafted=2), Token(2, 8, accepted=True), Token(3, 9, end=End.LENGTH))
        m.sequencer.on_tokens(m.workers[decode], Tokens(tuple(TokenOf(request.ticket, token) for token in drafted)))
        positions = [token.position async for token in stream.events()]
        await asyncio.sleep(5.0)  # time after the end does not count
        return positions, stream.timings

    positions, timings = run_virtual(main())
    assert positions == [0, 1, 2, 3]
    assert (timings.first_token_seconds, timings.handoff_seconds, timings.total_seconds) == (1.0, 0.5, 1.5)
    assert (timings.queue_seconds, timings.prefill_seconds, timings.cached_tokens) == (0.25, 0.75, 8)
    assert (timings.drafted_tokens, timings.accepted_tokens, timings.decode_steps) == (2, 1, 2)


def test_the_hand_off_is_the_first_one_and_not_that_of_a_resumption() -> None:
    async def main() -> tuple[Timings, int]:
        m = mesh(observer := CountsHandOffs())
        request = m.accept(max_tokens=9)
        stream = RequestStream(m.sequencer, request)
        prefill, decode = m.serving(request)
        await asyncio.sleep(1.0)
        m.token(prefill, request.ticket, 0)
        await asyncio.sleep(0.25)
        m.token(decode, request.ticket, 1)
        await asyncio.sleep(2.0)
        m.end_session(decode)
        await asyncio.sleep(0.5)
        m.token(m.serving(request)[1], request.ticket, 2)
        return stream.timings, observer.count

    timings, count = run_virtual(main())
    assert (timings.handoff_seconds, timings.attempts, count) == (0.25, 2, 1)


@pytest.mark.parametrize("late", [True, False])
def test_a_stream_raises_what_ended_the_request(late: bool) -> None:
    async def main() -> None:
        m = mesh()
        stream = RequestStream(m.sequencer, m.accept(deadline_seconds=2.0))
        if not late:
            stream.cancel()
        async for _ in stream.events():
            pass

    with pytest.raises(DeadlineExceeded if late else Cancelled):
        run_virtual(main())


def test_each_token_has_the_class_that_computed_it_however_late_it_is_read() -> None:
    async def main() -> list[str]:
        m = mesh()
        request = m.accept(max_tokens=4)
        stream = RequestStream(m.sequencer, request)
        prefill, decode = m.serving(request)
        m.token(prefill, request.ticket, 0)
        worker = m.workers[decode]
        worker.hello = replace(worker.hello, fingerprint="other")
        assert request.ticket is not None
        later = (Token(1, 7), Token(2, 8), Token(3, 9, end=End.LENGTH))
        m.sequencer.on_tokens(worker, Tokens(tuple(TokenOf(request.ticket, token) for token in later)))
        assert stream.numerics == ""  # nothing is read yet
        return [stream.numerics.rpartition(" ")[2] async for _ in stream.events()]

    classes = run_virtual(main())
    assert classes[0] != "other" and classes[1:] == ["other"] * 3


def test_a_token_has_its_class_though_an_error_is_held_behind_it() -> None:
    """Its client needs the class to continue elsewhere: the error that ended the request is not a token."""

    async def main() -> tuple[list[str], bool]:
        m = mesh()
        request = m.accept(max_tokens=4)
        stream = RequestStream(m.sequencer, request)
        prefill, _ = m.serving(request)
        m.token(prefill, request.ticket, 0)
        m.sequencer.end(request, DeadlineExceeded("late"))
        classes, failed = list[str](), False
        try:
            async for _ in stream.events():
                classes.append(stream.numerics)
        except DeadlineExceeded:
            failed = True
        return classes, failed

    classes, failed = run_virtual(main())
    assert failed and len(classes) == 1 and classes[0] != ""

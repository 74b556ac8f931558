"""Sessions: heartbeats, the lease on each end's own clock, and an end that was itself stopped."""

import asyncio

import pytest

from mesh.messages.message import Heartbeat, Message
from mesh.messages.orders import Snapshot
from mesh.network.interface import StreamClosed
from mesh.rules import RULES
from mesh.sessions.session import TURN_SECONDS, BadMessage, Session
from tests.sim.loop import VirtualLoop, virtual


class Pipe:
    """A stream whose other end is the test."""

    peer = "test"

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self.sent: list[tuple[float, Message]] = []
        self.closed = False

    def send(self, message: Message) -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))

    async def receive(self) -> Message:
        message = await self.inbox.get()
        if message is None:
            raise StreamClosed("test")
        return message

    def close(self) -> None:
        self.closed = True
        self.inbox.put_nowait(None)


def begin() -> tuple[Pipe, Session, list[Message], "asyncio.Task[None]"]:
    pipe, got = Pipe(), list[Message]()
    session = Session(pipe, rules=RULES, name="test")
    return pipe, session, got, asyncio.ensure_future(session.run(got.append))


@virtual
async def test_an_idle_end_sends_a_heartbeat_every_second() -> None:
    pipe, _, got, task = begin()
    for _ in range(20):
        pipe.inbox.put_nowait(Heartbeat())
        await asyncio.sleep(1)
    assert all(isinstance(message, Heartbeat) for _, message in pipe.sent)
    assert 18 <= len(pipe.sent) <= 20 and got == [], "heartbeats are not handed over"
    task.cancel()


@virtual
async def test_an_end_that_sends_messages_sends_no_heartbeats() -> None:
    pipe, session, _, task = begin()
    for _ in range(40):
        session.send(Snapshot())
        pipe.inbox.put_nowait(Heartbeat())
        await asyncio.sleep(0.3)
    assert {type(message) for _, message in pipe.sent} == {Snapshot}
    task.cancel()


@virtual
async def test_a_session_ends_when_the_other_end_is_silent_for_a_lease() -> None:
    pipe, session, _, task = begin()
    await asyncio.sleep(RULES.lease_seconds - 0.1)
    assert not session.ended
    await asyncio.wait_for(task, RULES.heartbeat_seconds + 0.2)
    assert session.ended and pipe.closed
    sent = len(pipe.sent)
    session.send(Snapshot())
    assert len(pipe.sent) == sent, "nothing leaves after the end"


@virtual
async def test_any_message_renews_the_lease() -> None:
    pipe, session, got, task = begin()
    for _ in range(5):
        await asyncio.sleep(RULES.lease_seconds - 0.5)
        pipe.inbox.put_nowait(Snapshot())
    await asyncio.sleep(0.1)
    assert not session.ended and len(got) == 5
    task.cancel()


@virtual
async def test_an_end_that_was_stopped_itself_renews_the_lease_before_it_judges() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    _, session, _, task = begin()
    await asyncio.sleep(0.5)
    loop._now += 60.0  # SIGSTOP, or a loop that was starved
    await asyncio.sleep(0.1)
    assert not session.ended
    await asyncio.sleep(RULES.lease_seconds - 0.5)
    assert not session.ended
    await asyncio.wait_for(task, 2.0)
    assert session.ended, "after that it does judge"


@pytest.mark.parametrize("stopped", [True, False])
@virtual
async def test_a_session_knows_whether_the_other_end_closed_it_while_this_one_was_stopped(stopped: bool) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    pipe, session, _, task = begin()
    await asyncio.sleep(0.5)
    pipe.inbox.put_nowait(None)
    loop._now += 60.0 if stopped else 0.0
    await asyncio.wait_for(task, 2.0)
    assert session.ended_there and session.given_up is stopped


@virtual
async def test_a_message_that_cannot_be_handled_ends_the_session_and_nothing_else() -> None:
    pipe = Pipe()
    session = Session(pipe, rules=RULES, name="test")

    def fail(message: Message) -> None:
        raise TypeError("no such message")

    pipe.inbox.put_nowait(Snapshot())
    await session.run(fail)
    assert session.ended and pipe.closed


@virtual
async def test_a_bad_message_ends_the_session_with_one_line_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback would be this worker's fault, and a peer could fill the log with them."""
    pipe = Pipe()
    session = Session(pipe, rules=RULES, name="test")

    def refuse(message: Message) -> None:
        raise BadMessage("Snapshot.field: is odd")

    pipe.inbox.put_nowait(Snapshot())
    await session.run(refuse)
    assert session.ended and pipe.closed
    (record,) = caplog.records
    assert record.getMessage() == "session with test ends: Snapshot.field: is odd" and record.exc_info is None


@virtual
async def test_a_message_of_an_ended_session_is_never_handled() -> None:
    pipe, session, got, task = begin()
    await asyncio.sleep(0.1)
    pipe.inbox.put_nowait(Snapshot())
    session.close()
    await task
    assert got == []


async def test_others_run_between_the_messages_of_a_backlog() -> None:
    pipe, seen, passes = Pipe(), list[int](), [0]
    session = Session(pipe, rules=RULES, name="test")
    for _ in range(20):
        pipe.inbox.put_nowait(Snapshot())
    pipe.inbox.put_nowait(None)

    def handle(message: Message) -> None:
        end = asyncio.get_running_loop().time() + 2 * TURN_SECONDS
        while asyncio.get_running_loop().time() < end:
            pass
        seen.append(passes[0])

    running = asyncio.ensure_future(session.run(handle))
    while not running.done():
        await asyncio.sleep(0)
        passes[0] += 1
    assert len(seen) == 20 and len(set(seen)) == 20, "each message in a pass of its own"

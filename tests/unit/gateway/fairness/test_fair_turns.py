"""gateway/fairness/client_turns.py: one client's heap of costly requests does not keep the others out."""

import asyncio

import pytest

from gateway.fairness.client_turns import WHOSE, FairTurns
from mesh.errors import Overloaded


class ClientsAtWork:
    """Requests of several clients; each takes its turn until the test ends it."""

    def __init__(self, *, at_once: int = 1, waiting: int = 4, longest_seconds: float = 60.0) -> None:
        self.turns = FairTurns("requests", at_once=at_once, waiting=waiting, longest_seconds=longest_seconds)
        self.order: list[str] = []
        self._goes_on = asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *names: str) -> None:
        """The letters of a name are the client, the rest is the request."""
        for name in names:
            self.tasks.append(asyncio.create_task(self._request(name)))
            await asyncio.sleep(0)

    async def end(self, turns: int = 1) -> None:
        for _ in range(turns):
            self._goes_on.release()
            for _ in range(4):
                await asyncio.sleep(0)

    async def _request(self, name: str) -> None:
        WHOSE.set(name.rstrip("0123456789"))
        async with self.turns.turn():
            self.order.append(name)
            await self._goes_on.acquire()


async def test_clients_take_turns_however_many_requests_one_has() -> None:
    work = ClientsAtWork()
    await work.ask("a1", "a2", "a3", "b1", "c1")
    await work.end(5)
    assert work.order == ["a1", "a2", "b1", "c1", "a3"]


async def test_of_several_turns_at_once_the_client_with_fewer_comes_first() -> None:
    work = ClientsAtWork(at_once=2)
    await work.ask("a1", "a2", "a3", "a4", "b1")
    await work.end()
    assert work.order == ["a1", "a2", "b1"], "a has a turn still"
    await work.end(4)
    assert work.order[3:] == ["a3", "a4"]


async def test_a_newcomer_takes_the_place_of_the_client_that_holds_most() -> None:
    work = ClientsAtWork()
    await work.ask("a1", "a2", "a3", "a4", "a5", "b1")
    await asyncio.sleep(0)
    assert isinstance(work.tasks[4].exception(), Overloaded), "the last one of a"
    await work.end(2)
    await work.ask("c1")
    await work.end(5)
    assert work.order == ["a1", "a2", "b1", "a3", "c1", "a4"]
    assert all(task.done() for task in work.tasks)


async def test_a_client_cannot_displace_its_own_requests_or_those_of_one_that_has_as_many() -> None:
    work = ClientsAtWork(waiting=2)
    await work.ask("x1", "a1", "b1", "a2", "c1")
    await asyncio.sleep(0)
    refused = [task.exception() for task in work.tasks if task.done()]
    assert [type(error) for error in refused] == [Overloaded, Overloaded] and not work.tasks[1].done()
    assert refused[0] is not None and "nothing of this request has run" in str(refused[0])
    await work.end(3)
    assert work.order == ["x1", "a1", "b1"]


async def test_nothing_waits_longer_than_said() -> None:
    work = ClientsAtWork(longest_seconds=0.01)
    await work.ask("a1", "a2")
    with pytest.raises(Overloaded, match="too many requests wait"):
        await work.tasks[1]
    await work.end()
    await work.ask("a3")
    assert work.order == ["a1", "a3"], "the turn of the one that left was not lost"


async def test_a_turn_that_came_as_its_request_was_cancelled_goes_to_the_next() -> None:
    work = ClientsAtWork()
    await work.ask("a1", "b1", "c1")
    work._goes_on.release()
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # b1's turn has come, and b1 does not know yet
    work.tasks[1].cancel()
    await work.end(2)
    assert "c1" in work.order and all(task.done() for task in work.tasks)


async def test_without_queues_of_their_own_one_client_keeps_the_others_out() -> None:
    """Negative control: the same requests of one client alone."""
    work = ClientsAtWork()
    await work.ask("a1", "a2", "a3", "a4", "a5", "a6")
    await asyncio.sleep(0)
    assert isinstance(work.tasks[5].exception(), Overloaded)
    await work.end(5)
    assert work.order == ["a1", "a2", "a3", "a4", "a5"]

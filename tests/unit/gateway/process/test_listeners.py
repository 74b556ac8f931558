"""A process that leaves hands its listening socket to another one, with the connections that wait in its queue."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cli.local_mesh.loop import PreciseLoop
from cli.local_mesh.ports import free_address
from gateway.http.server import HttpServer, serve_http
from gateway.process.listeners import ListenerExchange
from gateway.process.local_names import LocalNames
from mesh.network.grpc_network import AddressError
from tests.harness.waiting import within

ASK = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
CONNECTIONS = 60  # the kernel spreads them by their ports: each process gets some


class OpenProcess:
    """The HTTP port and the exchange of one process of a gateway."""

    def __init__(self, number: int, http: HttpServer, exchange: ListenerExchange) -> None:
        self.number, self.http, self.exchange = number, http, exchange

    async def leave(self) -> bool:
        handed_over = await self.exchange.hand_over()
        if handed_over:
            self.http.leave()
        return handed_over

    async def close(self) -> None:
        await self.exchange.close()
        await self.http.close()


class ManyProcesses:
    def __init__(self, count: int) -> None:
        self.address, self.name, self.count = free_address(), uuid.uuid4().hex, count
        self.open: list[OpenProcess] = []

    async def start(self, number: int) -> OpenProcess:
        async def page(_: Request) -> Response:
            return PlainTextResponse(str(number))

        exchange = ListenerExchange(self.name, process=number, processes=self.count)
        listener = await exchange.fetch()
        app = Starlette(routes=[Route("/", page)])
        http = await serve_http(app, self.address, shared=True, listener=listener, process=number)
        exchange.serve(http)
        found = OpenProcess(number, http, exchange)
        self.open.append(found)
        return found

    def connect(self, count: int = CONNECTIONS) -> list[socket.socket]:
        """Connections that wait in the kernel: no event loop of this thread runs meanwhile."""
        host, _, port = self.address.rpartition(":")
        return [socket.create_connection((host, int(port))) for _ in range(count)]

    async def close(self) -> None:
        for each in self.open:
            with suppress(OSError):
                await each.close()


@asynccontextmanager
async def gateway_of(count: int) -> AsyncIterator[tuple[ManyProcesses, list[OpenProcess]]]:
    gateway = ManyProcesses(count)
    try:
        yield gateway, [await gateway.start(number) for number in range(count)]
    finally:
        await gateway.close()


async def ask(connected: socket.socket) -> str:
    """The number of the process that answers; "reset" where the connection is lost."""
    try:
        reader, writer = await asyncio.open_connection(sock=connected)
        try:
            writer.write(ASK)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            return (await reader.readexactly(1)).decode()
        finally:
            writer.close()
    except (OSError, EOFError):
        return "reset"


async def ask_all(connected: list[socket.socket]) -> set[str]:
    return set(await asyncio.gather(*map(ask, connected)))


async def holds(process: OpenProcess, *numbers: int) -> None:
    """Returns when the process accepts from the listeners of these."""
    async with asyncio.timeout(5):
        while sorted(process.http.listeners()) != list(numbers):
            await asyncio.sleep(0.01)


def quiet(process: OpenProcess) -> bool:
    return process.http.quiet


def on_loop(factory: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await main()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, PreciseLoop])
def test_no_connection_is_lost_while_processes_leave_and_come_back(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with gateway_of(2) as (gateway, (first, second)):
            waiting = gateway.connect()
            assert await first.leave() and not first.http.listeners()
            assert sorted(second.http.listeners()) == [0, 1]
            waiting += gateway.connect()
            assert "reset" not in await ask_all(waiting)
            assert await ask_all(gateway.connect()) == {"1"}, "the process that stays has all connections"
            await first.close()
            assert await ask_all(gateway.connect()) == {"1"}
            waiting = gateway.connect()
            await gateway.start(0)
            await holds(second, 1)
            assert "reset" not in await ask_all(waiting)
            assert await ask_all(gateway.connect()) == {"0", "1"}, "each has its share again"

    on_loop(loop, main)


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, PreciseLoop])
def test_without_handing_over_waiting_connections_are_reset(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with gateway_of(2) as (gateway, (first, _)):
            waiting = gateway.connect()
            await first.http.close()
            assert "reset" in await ask_all(waiting)

    on_loop(loop, main)


async def test_a_process_hands_on_what_it_has_taken() -> None:
    async with gateway_of(3) as (gateway, (first, second, third)):
        assert await first.leave()
        assert sorted(second.http.listeners()) == [0, 1], "the next one takes it"
        assert await second.leave()
        assert sorted(third.http.listeners()) == [0, 1, 2]
        await first.close()
        await second.close()
        assert not await third.leave(), "nobody is left"
        assert await ask_all(gateway.connect()) == {"2"}
        again = await gateway.start(1)
        await holds(third, 0, 2)
        await holds(again, 1)
        assert await third.leave(), "a later try finds the process that has started meanwhile"
        assert await ask_all(gateway.connect()) == {"1"}


async def test_processes_that_leave_together_keep_their_listeners() -> None:
    async with gateway_of(2) as (gateway, (first, second)):
        assert await asyncio.gather(first.leave(), second.leave()) == [False, False]
        assert await ask_all(gateway.connect()) == {"0", "1"}


async def test_a_process_that_does_not_answer_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.listeners.ANSWER_SECONDS", 0.1)
    async with gateway_of(1) as (gateway, _):
        asking = ListenerExchange(gateway.name + "-x", process=1, processes=2)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            names = LocalNames(gateway.name + "-x", process=0, processes=2, purpose="-listeners")
            silent.bind(names.own)
            silent.listen()
            assert await asking.fetch() is None
            asking.serve(gateway.open[0].http)
            assert not await asking.hand_over()
            await asking.close()
        assert await ask_all(gateway.connect()) == {"0"}


async def test_a_process_ignores_what_is_no_message(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway_of(2) as (gateway, (first, _)):
        for data in (b"{", b'{"kind":"take","listeners":[1]}', b'{"kind":"fetch","listeners":[0]}', b"", b"7" * 5000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.setblocking(False)
                line.connect(LocalNames(gateway.name, process=0, processes=2, purpose="-listeners").own)
                line.send(data)
                await asyncio.sleep(0.05)
        assert list(first.http.listeners()) == [0]
        assert await ask_all(gateway.connect()) == {"0", "1"}


async def test_two_processes_with_one_number_hear_of_it() -> None:
    async with gateway_of(2) as (gateway, (first, _)):
        with pytest.raises(AddressError, match="has the number 0"):
            ListenerExchange(gateway.name, process=0, processes=2).serve(first.http)


async def test_connections_that_a_leaving_server_has_are_served_once_more() -> None:
    async with gateway_of(2) as (gateway, (first, _)):
        kept = [await asyncio.open_connection(sock=each) for each in gateway.connect(20)]
        numbers = list[str]()
        for reader, writer in kept:
            writer.write(ASK)
            assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
            numbers.append((await reader.readexactly(1)).decode())
        assert set(numbers) == {"0", "1"}
        assert await first.leave()
        assert not quiet(first)
        await asyncio.sleep(0.1)
        for number, (reader, writer) in zip(numbers, kept, strict=True):
            writer.write(ASK + ASK)
            heads = [await reader.readuntil(b"\r\n\r\n")]
            assert await reader.readexactly(1) == number.encode(), "the process that had the connection serves on"
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            assert await reader.readexactly(1) == number.encode()
            closes = tuple(b"connection: close" in head for head in heads)
            assert closes == (False, number == "0"), "the last answer of a pipeline ends the connection"
            writer.close()
        await within(5, lambda: quiet(first))


async def test_a_leaving_server_waits_for_requests_on_idle_connections_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.http.server.IDLE_SECONDS", 0.3)
    async with gateway_of(2) as (gateway, (first, _)):
        idle = gateway.connect()
        await asyncio.sleep(0.05)
        assert await first.leave()
        assert not quiet(first)
        await within(5, lambda: quiet(first))
        for each in idle:
            each.close()

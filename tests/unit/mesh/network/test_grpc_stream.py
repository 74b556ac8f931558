"""Streams over real sockets deliver in order, end for both sides, and cost nothing while idle."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import grpc
import pytest

from mesh.messages.jobs import Job, Sampling, Ticket, Token
from mesh.messages.kv_messages import KvHello, Landing, Ready
from mesh.messages.message import Heartbeat
from mesh.messages.orders import Cancel, Open
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Load, TokenOf, Tokens
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_stream import GrpcStream, pieces
from mesh.network.interface import Channel, Stream, StreamClosed
from tests.harness.waiting import within
from tests.unit.mesh.grpc_ports import echo, listening

TICKET = Ticket(1, 1, bytes(16))
KV_HELLO = KvHello(1, "fp32", opaque_pages((2, 2048), content="model"), "host", 0, 1)


async def test_messages_arrive_in_order_and_come_back_in_order() -> None:
    async with listening({Channel.ATTACH: echo}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        for number in range(500):
            stream.send(Cancel(1, number))
        assert [await stream.receive() for _ in range(500)] == [Load(waiting=number) for number in range(500)]
        stream.close()


async def test_kv_sessions_carry_both_directions() -> None:
    async def decode(stream: Stream) -> None:
        assert await stream.receive() == KV_HELLO
        stream.send(KV_HELLO)
        ready = await stream.receive()
        assert isinstance(ready, Ready)
        stream.send(Landing(ready.ticket, 0, (3, 4)))
        await stream.receive()

    async with listening({Channel.KV: decode}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.KV)
        stream.send(KV_HELLO)
        stream.send(Ready(TICKET))
        assert await stream.receive() == KV_HELLO
        assert await stream.receive() == Landing(TICKET, 0, (3, 4))
        stream.close()


async def test_a_step_of_a_thousand_tokens_and_a_long_prompt_pass() -> None:
    step = Tokens(tuple(TokenOf(TICKET, Token(i, i, -0.5, tuple(range(20)), (0.5,) * 20)) for i in range(20_000)))

    async def worker(stream: Stream) -> None:
        stream.send(step)
        await stream.receive()

    async with listening({Channel.ATTACH: worker}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        assert await stream.receive() == step  # far beyond gRPC's default of 4 MiB
        stream.close()


async def test_what_was_queued_before_close_still_arrives() -> None:
    received: list[object] = []

    async def worker(stream: Stream) -> None:
        while True:
            received.append(await stream.receive())

    async with listening({Channel.ATTACH: worker}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        for number in range(200):
            stream.send(Cancel(1, number))
        stream.close()
        stream.close()
        stream.send(Heartbeat())
        with pytest.raises(StreamClosed):
            await stream.receive()
        await within(60, lambda: len(received) == 200)
        assert received == [Cancel(1, number) for number in range(200)]


async def test_closing_the_served_end_ends_the_dialling_end_after_what_was_sent() -> None:
    async def worker(stream: Stream) -> None:
        stream.send(Load(waiting=1))
        stream.close()

    async with listening({Channel.ATTACH: worker}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        assert await stream.receive() == Load(waiting=1)
        with pytest.raises(StreamClosed, match="ended the stream"):
            await stream.receive()
        stream.close()


async def test_closing_the_dialling_end_wakes_the_service_with_stream_closed() -> None:
    ended: list[type[BaseException]] = []

    async def worker(stream: Stream) -> None:
        try:
            await stream.receive()
        except BaseException as error:
            ended.append(type(error))
            raise

    async with listening({Channel.ATTACH: worker}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        stream.close()
        await within(60, lambda: ended == [StreamClosed])


async def test_bytes_that_are_no_message_end_the_stream() -> None:
    ended = asyncio.Event()

    async def worker(stream: Stream) -> None:
        try:
            await stream.receive()
        except StreamClosed as closed:
            assert "no message" in str(closed)
            ended.set()

    async with listening({Channel.ATTACH: worker}) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            call = channel.stream_stream("/baton.worker.v1.WorkerService/Attach")()
            await call.write(b"\xff\xff")
            async with asyncio.timeout(60):
                await ended.wait()


async def test_a_slow_receiver_holds_the_sender_back_without_losing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.network.grpc_stream.INBOX_MESSAGES", 8)
    go, received, served = asyncio.Event(), [], []

    async def worker(stream: Stream) -> None:
        served.append(stream)
        await go.wait()
        while True:
            received.append(await stream.receive())

    async with listening({Channel.ATTACH: worker}) as server:
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        for number in range(5_000):
            stream.send(Cancel(1, number))
        await within(60, lambda: len(served) == 1 and len(served[0]._inbox) == 8)
        await asyncio.sleep(0.1)
        assert len(served[0]._inbox) == 8
        go.set()
        await within(60, lambda: len(received) == 5_000)
        assert received == [Cancel(1, number) for number in range(5_000)]
        stream.close()


async def test_a_peer_that_stopped_reading_does_not_hold_up_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.network.grpc_stream.INBOX_MESSAGES", 2)

    async def worker(stream: Stream) -> None:
        await asyncio.sleep(3600)

    network = GrpcNetwork()
    server = await network.listen("127.0.0.1:0", {Channel.ATTACH: worker})
    stream = await network.dial(server.address, Channel.ATTACH)
    assert isinstance(stream, GrpcStream)
    for _ in range(100):  # far beyond every window and inbox
        stream.send(Open(Job(TICKET, (1,), (), Sampling(), salt=bytes(2**20)), None))
    await asyncio.sleep(0.2)
    stream.close()
    async with asyncio.timeout(20):
        await stream.closed()
    async with asyncio.timeout(20):
        await server.close()


async def test_closing_leaves_no_task_and_no_connection_behind() -> None:
    async with listening({Channel.ATTACH: echo}) as server:
        before = asyncio.all_tasks()
        stream = await GrpcNetwork().dial(server.address, Channel.ATTACH)
        assert isinstance(stream, GrpcStream)
        stream.send(Cancel(1, 1))
        await stream.receive()
        stream.close()
        await stream.closed()
        await within(60, lambda: not any("127.0.0.1" in t.get_name() for t in asyncio.all_tasks() - before))


async def test_a_killed_peer_ends_the_stream_at_both_kinds_of_end(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio
        from mesh.network.grpc_network import GrpcNetwork
        from mesh.messages.jobs import Ticket
        from mesh.messages.kv_messages import Ready
        from mesh.network.interface import Channel
        async def serve(stream):
            while True:
                await stream.receive()
        async def main():
            network = GrpcNetwork()
            server = await network.listen("127.0.0.1:0", {Channel.ATTACH: serve})
            print(server.address, flush=True)
            stream = await network.dial(await asyncio.to_thread(input), Channel.KV)
            stream.send(Ready(Ticket(1, 1, bytes(16))))
            await asyncio.sleep(60)
        asyncio.run(main())
    """)
    served: list[str] = []

    async def decode(stream: Stream) -> None:
        assert await stream.receive() == Ready(TICKET)
        served.append("ready")
        try:
            await stream.receive()
        except StreamClosed:
            served.append("closed")

    async with listening({Channel.KV: decode}) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            process.stdin.write(f"{server.address}\n".encode())
            stream = await GrpcNetwork().dial(address, Channel.ATTACH)
            await within(60, lambda: served == ["ready"])
            process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(60):
                with pytest.raises(StreamClosed):
                    await stream.receive()
            await within(60, lambda: served == ["ready", "closed"])
            stream.send(Cancel(1, 1))  # swallowed
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_an_idle_stream_costs_next_to_nothing() -> None:
    async with listening({Channel.ATTACH: echo}) as server:
        streams = [await GrpcNetwork().dial(server.address, Channel.ATTACH) for _ in range(4)]
        before = time.process_time()
        await asyncio.sleep(1.5)
        assert time.process_time() - before < 0.3  # a loop that spins takes all of the 1.5 seconds
        for stream in streams:
            stream.close()


def test_a_message_of_many_tokens_arrives_in_pieces_that_keep_requests_whole() -> None:
    tickets = [Ticket(number, 1, bytes(16)) for number in range(200)]
    items = tuple(TokenOf(ticket, Token(0, 5)) for ticket in tickets)
    assert [len(piece.items) for piece in pieces(Tokens(items)) if isinstance(piece, Tokens)] == [32] * 6 + [8]
    drafted = tuple(TokenOf(tickets[i // 50], Token(i, 5)) for i in range(120))
    found = [piece for piece in pieces(Tokens(drafted)) if isinstance(piece, Tokens)]
    assert [len(piece.items) for piece in found] == [50, 50, 20]
    assert tuple(item for piece in found for item in piece.items) == drafted
    for message in (Tokens(items[:32]), Heartbeat()):
        assert list(pieces(message)) == [message]

"""The network inside one process: what each end sees when a test holds, breaks or cuts its ordered streams."""

import asyncio
from random import Random

import pytest

from mesh.messages.codec import CodecError
from mesh.messages.jobs import Ticket, Tier
from mesh.messages.kv_messages import Abort, Ready
from mesh.messages.message import Message
from mesh.messages.orders import Cancel
from mesh.messages.reports import Register
from mesh.network.interface import Channel, Stream, StreamClosed
from mesh.network.memory_network import MemoryNetwork, MemoryStream
from tests.sim.loop import run_virtual, virtual


def ready(number: int) -> Ready:
    return Ready(Ticket(number, 1, bytes(16)))


def abort(number: int) -> Abort:
    return Abort(Ticket(number, 1, bytes(16)))


async def pair(network: MemoryNetwork) -> tuple[MemoryStream, Stream]:
    arrived: asyncio.Queue[Stream] = asyncio.Queue()

    async def accept(stream: Stream) -> None:
        arrived.put_nowait(stream)
        await asyncio.sleep(1000)

    await network.host("there").listen("there", {Channel.KV: accept})
    return await network.host("here").dial("there", Channel.KV), await arrived.get()


@virtual
async def test_a_process_that_closes_its_port_late_leaves_the_port_of_its_successor_open() -> None:
    network = MemoryNetwork(Random(1))
    arrived = list[Stream]()

    async def accept(stream: Stream) -> None:
        arrived.append(stream)

    old = await network.host("there").listen("there", {Channel.KV: accept})
    network.unlisten("there")  # its process is stopped, and another one gets its address
    new = await network.host("there").listen("there", {Channel.KV: accept})
    await old.close()
    await network.host("here").dial("there", Channel.KV)
    await new.close()
    with pytest.raises(StreamClosed):
        await network.host("here").dial("there", Channel.KV)
    assert len(arrived) == 1


@virtual
async def test_messages_arrive_once_and_in_order_in_both_directions() -> None:
    here, there = await pair(MemoryNetwork(Random(1)))
    for number in range(200):
        here.send(ready(number))
        there.send(abort(number))
    assert [await there.receive() for _ in range(200)] == [ready(n) for n in range(200)]
    assert [await here.receive() for _ in range(200)] == [abort(n) for n in range(200)]


@virtual
async def test_what_has_no_bytes_in_a_direction_does_not_travel_there() -> None:
    here, there = await pair(MemoryNetwork(Random(1)))
    for stream, message in ((here, abort(0)), (there, ready(0)), (here, Cancel(1, 1))):
        with pytest.raises(CodecError):
            stream.send(message)


@virtual
async def test_messages_sent_before_a_close_arrive_and_then_the_end() -> None:
    here, there = await pair(MemoryNetwork(Random(1)))
    here.send(ready(0))
    here.close()
    here.send(ready(0))
    assert await there.receive() == ready(0)
    for stream in (there, here):
        with pytest.raises(StreamClosed):
            await stream.receive()


@virtual
async def test_a_broken_stream_loses_what_is_on_its_way_and_both_ends_notice() -> None:
    network = MemoryNetwork(Random(1))
    here, there = await pair(network)
    here.send(ready(0))
    network.snap("here", "there")
    for stream in (there, here):
        with pytest.raises(StreamClosed):
            await asyncio.wait_for(stream.receive(), 1)


@virtual
async def test_a_held_message_holds_what_follows_it_on_its_stream_only() -> None:
    network = MemoryNetwork(Random(1))
    here, there = await pair(network)

    def held(source: str, target: str, message: Message) -> bool:
        return message == ready(1)

    release = network.hold(held)
    for number in range(3):
        here.send(ready(number))
    there.send(abort(0))
    assert await there.receive() == ready(0) and await here.receive() == abort(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(there.receive(), 5)
    release()
    assert [await there.receive() for _ in range(2)] == [ready(1), ready(2)]


@virtual
async def test_a_dial_fails_where_no_service_listens_for_that_channel() -> None:
    network = MemoryNetwork(Random(1))
    await pair(network)
    for address, channel in (("nowhere", Channel.KV), ("there", Channel.ATTACH)):
        with pytest.raises(StreamClosed):
            await network.host("here").dial(address, channel)
    with pytest.raises(StreamClosed):
        await network.host("here").register("there", Register("here", Tier.DECODE, 1))


@virtual
async def test_one_service_at_a_time_listens_at_an_address() -> None:
    network = MemoryNetwork(Random(1))
    listening = await network.host("a").listen("a", {})
    with pytest.raises(OSError, match="in use"):
        await network.host("b").listen("a", {})
    await listening.close()
    await network.host("b").listen("a", {})


def test_the_same_seed_gives_the_same_timing() -> None:
    async def main(seed: int) -> list[tuple[float, str, str, str]]:
        network = MemoryNetwork(Random(seed))
        here, there = await pair(network)
        for _ in range(5):
            here.send(ready(0))
            await there.receive()
        return network.log

    assert run_virtual(main(1)) == run_virtual(main(1)) != run_virtual(main(2))

"""RDMA's own promises: a destroyed key is the proof, and what a peer sends harms nothing. UCX imitates one-sided writes
over TCP here; `make rdma-check` repeats the core of it over a real device."""

import asyncio
import subprocess
import sys
import weakref
from contextlib import asynccontextmanager
from random import SystemRandom
from threading import Event

import pytest

from kvtransfer import rdma as rdma_module
from kvtransfer import rdma_gate, rdma_writer
from kvtransfer.frames import GREETING_BYTES, PoolHandle, Welcome
from kvtransfer.nixl_agent import Agent, AgentError, RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma import Rdma, RdmaOptions
from kvtransfer.rdma_frames import JOINED, PageRegion, RdmaOffer, page_regions, read_offer
from kvtransfer.rdma_writer import KIND
from kvtransfer.side_channel import dial, greet, hung_up, take
from kvtransfer.transfer import Span, TransferError
from mesh.config.config_checks import ConfigError
from mesh.messages.page_shape import opaque_pages
from tests.harness.waiting import within
from tests.mutants.rdma import without_key
from tests.rdma.fabric import IMITATED, transport

TICKET = bytes(range(32))
WRITER, RECEIVER = 0xA11CE, 0xB0B
SPAN = Span(0, 1, 2, 0, 6)
WHOLE = [Span(page, page, page, 0, 6) for page in range(64)]


@pytest.fixture
def rdma(nixl):
    return transport(IMITATED)


async def lands_late(pair):
    """Does a write land of a writer that the end of its connection does not stop?"""
    pair.target.buffer[:] = bytes(len(pair.target.buffer))

    def insist():
        for _ in range(3):
            try:
                pair.writer._end.send(WHOLE, Event().wait, 1.0)
            except AgentError:
                pass

    await asyncio.get_running_loop().run_in_executor(pair.writer._sender, insist)
    return any(pair.target.buffer)


async def test_a_look_at_a_writer_changes_nothing(rdma, new_pair):
    async with new_pair(rdma) as pair:
        assert not await pair.receiver.silent(WRITER, 0)
        await pair.writer.write(TICKET, [SPAN], 0)
        assert pair.same(SPAN)


async def test_after_silent_no_write_lands_whatever_the_writer_does(rdma, new_pair):
    async with new_pair(rdma) as pair:
        await pair.writer.write(TICKET, [SPAN], 0)
        assert await lands_late(pair), "the writer works"
        (gate,) = pair.receiver._gates[WRITER]
        agent = weakref.ref(gate._agent._nixl.agent)
        assert await pair.receiver.silent(WRITER, 30)
        assert agent() is None, "over a device, only its end destroys the key"
        assert not await lands_late(pair)
        assert await pair.receiver.silent(WRITER, 0)


async def test_negative_control_while_the_key_stays_a_late_write_lands(rdma, new_pair, monkeypatch):
    async with new_pair(rdma) as pair:
        without_key(monkeypatch.setattr)
        assert await pair.receiver.silent(WRITER, 30)
        assert await lands_late(pair)


async def test_an_agent_that_does_not_end_is_no_proof(rdma, new_pair, caplog):
    async with new_pair(rdma) as pair:
        (gate,) = pair.receiver._gates[WRITER]
        kept = gate._agent._nixl.agent
        assert not await pair.receiver.silent(WRITER, 1)
        await within(30, lambda: "still in use" in caplog.text)
        assert not await pair.receiver.silent(WRITER, 0)
        del kept


async def test_silence_of_one_writer_leaves_the_others_alone(rdma, new_pair):
    async with new_pair(rdma) as pair:
        other = await rdma.connect(pair.receiver.handle(7), pair.source, 7)
        assert await pair.receiver.silent(7, 30)
        await pair.writer.write(TICKET, [SPAN], 0)
        assert pair.same(SPAN)
        with pytest.raises(TransferError):
            await other.write(TICKET, [SPAN], 0)
        other.close()


async def test_a_writer_that_was_never_here_is_silent(rdma, new_pair):
    async with new_pair(rdma) as pair:
        assert await pair.receiver.silent(12345, 0)


async def test_a_handle_opens_one_connection(rdma, new_pair):
    async with new_pair(rdma) as pair:
        handle = pair.receiver.handle(7)
        (await rdma.connect(handle, pair.source, 7)).close()
        with pytest.raises(TransferError):
            await rdma.connect(handle, pair.source, 7)


async def test_an_unused_handle_opens_nothing_once_its_writer_was_said_to_be_silent(rdma, new_pair):
    async with new_pair(rdma) as pair:
        handle = pair.receiver.handle(7)
        assert not await pair.receiver.silent(7, 0), "it could still bring a key"
        assert await pair.receiver.silent(7, 1)
        with pytest.raises(TransferError):
            await rdma.connect(handle, pair.source, 7)
        assert pair.receiver.refused["token"] == 1


async def test_the_end_of_a_connection_destroys_its_key(rdma, new_pair):
    async with new_pair(rdma) as pair:
        pair.writer.close()
        await pair.until(lambda: not pair.receiver._gates)
        assert await pair.receiver.silent(WRITER, 0)


async def test_silence_ends_a_writer_that_is_still_connecting(rdma, new_pair):
    async with new_pair(rdma) as pair:
        connecting = asyncio.ensure_future(rdma.connect(pair.receiver.handle(7), pair.source, 7))
        await pair.until(lambda: pair.receiver._gates.get(7))
        assert await pair.receiver.silent(7, 30)
        with pytest.raises(TransferError):
            await connecting


async def test_an_address_of_another_host_is_refused_by_its_setting(nixl):
    elsewhere = Rdma(SystemRandom(), RdmaOptions(host="203.0.113.7", fabric=IMITATED))
    pool = SharedPool(opaque_pages((1, 64), content="test"), 1)
    with pytest.raises(ConfigError, match="transport_host: rdma cannot listen on 203"):
        await elsewhere.receive(pool, RECEIVER)
    pool.close()


async def test_a_write_that_does_not_end_is_given_up_once_the_key_is_gone(nixl, new_pair, monkeypatch):
    """Prefill may say Quiet as soon as a write has failed."""
    async with new_pair(transport(IMITATED, write_seconds=0.3)) as pair:
        (gate,) = pair.receiver._gates[WRITER]
        gate._look_seconds = 600.0  # the imitation lands nothing while the receiver's agent makes no progress
        await asyncio.sleep(0.05)
        with pytest.raises(TransferError, match="in time"):
            await pair.writer.write(TICKET, WHOLE, 0)
        assert not pair.receiver._gates
        assert not await lands_late(pair)


async def test_a_writer_that_does_not_write_its_probe_gets_no_further(rdma, new_pair):
    async with new_pair(rdma) as pair:
        handle = PoolHandle.unpack(pair.receiver.handle(7))
        host, _, port = handle.address.rpartition(":")

        def join():
            with dial((host, int(port)), 30.0) as connection:
                welcome = greet(connection, handle, 7, pair.source.shape, name="rdma")
                read_offer(lambda count: take(connection, count), welcome.pages, pair.source.shape.page_bytes)
                connection.sendall(JOINED)
                return connection.recv(100) == b"" and hung_up(connection, 30.0)

        assert await asyncio.get_running_loop().run_in_executor(None, join)
        assert pair.receiver.refused["malformed"] == 1
        assert await pair.receiver.silent(7, 0)


@asynccontextmanager
async def offering(pair, offer):
    """A receiver that welcomes each writer, then sends these bytes."""

    async def talk(reader, stream):
        await reader.readexactly(GREETING_BYTES)
        welcome = Welcome(True, RECEIVER, pair.target.pages, pair.target.shape)
        stream.write(welcome.pack() + offer)
        await reader.read()
        stream.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield PoolHandle(KIND, bytes(16), RECEIVER, f"{host}:{port}").pack()
    finally:
        server.close()


@pytest.mark.parametrize("what", ["noise", "cut off", "no key", "the writer's own name", "other addresses"])
async def test_metadata_that_do_not_fit_end_the_connection_and_nothing_else(rdma, new_pair, what):
    async with new_pair(rdma) as pair:
        regions = page_regions(pair.target.address, pair.target.pages, pair.target.shape.page_bytes)
        strange = Agent("prefill-7" if what == "the writer's own name" else "strange", IMITATED)
        if what != "no key":
            size = pair.target.shape.page_bytes * pair.target.pages
            strange.register([(pair.target.address, size)])
        metadata = strange.metadata()
        if what == "noise":
            metadata = bytes(range(256)) * 8
        elif what == "cut off":
            metadata = metadata[: len(metadata) // 2]
        elif what == "other addresses":
            regions = (PageRegion(1 << 40, pair.target.pages),)
        offer = RdmaOffer(regions, 1 << 41, metadata).pack()
        async with offering(pair, offer) as handle:
            with pytest.raises(TransferError):
                await rdma.connect(handle, pair.source, 7)
        strange.destroy()
        await pair.writer.write(TICKET, [SPAN], 0)
        assert pair.same(SPAN)


async def test_an_offer_of_fewer_pages_than_the_welcome_names_is_refused(rdma, new_pair):
    async with new_pair(rdma) as pair:
        offer = RdmaOffer((PageRegion(1 << 40, 63),), 1 << 41, b"x").pack()
        async with offering(pair, offer) as handle:
            with pytest.raises(TransferError, match="63 pages"):
                await rdma.connect(handle, pair.source, 7)


async def test_a_pool_of_several_regions_lands_where_it_belongs(rdma, new_pair, monkeypatch):
    for module in (rdma_gate, rdma_writer):  # five pages and a bit
        monkeypatch.setattr(module, "page_regions", lambda *pool: page_regions(*pool, most_bytes=5 * 6 * 4096 + 100))
    async with new_pair(rdma) as pair:
        await pair.writer.write(TICKET, WHOLE, 0)
        assert pair.source.buffer == pair.target.buffer


def test_ucx_takes_no_way_without_keys_whatever_the_environment_says(nixl, monkeypatch):
    """Over `cma` or shared memory a write needs no key, and a destroyed one proves nothing."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    Agent("imitated", IMITATED).destroy()
    with pytest.raises(AgentError, match="over rc"):
        Agent("over the wire", RdmaFabric(devices="lo"))


def test_a_process_that_had_an_agent_ends_with_its_own_status(nixl):
    """Two copies of libnl-route, the package's and rdma-core's, crash in a destructor."""
    code = (
        "import sys; from kvtransfer.nixl_agent import Agent, RdmaFabric;"
        "Agent('a', RdmaFabric('tcp', 'lo')).destroy(); sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True).returncode == 7


def test_an_agent_that_was_destroyed_does_nothing(nixl):
    agent = Agent("a", IMITATED)
    agent.destroy()
    agent.destroy()
    with pytest.raises(AgentError, match="destroyed"):
        agent.metadata()


def test_it_says_why_it_is_not_available(monkeypatch):
    monkeypatch.setattr(rdma_module, "missing_package", lambda: "no package")
    assert Rdma(SystemRandom()).available() == "no package"
    monkeypatch.setattr(rdma_module, "missing_package", lambda: "")
    monkeypatch.setattr(rdma_module, "missing_device", lambda: "no device")
    assert Rdma(SystemRandom()).available() == "no device"
    monkeypatch.setattr(rdma_module, "missing_device", lambda: "")
    monkeypatch.setattr(rdma_module, "missing_pinned_memory", lambda: "no memory")
    assert Rdma(SystemRandom()).available() == "no memory"
    monkeypatch.setattr(rdma_module, "missing_pinned_memory", lambda: "")
    monkeypatch.setattr(rdma_module, "unusable", lambda fabric: f"nothing over {fabric.ways}")
    assert Rdma(SystemRandom()).available() == "nothing over rc"
    assert "advertise_host" in Rdma(SystemRandom(), RdmaOptions(host="0.0.0.0")).available()


async def test_pages_of_a_gpu_are_none_of_its_business(rdma):
    class Elsewhere:
        pages = 1

    with pytest.raises(TypeError, match="Elsewhere"):
        await rdma.receive(Elsewhere(), RECEIVER)

"""Fuzz target of the writer's half of the KV wires: handles, welcomes and offers of a decode worker that is not sound.

The writer refuses what no receiver sends by ValueError, OSError or TransferError, which its session expects. What it
accepts has been checked: an address that a socket takes, pages that convert, memory of the stated size. Then it copies
drawn spans, with page ids as a Landing names them: a page that no span names stays as it is."""

import socket
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from kvtransfer.address import host_and_port
from kvtransfer.frames import Malformed, PoolHandle, Welcome
from kvtransfer.mapped_writer import _take
from kvtransfer.pool import SharedPool, attach, span_table
from kvtransfer.rdma_frames import PROBE_BYTES, PageRegion, RdmaOffer, RegionPages, joined_runs, read_offer
from kvtransfer.shm import HostCopies
from kvtransfer.side_channel import greet
from kvtransfer.tcp_writer import PLAIN, TLS, _parse, _welcome
from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_fit import page_obstacle
from mesh.messages.page_shape import PageShape
from tests.fuzz.cases import ODD_INTS, Wrong, chance, mutated
from tests.fuzz.drawn_shapes import OURS, drawn_shape, shape_of
from tests.fuzz.drawn_spans import drawn_spans

PAGES, RECEIVER = 4, 0xB0B
REFUSALS = (ValueError, OSError, TransferError)
TARGETS = (OURS, shape_of(4), shape_of(8, "gpu-v1"))
_POOLS: dict[PageShape, SharedPool] = {}
_HOSTS = ("127.0.0.1", "[::1]", "::1", "", "a.b", "x" * 300, "\0", "a\0b", "é", "127.0.0.1:1")
_PORTS = ("7001", "0", "65535", "65536", "-1", "9" * 30, "٣", " 7", "1_0", "", "x")


def kv_welcomes(rng: Random) -> bool:
    """A case reaches deep states when the writer accepts what the receiver says."""
    try:
        return rng.choice((_handle, _plain, _mapped, _mapped, _beside, _offer))(rng)
    except REFUSALS:
        return False


def _handle(rng: Random) -> bool:
    """A writer reads a handle, and then its address."""
    kind = rng.choice((PLAIN, PLAIN, TLS, b"SHM1", b"\0\0\0\0"))
    address = f"{rng.choice(_HOSTS)}:{rng.choice(_PORTS)}"
    raw = PoolHandle(kind, rng.randbytes(16), rng.choice(ODD_INTS), address).pack()
    handle = _parse(mutated(rng, raw) if chance(rng, 0.4) else raw, PLAIN)
    host, port = host_and_port(handle.address)
    if not (0 < port < 65536 and host and "\0" not in host and len(host) < 256):
        raise Wrong(f"{handle.address!r} is dialled")
    return True


def _drawn_welcome(rng: Random, shape: PageShape) -> bytes:
    stated = shape if chance(rng, 0.8) else drawn_shape(rng)
    right = Welcome(True, RECEIVER, PAGES, stated)
    match rng.randrange(10):
        case 0:
            return replace(right, pages=rng.choice(ODD_INTS)).pack()
        case 1:
            return replace(right, receiver=rng.choice(ODD_INTS)).pack()
        case 2:
            return replace(right, accepted=False).pack()
        case 3 | 4:
            return mutated(rng, right.pack())
        case _:
            return right.pack()


def _sent(raw: bytes, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """The writer's end of a connection whose receiver has sent this and hung up."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
        theirs.sendall(raw)
    return mine


def _plain(rng: Random) -> bool:
    with _sent(_drawn_welcome(rng, OURS)) as mine:
        _accepted(_welcome(mine, RECEIVER, OURS))
    return True


def _beside(rng: Random) -> bool:
    """RDMA's and NCCL's handshake beside the bytes."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(_drawn_welcome(rng, OURS))
        theirs.shutdown(socket.SHUT_WR)
        handle = PoolHandle(b"RDM1", bytes(16), RECEIVER, "127.0.0.1:1")
        welcome = greet(mine, handle, 1, OURS, name="rdma")
        _accepted(welcome)
        if welcome.shape != OURS:
            raise Wrong("pages of another form are accepted over a transport that converts nothing")
    return True


def _accepted(welcome: Welcome) -> None:
    if not welcome.accepted or welcome.receiver != RECEIVER or page_obstacle(OURS, welcome.shape):
        raise Wrong(f"{welcome} is accepted")


def _mapped(rng: Random) -> bool:
    """Take a welcome with a descriptor, map the memory behind it, and copy spans into it."""
    shape = rng.choice(TARGETS)
    pool, source = _pool(shape), _pool(OURS, "source")
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        descriptors = [pool.fd] if chance(rng, 0.95) else []
        socket.send_fds(theirs, [_drawn_welcome(rng, shape)], descriptors)

        def into(fd: int, form: PageShape, pages: int) -> Any:
            return HostCopies(source, attach(fd, form, pages))

        copies, target = _take(mine, into, RECEIVER, OURS, "shm")
    try:
        spans = drawn_spans(rng, OURS, source.pages, target, PAGES)
        before = bytes(pool.buffer)
        named = {span.target for span in spans}
        try:
            sums = copies.copy(spans)
        except IndexError:
            if bytes(pool.buffer) != before:
                raise Wrong("spans outside of the pools were refused after bytes had been written") from None
            return False
        size = target.page_bytes  # as the receiver states it: its memory may hold fewer pages of a larger form
        for page in set(range(len(before) // size)) - named:
            if pool.buffer[page * size : (page + 1) * size] != before[page * size : (page + 1) * size]:
                raise Wrong(f"page {page} was written, and no span names it")
        if len({(span.target, span.first_layer) for span in spans}) == len(spans) == 1 and target == shape:
            span = spans[0]
            if sums != (pool.checksum(span.target, span.first_layer, span.layers),):
                raise Wrong(f"{span} has another checksum than its page")
        return True
    finally:
        copies.close()


def _offer(rng: Random) -> bool:
    """An offer over RDMA: every address that follows from it lies in its regions."""
    sizes = [rng.choice((1, 2, 3, *ODD_INTS)) for _ in range(rng.randint(1, 3))]
    starts = [rng.choice((1 << 20, 1 << 40, 8, *ODD_INTS)) for _ in sizes]
    regions = tuple(PageRegion(at, size) for at, size in zip(starts, sizes, strict=True))
    raw = RdmaOffer(regions, rng.choice((1 << 30, *ODD_INTS)), rng.randbytes(rng.choice((1, 16, 0)))).pack()
    raw = mutated(rng, raw) if chance(rng, 0.3) else raw
    at, pages = 0, sum(sizes) if chance(rng, 0.9) else rng.choice(ODD_INTS)

    def take(count: int) -> bytes:
        nonlocal at
        if at + count > len(raw):
            raise Malformed("the receiver hung up")
        at += count
        return raw[at - count : at]

    offer = read_offer(take, pages, OURS.page_bytes)
    places = RegionPages.of(offer.regions, OURS.page_bytes)
    spans = [Span(0, 0, rng.choice((0, 1, pages - 1, pages, pages >> 1)), 0, 1) for _ in range(3)]
    try:
        target = span_table(spans, _pool(OURS, "source"), places.pages).T[1]
    except (IndexError, OverflowError):
        return True
    found = places.addresses(target)
    for address in found.tolist():
        if not any(each.address <= address < each.address + each.pages * OURS.page_bytes for each in offer.regions):
            raise Wrong(f"address {address} lies in no region of {offer.regions}")
    joined_runs(found, found, np.full(3, 64, np.int64), np.ones(2, bool))
    return not offer.probe + PROBE_BYTES > 1 << 63


def _pool(shape: PageShape, name: str = "") -> SharedPool:
    key: Any = (shape, name)
    if key not in _POOLS:
        pool = _POOLS[key] = SharedPool(shape, PAGES)
        pool.buffer[:] = bytes(i * 7 % 251 for i in range(len(pool.buffer)))
    return _POOLS[key]

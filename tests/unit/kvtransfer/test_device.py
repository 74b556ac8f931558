"""Pools on a GPU and what is special about their transports: portions and handles."""

import os
import random

import pytest

from kvtransfer import device_pool
from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.device_pool import check_spans, grouped, portions, read_handle
from kvtransfer.frames import Malformed
from kvtransfer.nccl import NcclTransport
from kvtransfer.nccl_library import Nccl
from kvtransfer.portions import as_spans, pack_portion, portion_bytes, unpack_portion
from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_shape import opaque_pages
from tests.unit.kvtransfer.on_device import FakeCommunicators, OpenPool

SHAPE, TICKET = opaque_pages((6, 4096), content="gpu-bf16-16-64-v1"), bytes(range(32))
SPANS = [Span(index, index, index, index % 2, 2) for index in range(10)]


def test_portions_keep_the_order_and_stay_within_their_limits(monkeypatch):
    monkeypatch.setattr(device_pool, "BLOCK_BYTES", 3 * 8192)
    parts = list(portions(SPANS, SHAPE))
    assert [len(part) for part in parts] == [3, 3, 3, 1] and [one for part in parts for one in part] == SPANS
    assert [len(part) for part in portions(SPANS, SHAPE, most=2)] == [2] * 5
    assert [len(part) for part in portions([Span(0, 0, 0, 0, 6)] * 2, SHAPE)] == [1, 1]  # larger than the limit
    assert list(portions([], SHAPE)) == []


def test_a_write_larger_than_a_block_goes_in_several_and_is_whole(monkeypatch):
    monkeypatch.setattr(device_pool, "BLOCK_BYTES", 3 * 8192)
    pool = OpenPool(SHAPE, 10)
    pool.memory.random_(0, 256)
    assert pool.checksums(range(10), 0, 6) == tuple(pool.checksum(page, 0, 6) for page in range(10))
    pool.close()


def test_frames_tell_which_blocks_follow():
    raw = pack_portion(TICKET, SPANS, 2, range(10), SHAPE)
    head, rest = raw[:8], raw[8:]
    assert portion_bytes(head) == len(rest)
    frames = unpack_portion(rest, SHAPE)
    assert [(frame.round, frame.checksum) for frame in frames] == [(2, index) for index in range(10)]
    assert list(grouped(as_spans(frames), SHAPE)) == list(grouped(SPANS, SHAPE))


@pytest.mark.parametrize("head", [b"XXXX\1\0\0\0", b"BPOR\0\0\0\0", b"BPOR\xff\xff\xff\xff"])
def test_a_portion_without_sense_is_malformed(head):
    with pytest.raises(Malformed):
        portion_bytes(head)


def test_spans_outside_are_named():
    with pytest.raises(IndexError, match="target=10"):
        check_spans([Span(0, 0, 10, 0, 1)], SHAPE, 10, 10)


def test_a_pool_on_a_gpu_has_no_bytes_for_the_host_and_hands_over_a_handle_only():
    pool = OpenPool(SHAPE, 2)
    with pytest.raises(TypeError, match="cuda_ipc and nccl"):
        device_pool.DevicePool.view(pool, 0, 0, 1)
    assert len(read_handle(pool.fd)) == 64
    with pytest.raises(PermissionError):
        os.write(pool.fd, b"another handle")
    pool.close()
    pool.close()


async def test_a_stale_memory_handle_is_a_transfer_error(new_pair, tmp_path):
    transport = CudaIpc(random.SystemRandom(), folder=tmp_path)
    async with new_pair(transport) as pair:
        handle = pair.receiver.handle(7)
        pair.target.driver.free(pair.target.memory)
        with pytest.raises(TransferError, match="no such memory"):
            await transport.connect(handle, pair.source, 7)


def test_a_host_that_nobody_can_dial_is_refused_by_the_settings_name():
    assert (
        "transport_host"
        in NcclTransport(random.SystemRandom(), host="0.0.0.0", communicators=FakeCommunicators()).available()
    )
    assert NcclTransport(random.SystemRandom(), communicators=FakeCommunicators()).available() == ""


def test_without_cuda_nccl_says_why_not():
    import torch

    if torch.version.cuda is None:
        assert "torch brings no NCCL" in Nccl().available()

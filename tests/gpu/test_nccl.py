"""NCCL on a real GPU: blocks through the library torch brings, to itself and between two processes on one GPU."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvtransfer import nccl_library

ROOT = Path(__file__).parents[2]
TWO_ON_ONE = 23000  # the first version that takes two ranks on one GPU


def version() -> int:
    found = ctypes.c_int()
    nccl_library._call("ncclGetVersion", ctypes.byref(found))
    return found.value


def test_a_block_that_a_rank_sends_itself_arrives_whole(device):
    handle, unique = ctypes.c_void_p(), nccl_library._Unique.from_buffer_copy(nccl_library.Nccl().unique())
    nccl_library._call("ncclCommInitRank", ctypes.byref(handle), ctypes.c_int(1), unique, ctypes.c_int(0))
    sent = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, device=device)
    got, stream = torch.zeros_like(sent), torch.cuda.current_stream()
    nccl_library._call("ncclGroupStart")
    for call, block in (("ncclSend", sent), ("ncclRecv", got)):
        nccl_library._call(
            call, ctypes.c_void_p(block.data_ptr()), ctypes.c_size_t(block.numel()), ctypes.c_int(1), ctypes.c_int(0),
            handle, ctypes.c_void_p(stream.cuda_stream),
        )  # fmt: skip
    nccl_library._call("ncclGroupEnd")
    torch.cuda.synchronize()
    assert torch.equal(sent, got)
    nccl_library._call("ncclCommAbort", handle)


def test_two_processes_hand_pages_over_and_an_end_breaks_the_wait(device):
    if version() < TWO_ON_ONE and torch.cuda.device_count() < 2:
        pytest.skip(f"NCCL {version()} takes one rank on a GPU; two need {TWO_ON_ONE} or a second GPU")
    assert said() == ["equal", "broken"]


def test_a_writer_that_is_killed_while_it_should_join_leaves_no_wait_in_the_receiver(device):
    assert said("desert") == ["joining", "gone"]


def said(*arguments: str) -> list[str]:
    environment = os.environ | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    command = [sys.executable, "-m", "tests.gpu.nccl_peers", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()

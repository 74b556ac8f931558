"""Bodies, threads, the self-test and what happens without a library."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import build, library, machine, selftest


def test_self_test_gives_one_fingerprint_per_path():
    prints = {path: bk.self_test(path) for path in bk.PATHS}
    assert len(set(prints.values())) == len(bk.PATHS) == 3 and all(len(p) == 32 for p in prints.values())
    bk.set_threads(3)
    assert {path: bk.self_test(path) for path in bk.PATHS} == prints
    bk.choose("avx2")
    assert {path: bk.self_test(path) for path in bk.PATHS} == prints and machine.forced() == "avx2"


def test_self_test_refuses_a_body_whose_bits_differ(monkeypatch):
    honest = selftest._run
    monkeypatch.setattr(selftest, "_run", lambda path: honest(path) + ("" if machine.forced() == "plain" else "0"))
    with pytest.raises(bk.KernelError, match="self-test of path 'pairs' failed"):
        bk.self_test("pairs")
    assert machine.forced() is None


def test_bodies_can_be_forced_and_unknown_ones_are_refused():
    assert "plain" in bk.bodies()["product.fp32"]
    bk.choose("plain")
    assert set(bk.chosen().values()) == {"plain"}
    with pytest.raises(bk.KernelError, match="gpu"):
        bk.choose("gpu")
    with pytest.raises(bk.KernelError, match="threads"):
        bk.set_threads(0)


def test_exp_and_log_are_accurate_and_equal_in_all_bodies(rng, bits):
    x = np.concatenate(
        [np.exp(rng.uniform(-80, 80, 5000)), rng.uniform(0.5, 2, 5000), [1.0, 0.0, 1e-45, np.inf]]
    ).astype(np.float32)
    y = np.concatenate([rng.uniform(-87, 88, 10000), [0.0, -0.0, -np.inf, np.nan]]).astype(np.float32)

    def compute():
        outs = [np.empty_like(x) for _ in range(4)]
        for pair, values in ((outs[:2], x), (outs[2:], y)):
            library.load().log_exp(values.ctypes.data, pair[0].ctypes.data, pair[1].ctypes.data, len(values))
        return np.concatenate([outs[0], outs[3]])

    got = bits.same(compute)
    logs, exps = got[: len(x)], got[len(x) :]
    expected = np.log(x[:-3].astype(np.float64))
    assert (np.abs(logs[:-3] - expected) <= 2e-7 * np.maximum(np.abs(expected), 0.5)).all()
    assert np.isneginf(logs[-3:-1]).all()
    assert np.abs(exps[:-4] / np.exp(y[:-4].astype(np.float64)) - 1).max() <= 4e-7
    assert exps[-4] == 1 and exps[-3] == 1 and exps[-2] == 0 and np.isnan(exps[-1])


def test_denormals_are_flushed_inside_and_the_callers_mode_is_restored():
    tiny = np.float32(1e-39)
    weight = np.zeros(bk.pack_bytes("fp32", 1, 1), np.uint8)
    bk.pack("fp32", np.array([[1.0]], np.float32), weight)
    out = np.full((1, 1), np.nan, np.float32)
    bk.product(np.array([[tiny]], np.float32), weight, out)
    assert out[0, 0] == 0.0
    assert np.array([tiny]) * np.float32(1.0) == tiny


def test_calls_from_several_python_threads_take_turns(rng):
    weight = np.zeros(bk.pack_bytes("pairs", 512, 512), np.uint8)
    bk.pack("pairs", rng.standard_normal((512, 512)).astype(np.float32), weight)
    x = rng.standard_normal((64, 512)).astype(np.float32)
    expected = np.empty((64, 512), np.float32)
    bk.product(x, weight, expected)
    wrong = []

    def work():
        out = np.empty((64, 512), np.float32)
        for _ in range(30):
            out[:] = np.nan
            bk.product(x, weight, out)
            if not np.array_equal(out, expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_idle_threads_burn_no_processor_time():
    """Those that spin take the whole time, on one core together."""
    bk.set_threads(1)
    others = set(Path("/proc/self/task").iterdir())
    bk.set_threads(4)
    x = np.ones((64, 256), np.float32)
    bk.rmsnorm(x, np.ones(256, np.float32), 1e-6, np.empty_like(x))
    own = set(Path("/proc/self/task").iterdir()) - others
    before = computed(own)
    time.sleep(0.3)
    assert len(own) == 3 and computed(own) - before < 0.1


def computed(threads):
    """Seconds for which these threads have computed so far."""
    fields = [(thread / "stat").read_text().rpartition(")")[2].split() for thread in threads]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def test_without_the_library_import_works_and_says_what_to_do(monkeypatch, tmp_path):
    code = (
        "import pathlib, baton_kernels as bk; from baton_kernels import library\n"
        "library._FILE = pathlib.Path('/nonexistent/x.so'); print(bk.available())\n"
        "try: bk.threads()\nexcept bk.KernelError as error: print(error)"
    )
    root = Path(library.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(root)}, check=True
    )
    assert done.stdout.count("python -m baton_kernels.build") == 2
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="install g\\+\\+"):
        build.build(tmp_path / "x.so")
    assert list(tmp_path.iterdir()) == []


def test_importing_loads_neither_torch_nor_the_library():
    code = (
        "import sys, baton_kernels; from baton_kernels import library\n"
        "print('torch' in sys.modules, library.load.cache_info().currsize)"
    )
    root = Path(library.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(root)}, check=True
    )
    assert done.stdout.split() == ["False", "0"]

"""A storm's faults of the kernel: what a host lacks is named, each kind gets its turn, nothing outlives the storm."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.chaos.namespaces import KERNEL, NamespaceSet, StormNamespace, missing, removed_at_end, rules
from tests.chaos.storm import NETWORK, PROCESS, StormStrikes
from tests.chaos.storm_mesh import StormMesh
from tests.harness.process import ROOT

CHILD = """
import os, signal, sys
from tests.chaos.namespaces import removed_at_end
with removed_at_end([f"touch {sys.argv[1]}"]):
    print("in", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("user", "without", "kinds", "why"),
    [
        (0, "", (), ""),
        (0, "nft", ("drop", "deafen", "mute"), "apt-get install nftables"),
        (0, "tc", ("narrow",), "apt-get install iproute2"),
        (0, "ip", tuple(KERNEL), "apt-get install iproute2"),
        (1000, "", tuple(KERNEL), "only root"),
    ],
)
def test_what_a_host_lacks_is_named_for_each_kind(user: int, without: str, kinds: tuple[str, ...], why: str) -> None:
    found = missing(lambda program: None if program == without else f"/sbin/{program}", user)
    assert set(found) == set(kinds) and all(why in text for text in found.values())


def test_a_fault_hits_the_ways_that_it_names() -> None:
    assert "input" in rules("deafen", "eth", "") and "output" not in rules("deafen", "eth", "")
    assert "output" in rules("mute", "eth", "") and "input" not in rules("mute", "eth", "")
    assert rules("drop", "eth", "numgen random mod 100 < 7 ").count("< 7 counter drop") == 2


def test_what_was_made_is_removed_at_the_end_and_not_before(tmp_path: Path) -> None:
    with removed_at_end([f"touch {tmp_path}/removed"]):
        time.sleep(0.05)
        assert not (tmp_path / "removed").exists()
    assert (tmp_path / "removed").exists()


def test_what_was_made_is_removed_when_the_storm_is_killed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        (sys.executable, "-c", CHILD, f"{tmp_path}/removed"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None and child.stdout.readline() == "in\n"
    assert not (tmp_path / "removed").exists()
    child.communicate("\n")
    assert child.returncode == -9
    end = time.monotonic() + 20
    while not (tmp_path / "removed").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def strikes(**unavailable: str) -> tuple[StormStrikes, StormNamespace]:
    space = StormNamespace("storm-1-decode-0", "198.18.1.11", "in", "out")
    mesh = StormMesh([], [], proxies=dict.fromkeys(("prefill-1", "decode-1")))  # type: ignore[arg-type]
    network = NamespaceSet("198.18.1.1", {"decode-0": space}, unavailable)
    return StormStrikes(mesh, Random(1), network), space


def drawn(storm: StormStrikes, name: str, count: int) -> list[str]:
    for _ in range(count):
        storm.done.append((0.0, storm.kind_for(name), name))
    return [kind for _, kind, other in storm.done if other == name]


def test_every_kind_that_fits_a_worker_strikes_before_any_strikes_twice() -> None:
    storm, _ = strikes()
    assert set(drawn(storm, "decode-0", len(KERNEL) + 2)) == {*PROCESS, *KERNEL}
    assert set(drawn(storm, "prefill-1", 5)) == {*PROCESS, *NETWORK}
    assert set(drawn(storm, "gateway-0", 2)) == set(PROCESS)
    assert len(set(drawn(storm, "decode-1", 3))) == 3 and set(NETWORK) == set(drawn(storm, "decode-1", 0))


def test_a_fault_that_lasts_or_that_the_host_has_not_does_not_strike() -> None:
    storm, space = strikes(narrow="tc is missing")
    space.active.add("mute")
    assert set(drawn(storm, "decode-0", 30)) == {*PROCESS, *KERNEL} - {"narrow", "mute"}


def test_without_network_only_processes_are_struck() -> None:
    storm, _ = strikes()
    storm.network = None
    assert set(drawn(storm, "decode-0", 10)) == set(drawn(storm, "decode-1", 10)) == set(PROCESS)

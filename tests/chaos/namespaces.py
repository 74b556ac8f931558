"""Network namespaces for a storm: each is a host of its own to the network, joined to this one by a bridge.

The kernel disturbs their network: packets are dropped at random, one way or both, the cable is unplugged, the link gets
narrow. This needs root, iproute2 and nftables; what a host lacks is named, and its kinds of faults are left out. All of
it goes when this process ends, however it ends: a shell waits for the end of a pipe and removes it."""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}  # program -> the package that has it
# kind of fault -> the program that makes it, beside ip
KERNEL = {"unplug": "ip", "narrow": "tc", "drop": "nft", "deafen": "nft", "mute": "nft"}
NETWORK = "198.18"  # addresses that are reserved for tests of networks (RFC 2544)
REMOVE_SECONDS = 20.0
_WAYS = {"drop": ("input", "output"), "deafen": ("input",), "mute": ("output",)}


class CommandRefused(Exception):
    """The kernel, or a program, refuses a command; the text says which and why."""


@dataclass
class StormNamespace:
    name: str
    address: str
    inside: str  # name of its network device
    outside: str  # name of the other end, which is in the bridge
    active: set[str] = field(default_factory=set)  # kinds of faults that disturb it now
    affected: Counter[str] = field(default_factory=Counter)  # packets that each kind has dropped or delayed

    @property
    def command(self) -> tuple[str, ...]:
        """Begins the command line of a process that runs in this namespace."""
        return "ip", "netns", "exec", self.name

    def begin(self, kind: str, random: Random) -> None:
        """One fault of each kind disturbs a namespace at a time."""
        if kind in _WAYS:
            share = f"numgen random mod 100 < {random.randint(5, 30)} " if kind == "drop" else ""
            run(*self.command, "nft", "-f", "-", text=rules(kind, self.inside, share))
        elif kind == "narrow":
            rate = ("tbf", "rate", f"{random.randint(1, 4)}mbit", "burst", "16kb", "latency", "400ms")
            for where, device in self._devices():
                run("tc", *where, "qdisc", "replace", "dev", device, "root", *rate)
        else:
            run("ip", "-n", self.name, "link", "set", self.inside, "down")
        self.active.add(kind)

    def end(self, kind: str) -> None:
        """Count what the fault has done, and end it."""
        self.active.discard(kind)
        if kind in _WAYS:
            found = run(*self.command, "nft", "list", "table", "inet", f"storm_{kind}")
            self.affected[kind] += sum(map(int, re.findall(r"packets (\d+)", found)))
            run(*self.command, "nft", "delete", "table", "inet", f"storm_{kind}")
        elif kind == "narrow":
            for where, device in self._devices():
                found = run("tc", *where, "-s", "qdisc", "show", "dev", device)
                self.affected[kind] += sum(map(int, re.findall(r"overlimits (\d+)", found)))
                run("tc", *where, "qdisc", "del", "dev", device, "root")
        else:
            run("ip", "-n", self.name, "link", "set", self.inside, "up")

    def _devices(self) -> Sequence[tuple[tuple[str, ...], str]]:
        return (("-n", self.name), self.inside), ((), self.outside)


@dataclass
class NamespaceSet:
    host: str  # address of this host for them
    spaces: dict[str, StormNamespace]  # by the name that the caller gave; empty: the host has none
    unavailable: dict[str, str]  # kind of fault -> why it is left out
    token: Path | None = None  # file with the token of a mesh that they reach; None: no other host reaches it


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[NamespaceSet]:
    """A namespace for each name."""
    number, unavailable = os.getpid(), missing()
    made = NamespaceSet("127.0.0.1", {}, unavailable)
    if set(unavailable) == set(KERNEL):
        yield made
        return
    bridge, subnet = f"bs{number}", f"{NETWORK}.{number % 254 + 1}"
    spaces = {
        name: StormNamespace(
            f"storm-{number}-{name}", f"{subnet}.{place}", f"in{number}-{place}", f"out{number}-{place}"
        )
        for place, name in enumerate(names, 11)
    }
    folder = Path(tempfile.mkdtemp(prefix="baton-storm-"))
    undo = [f"ip netns del {each.name}; ip link del {each.outside}" for each in spaces.values()]
    with removed_at_end([*undo, f"ip link del {bridge}", f"rm -r {folder}"]):
        try:
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "addr", "add", f"{subnet}.1/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
            for space in spaces.values():
                _join(space, bridge)
            made.host, made.spaces, made.token = f"{subnet}.1", spaces, folder / "token"
            made.token.write_text(secrets.token_hex(32) + "\n")
            unavailable |= _refused(next(iter(spaces.values())))
        except CommandRefused as error:
            unavailable |= dict.fromkeys(KERNEL, str(error))
        yield made


def missing(which: Callable[[str], str | None] = shutil.which, user: int | None = None) -> dict[str, str]:
    """Kinds of faults for which this host lacks something, with the text that says what."""
    if (os.geteuid() if user is None else user) != 0:
        return dict.fromkeys(KERNEL, "only root may make network namespaces")
    without = {program: f"{program} is missing: apt-get install {package}" for program, package in PACKAGES.items()}
    lacking = {program: why for program, why in without.items() if which(program) is None}
    if "ip" in lacking:
        return dict.fromkeys(KERNEL, lacking["ip"])
    return {kind: lacking[program] for kind, program in KERNEL.items() if program in lacking}


def rules(kind: str, device: str, share: str) -> str:
    """The table of one fault for nft. `share`: which packets it hits; empty: all."""
    names = {"input": "iifname", "output": "oifname"}
    chains = "".join(
        f"chain {way} {{ type filter hook {way} priority 0; {names[way]} {device} {share}counter drop; }}\n"
        for way in _WAYS[kind]
    )
    return f"table inet storm_{kind} {{\n{chains}}}\n"


def run(*command: str, text: str = "") -> str:
    """Stdout of a command; CommandRefused when it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandRefused(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextmanager
def removed_at_end(commands: Sequence[str]) -> Iterator[None]:
    """Run these commands of a shell when the block ends, or this process, even by kill -9."""
    script = "cat >/dev/null; " + "; ".join(commands)
    quiet = subprocess.DEVNULL
    helper = subprocess.Popen(
        ("sh", "-c", script), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield
    finally:
        helper.communicate(timeout=REMOVE_SECONDS)


def _join(space: StormNamespace, bridge: str) -> None:
    run("ip", "netns", "add", space.name)
    run("ip", "link", "add", space.outside, "type", "veth", "peer", "name", space.inside, "netns", space.name)
    run("ip", "link", "set", space.outside, "master", bridge, "up")
    run("ip", "-n", space.name, "addr", "add", f"{space.address}/24", "dev", space.inside)
    for device in ("lo", space.inside):
        run("ip", "-n", space.name, "link", "set", device, "up")


def _refused(space: StormNamespace) -> dict[str, str]:
    """Kinds of faults that this kernel does not make, each tried once."""
    found = dict[str, str]()
    for kind in set(KERNEL) - set(missing()):
        try:
            space.begin(kind, Random(0))
            space.end(kind)
        except CommandRefused as error:
            found[kind] = str(error)
    space.affected.clear()
    return found

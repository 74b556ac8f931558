"""`python -m tests.chaos.namespace_check`: what each fault of the kernel does to a namespace's network, shown.

A process in a namespace answers datagrams. Without a fault all arrive and all are answered. With each fault it must be
otherwise in that fault's own way, and afterwards as before. Needs root; ends with one JSON object and status 1 where a
kind is missing or does not do what it should."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from random import Random
from socket import AF_INET, SO_RCVBUF, SOCK_DGRAM, SOL_SOCKET, socket
from typing import IO

from tests.chaos.namespaces import KERNEL, StormNamespace, namespaces

DATAGRAMS, SIZE, WAIT_SECONDS = 200, 1200, 0.3
SETTLES_SECONDS = 1.5  # after a fault: what waits behind a narrow link arrives, a plugged cable is noticed
# Answers each datagram, and each line of its stdin with the number of datagrams so far.
SERVER = """
import socket, sys, threading
way, count = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
way.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
way.bind((sys.argv[1], 9))
def lines():
    for line in sys.stdin:
        print(count, flush=True)
threading.Thread(target=lines, daemon=True).start()
print("ready", flush=True)
while True:
    data, sender = way.recvfrom(2000)
    count += 1
    try:
        way.sendto(data, sender)
    except OSError:
        pass
"""
# kind -> whether so many datagrams arrived, and so many answers came back in time
EXPECTED = {
    "": lambda arrived, answered: arrived == answered == DATAGRAMS,
    "drop": lambda arrived, answered: 0 < answered < arrived < DATAGRAMS,
    "deafen": lambda arrived, answered: arrived == 0,
    "mute": lambda arrived, answered: arrived == DATAGRAMS and answered == 0,
    "unplug": lambda arrived, answered: arrived == 0,
    "narrow": lambda arrived, answered: 0 < answered < DATAGRAMS,
}


def probe(space: StormNamespace, server: "subprocess.Popen[str]", kind: str) -> tuple[int, int]:
    before = _count(server)
    if kind:
        space.begin(kind, Random(0))
    with socket(AF_INET, SOCK_DGRAM) as way:
        way.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)
        way.setblocking(False)
        answered, end = 0, time.monotonic() + WAIT_SECONDS
        for number in range(DATAGRAMS):
            with suppress(BlockingIOError):  # a narrow link takes no more now
                way.sendto(number.to_bytes(4, "big") * (SIZE // 4), (space.address, 9))
            time.sleep(WAIT_SECONDS / DATAGRAMS / 4)
        while time.monotonic() < end:
            try:
                way.recv(2000)
                answered += 1
            except BlockingIOError:
                time.sleep(0.001)
    arrived = _count(server) - before
    if kind:
        space.end(kind)
        time.sleep(SETTLES_SECONDS)
    return arrived, answered


def _count(server: "subprocess.Popen[str]") -> int:
    to, back = server.stdin, server.stdout
    assert to is not None and back is not None
    return int(_ask(to, back))


def _ask(to: IO[str], back: IO[str]) -> str:
    to.write("\n")
    to.flush()
    return back.readline()


def check() -> dict[str, object]:
    found, wrong = dict[str, dict[str, int]](), list[str]()
    with namespaces(("check",)) as made:
        wrong += [f"{kind}: {why}" for kind, why in made.unavailable.items()]
        for space in made.spaces.values():
            server = subprocess.Popen(
                (*space.command, sys.executable, "-c", SERVER, space.address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert server.stdout is not None and server.stdout.readline() == "ready\n"
                for kind in [each for one in KERNEL if one not in made.unavailable for each in (one, "")]:
                    arrived, answered = probe(space, server, kind)
                    found[kind or "none"] = {"arrived": arrived, "answered": answered}
                    if not EXPECTED[kind](arrived, answered):
                        wrong.append(f"{kind or 'without a fault'}: {arrived} arrived, {answered} were answered")
            finally:
                server.kill()
                server.wait()
    return {"sent": DATAGRAMS, "found": found, "wrong": wrong}


def main() -> int:
    report = check()
    print(json.dumps(report))
    return int(bool(report["wrong"]))


if __name__ == "__main__":
    sys.exit(main())

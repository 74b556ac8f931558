"""`python -m tests.sim.way [--write]`: the files that one streaming chat runs through, from socket to last byte.

A simulated mesh answers one request over a connection inside this process, after another one has warmed it up. Every
function of the product that is called meanwhile counts, in the gateway and in both workers; the model alone is not the
product's own (tests/sim/model.py). docs/architecture.md holds the list, and a test holds it to what really ran."""

import argparse
import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from gateway.routing.router import Local
from tests.sim.http_mesh import HELLO, HttpMesh
from tests.sim.loop import virtual

CHAT = {**HELLO, "stream": True, "messages": [{"role": "user", "content": "how does a page travel? " * 4}]}

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("gateway", "prefill_svc", "decode_svc", "engine", "kvtransfer", "mesh")
PAGE, BEGIN, END = "docs/architecture.md", "<!-- way: begin -->", "<!-- way: end -->"
WIDTH = 120


@virtual
async def files_of_one_chat() -> list[str]:
    """Files of the product, in the order in which they are entered first."""
    found = dict[str, None]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found.setdefault(frame.f_code.co_filename)

    mesh = await HttpMesh(local=Local.NEVER).start(1, 1)
    status, _ = await mesh.post({**HELLO, "stream": True, "seed": 2})  # what is made once is no part of a request's way
    assert status == 200
    await asyncio.sleep(5.0)
    sys.setprofile(note)
    try:
        status, body = await mesh.post(CHAT)
    finally:
        sys.setprofile(None)
    assert status == 200 and body.endswith(b"data: [DONE]\n\n"), body[-200:]
    paths = (Path(name) for name in found)
    inside = [path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)]
    return [path for path in inside if path.split("/")[0] in ROOMS]


def described(files: list[str]) -> str:
    """The list as the page has it: rooms in the order in which they are entered, and their files."""
    rooms = dict[str, list[str]]()
    for path in files:
        room, _, name = path.rpartition("/")
        rooms.setdefault(room, []).append(name.removesuffix(".py"))
    text = [f"{len(files)} files:", ""]
    text += [f"* `{room}`: {', '.join(names)}" for room, names in rooms.items()]
    return "\n".join(text)


def block(text: str) -> str:
    """The text between the marks of the page."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.way", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the list into docs/architecture.md")
    arguments = parser.parse_args()
    files = files_of_one_chat()
    found, page = described(files), ROOT / PAGE
    print(found)
    print(f"\n{sum(len((ROOT / path).read_text().splitlines()) for path in files):,} lines")
    if arguments.write:
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

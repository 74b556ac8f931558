"""Time comes from the event loop, and randomness and the network are handed in. Only the files named here touch them.

That is what lets the simulation run the same services under virtual time with equal event logs. A file that no longer
needs its exception must leave the list."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import pytest

from tests.unit.sources import nodes, python_files

ROOMS = (
    "gateway/", "prefill_svc/", "decode_svc/", "kvtransfer/", "engine/", "mesh/", "cli/", "kernels/baton_kernels/"
)  # fmt: skip

CLOCKS = {"time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
RANDOM = {"random", "secrets", "uuid", "numpy.random", "os.urandom", "os.getrandom"}
SOCKETS = {
    "socket", "socketserver", "selectors", "http.client", "urllib.request", "requests", "httpx", "aiohttp", "grpc.aio",
    "asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection", "asyncio.start_unix_server",
}  # fmt: skip
# Every file may name generators that are handed in; a call without a seed is a source of randomness.
GENERATORS = {"random.Random", "random.SystemRandom"}

# file -> what it exists for
CLOCK_FILES = {
    "mesh/telemetry/otlp.py": "the offset between the event loop's clock and the wall clock of traces",
    "gateway/main.py": "the process: wall time for the OpenAI API's `created`",
    "cli/doctoring/transport_peer.py": "measures processor time",
    "cli/doctoring/transport_speed.py": "measures how long a pass takes",
    "mesh/telemetry/lossy_output.py": "its thread pauses between two writes",
    "cli/local_mesh/loop.py": "the event loop's own clock",
    "cli/local_mesh/up.py": "prints how long the start took",
}
RANDOM_FILES = {
    "gateway/main.py": "the process: hands its randomness in",
    "prefill_svc/main.py": "the process: hands its randomness in",
    "decode_svc/main.py": "the process: hands its randomness in",
    "kvtransfer/transports.py": "makes the transports of a process; their tokens are secrets",
    "engine/builtin/model.py": "weights drawn from a seed",
    "cli/keys.py": "draws the keys of tenants",
    "cli/local_mesh/ports.py": "draws free ports",
    "cli/local_mesh/drawn_token.py": "draws the token of a mesh",
    "cli/verify/drafts.py": "a draft's changed weights, drawn from a seed",
}
SOCKET_FILES = {
    "gateway/process/siblings.py": "the local socket between the processes of one gateway",
    "gateway/process/local_names.py": "the names of these sockets, and the user at their other end",
    "gateway/process/listeners.py": "listening sockets travel over one of them",
    "mesh/network/grpc_accepting.py": "gRPC listens on a socket of its own",
    "cli/local_mesh/probe.py": "`baton health` dials the service beside it",
    "gateway/grpc/api.py": "the public gRPC server",
    "gateway/grpc/errors.py": "the error that ends a call of the public gRPC server",
    "gateway/grpc/guard.py": "an interceptor of the public gRPC server",
    "gateway/http/server.py": "the public HTTP server",
    "gateway/http/writing.py": "an option of the server's connections",
    "mesh/network/grpc_network.py": "the real network",
    "mesh/network/token_guard.py": "an interceptor of the real network",
    "mesh/network/tls.py": "opens encrypted channels",
    "mesh/network/grpc_server.py": "the real network",
    "mesh/network/grpc_stream.py": "the real network",
    "mesh/network/grpc_stats.py": "the real network: reads what a worker has counted",
    "kvtransfer/peer.py": "shared memory: the process at the other end",
    "kvtransfer/mapped.py": "shared memory: hands the descriptor over",
    "kvtransfer/mapped_folder.py": "shared memory: the private socket",
    "kvtransfer/mapped_writer.py": "shared memory: takes the descriptor",
    "kvtransfer/nccl.py": "NCCL's frames",
    "kvtransfer/nccl_writer.py": "NCCL's frames",
    "kvtransfer/side_channel.py": "the handshake of NCCL and RDMA",
    "kvtransfer/rdma.py": "RDMA's handshake",
    "kvtransfer/rdma_writer.py": "RDMA's handshake",
    "kvtransfer/tcp_socket.py": "TCP",
    "kvtransfer/tcp_wires.py": "TCP",
    "kvtransfer/tcp_writer.py": "TCP",
    "cli/local_mesh/ports.py": "looks for free ports",
    "cli/connecting/http_client.py": "the HTTP client of all commands",
    "cli/clients/client.py": "a client like any other",
}

Ban = tuple[str, set[str], dict[str, str]]
BANS: tuple[Ban, ...] = (
    ("clock", CLOCKS, CLOCK_FILES),
    ("randomness", RANDOM, RANDOM_FILES),
    ("sockets", SOCKETS, SOCKET_FILES),
    # It loses a cancellation that comes together with the result; `asyncio.timeout` does not.
    ("lost cancellations", {"asyncio.wait_for"}, {}),
)


@cache
def names_in(path: str) -> frozenset[str]:
    return frozenset(names_used(nodes(path)))


def names_used(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Dotted names of everything imported, and of every attribute reached through an imported module."""
    modules: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
                if alias.asname or "." in alias.name:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and (name := dotted(node)):
            head, _, rest = name.partition(".")
            if head in modules:
                yield f"{modules[head]}.{rest}"
        elif isinstance(node, ast.Call) and not node.args and (name := dotted(node.func)):
            head, _, rest = name.partition(".")
            full = ".".join(part for part in (modules.get(head, head), rest) if part)
            if full in GENERATORS:
                yield f"{full}()"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return ""


def breaches(names: Iterable[str], banned: set[str]) -> set[str]:
    return {
        name
        for name in names
        if name not in GENERATORS and any(name == ban or name.startswith(f"{ban}.") for ban in banned)
    }


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban[0])
def test_only_named_files_reach_for_what_is_handed_in(ban: Ban) -> None:
    what, banned, allowed = ban
    found = {}
    for path in python_files():
        if path.startswith(ROOMS) and path not in allowed and (names := breaches(names_in(path), banned)):
            found[path] = names
    assert not found, f"{what} in product code; hand it in, or name the file and why in this test: {found}"


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban[0])
def test_every_exception_is_still_needed(ban: Ban) -> None:
    what, banned, allowed = ban
    idle = {name for name in allowed if not breaches(names_in(name), banned)}
    assert not idle, f"these files need no exception for {what} any more: {idle}"


@pytest.mark.parametrize(
    ("source", "banned", "found"),
    [
        ("import time\ntime.monotonic()", CLOCKS, {"time.monotonic"}),
        ("import time as t\nt.sleep(1)", CLOCKS, {"time", "time.sleep"}),
        ("from time import monotonic", CLOCKS, {"time.monotonic"}),
        ("import datetime\ndatetime.datetime.now()", CLOCKS, {"datetime.datetime.now"}),
        ("import os\nos.urandom(8)", RANDOM, {"os.urandom"}),
        ("import numpy as np\nnp.random.default_rng()", RANDOM, {"numpy.random", "numpy.random.default_rng"}),
        ("from datetime import datetime\ndef f(now: datetime): datetime.now()", CLOCKS, {"datetime.datetime.now"}),
        ("from random import Random\nimport random\nrandom.Random(1)", RANDOM, set()),
        ("from random import Random\nRandom()", RANDOM, {"random.Random()"}),
        ("import random\nrandom.SystemRandom()", RANDOM, {"random.SystemRandom()"}),
        ("from random import random", RANDOM, {"random.random"}),
        ("import asyncio\nasyncio.open_connection", SOCKETS, {"asyncio.open_connection"}),
        ("import asyncio\nasyncio.get_running_loop().time()", CLOCKS | SOCKETS, set()),
        ("self.time = clock.time()", CLOCKS, set()),
    ],
)
def test_the_search_finds_every_spelling(source: str, banned: set[str], found: set[str]) -> None:
    assert breaches(names_used(tuple(ast.walk(ast.parse(source)))), banned) == found

"""The other processes of one gateway: each answers the others' questions about itself over a local socket.

A client's connection lands on any process. So that a page shows the whole gateway, the process that is asked asks the
others (gateway/process/whole_pages.py). The socket has a name and no file, and only processes of the same user may use
it. A process that does not answer in time is left out."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from gateway.process.local_names import LocalNames, is_own_user
from mesh.network.grpc_network import AddressError

log = logging.getLogger("baton.gateway")

ASK_SECONDS = 1.0  # a process that takes longer is left out
BACKLOG = 64
LONGEST_QUESTION = 64 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """A GET that a client has sent to another process."""

    path: str
    query: str
    accept: str


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """The answer of one process alone."""

    status: int
    content: bytes


AnswerAlone = Callable[[Question], Awaitable[OwnAnswer]]


class Siblings:
    """One process of a gateway, as the others reach it, and the others."""

    def __init__(self, address: str, *, process: int, processes: int) -> None:
        """`address`: of the HTTP clients, see LocalNames."""
        self._address, self._process = address, process
        self._names = LocalNames(address, process=process, processes=processes)
        self.silent: set[int] = set()  # processes that are there and did not answer the last question
        self._server: asyncio.Server | None = None

    async def listen(self, answer: AnswerAlone) -> None:
        """Answer the others' questions from now on. AddressError: another gateway has this number already."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if is_own_user(writer.get_extra_info("socket")):
                    await _answer_one(reader, writer, answer)
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                log.warning("a question of another process of this gateway fails: %s", error)
            finally:
                writer.close()

        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._names.own)
        except OSError as error:
            listener.close()
            raise AddressError(
                f"gateway.process: another process of the gateway at {self._address} has the number {self._process} "
                f"({error.strerror}); give each process a number of its own"
            ) from None
        self._server = await asyncio.start_unix_server(serve, sock=listener, backlog=BACKLOG, limit=LONGEST_QUESTION)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def ask(self, question: Question) -> list[OwnAnswer]:
        """The answers of all other processes, without those that are not there or too slow."""
        others = self._names.others.items()
        answers = await asyncio.gather(*(self._ask(number, name, question) for number, name in others))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, number: int, name: str, question: Question) -> OwnAnswer | None:
        self.silent.discard(number)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                # uvloop takes no address that begins with a zero byte, but a socket that is connected to one.
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.setblocking(False)
                try:
                    connection.connect(name)
                except OSError:
                    connection.close()
                    raise
                reader, writer = await asyncio.open_unix_connection(sock=connection)
                try:
                    if not is_own_user(writer.get_extra_info("socket")):
                        return None
                    writer.write(msgspec.json.encode(question) + b"\n")
                    status, size = map(int, (await reader.readline()).split())
                    return OwnAnswer(status, await reader.readexactly(size))
                finally:
                    writer.close()
        except (TimeoutError, BlockingIOError):  # the latter: it takes no connections out of its backlog
            self.silent.add(number)
            return None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return None


async def _answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: AnswerAlone) -> None:
    async with asyncio.timeout(ASK_SECONDS):
        line = await reader.readline()
    try:
        question = msgspec.json.decode(line, type=Question)
    except msgspec.MsgspecError:
        return
    found = await answer(question)
    writer.write(b"%d %d\n" % (found.status, len(found.content)) + found.content)
    await writer.drain()

"""Listening sockets of one gateway's processes, handed from a process that leaves to one that stays, and back.

The processes share a port, and the kernel keeps a queue of new connections for each listening socket. To close one
would reset the connections in its queue. So a process that leaves sends its listener to a sibling, with the queue; the
sibling accepts from both. The next process with the number of the one that left fetches its listener again: no socket
of the port is closed, and every process has its own share of connections."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import msgspec

from gateway.process.local_names import LocalNames, is_own_user
from mesh.network.grpc_network import AddressError

Found = TypeVar("Found")
log = logging.getLogger("baton.gateway")

ANSWER_SECONDS = 1.0  # a sibling that takes longer is left out
BACKLOG = 16
LONGEST_MESSAGE = 4096
MOST_LISTENERS = 64  # in one message; the kernel takes up to 253


class Message(msgspec.Struct):
    """One message between two processes. The sockets of `listeners` travel with TAKE and FOUND."""

    kind: str
    listeners: list[int] = []  # numbers of the processes whose listeners these are


TAKE, TAKEN = "take", "taken"  # a process that leaves, and the answer of the sibling that accepts from now on
FETCH, FOUND, HAVE = "fetch", "found", "have"  # a process that starts; the answer; the sibling may stop accepting
NO = "no"


class ListenerOwner(Protocol):
    """The HTTP server of a process."""

    def listeners(self) -> Mapping[int, socket.socket]:
        """Listening sockets, by the number of the process that each belongs to."""

    async def adopt(self, number: int, listener: socket.socket) -> None: ...

    async def release(self, number: int) -> None: ...


class ListenerExchange:
    """One process of a gateway, and its siblings."""

    def __init__(self, address: str, *, process: int, processes: int) -> None:
        """`address`: of the HTTP clients, see LocalNames."""
        self._address, self._process = address, process
        self._names = LocalNames(address, process=process, processes=processes, purpose="-listeners")
        self._owner: ListenerOwner | None = None
        self._door: socket.socket | None = None
        self._leaving = False
        self._lock = asyncio.Lock()  # held while listeners come or go
        self._serving = set[asyncio.Task[None]]()

    def serve(self, owner: ListenerOwner) -> None:
        """Take listeners and give them back from now on. AddressError: another process has this number already."""
        self._owner = owner
        self._door = door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.setblocking(False)
        try:
            door.bind(self._names.own)
        except OSError as error:
            door.close()
            self._door = None
            raise AddressError(
                f"gateway.process: another process of the gateway at {self._address} has the number {self._process} "
                f"({error.strerror}); give each process a number of its own"
            ) from None
        door.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(door, self._accept, door, owner)

    async def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            asyncio.get_running_loop().remove_reader(door)
            door.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def fetch(self) -> socket.socket | None:
        """The listener of this process, if siblings keep it since an earlier process with this number left."""
        found: socket.socket | None = None
        for name in self._names.others.values():
            answer = await self._talk(name, self._fetch_from)
            if answer is not None and found is not None:
                answer.close()  # the same socket: one sibling took it and was too slow to say so
            found = found or answer
        return found

    async def hand_over(self) -> bool:
        """Give all listeners of this process to a sibling. False: there is none that takes them."""
        self._leaving = True
        async with self._lock:
            for name in self._names.others.values():
                if await self._talk(name, self._give_to):
                    return True
        return False

    # ---- this process asks

    async def _talk(self, name: str, talk: Callable[[socket.socket], Awaitable[Found]]) -> Found | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.setblocking(False)
            try:
                line.connect(name)
                if not is_own_user(line):
                    return None
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await talk(line)
            except (OSError, msgspec.MsgspecError):  # TimeoutError is an OSError
                return None

    async def _fetch_from(self, line: socket.socket) -> socket.socket | None:
        _send(line, Message(FETCH, [self._process]))
        answer, sockets = await _receive(line)
        if answer.kind != FOUND or len(sockets) != 1:
            _close(sockets)
            return None
        _send(line, Message(HAVE))
        return sockets[0]

    async def _give_to(self, line: socket.socket) -> bool:
        assert self._owner is not None, "a process that leaves has served"
        held = self._owner.listeners()
        if not held:
            return False
        _send(line, Message(TAKE, list(held)), list(held.values()))
        answer, sockets = await _receive(line)
        _close(sockets)
        if answer.kind != TAKEN:
            return False
        for number in list(held):
            await self._owner.release(number)
        return True

    # ---- a sibling asks

    def _accept(self, door: socket.socket, owner: ListenerOwner) -> None:
        try:
            line, _ = door.accept()
        except OSError:
            return
        line.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._answer(line, owner))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _answer(self, line: socket.socket, owner: ListenerOwner) -> None:
        with line:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    if is_own_user(line):
                        await self._answer_one(line, owner)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("a listener cannot be handed over between processes of this gateway: %s", error)

    async def _answer_one(self, line: socket.socket, owner: ListenerOwner) -> None:
        asked, sockets = await _receive(line)
        if asked.kind == TAKE and len(sockets) == len(asked.listeners) and not self._leaving:
            await self._take(line, owner, dict(zip(asked.listeners, sockets, strict=True)))
            return
        _close(sockets)
        if asked.kind == FETCH and len(asked.listeners) == 1:
            await self._give_back(line, owner, asked.listeners[0])
        else:
            _send(line, Message(NO))

    async def _take(self, line: socket.socket, owner: ListenerOwner, listeners: dict[int, socket.socket]) -> None:
        async with self._lock:
            for number, listener in listeners.items():
                await owner.adopt(number, listener)
            _send(line, Message(TAKEN))
        log.info("takes connections in place of gateway processes that leave: %s", ", ".join(map(str, listeners)))

    async def _give_back(self, line: socket.socket, owner: ListenerOwner, number: int) -> None:
        async with self._lock:
            listener = owner.listeners().get(number)
            if listener is None or number == self._process:
                _send(line, Message(NO))
                return
            _send(line, Message(FOUND, [number]), [listener])
            if (await _receive(line))[0].kind == HAVE:
                await owner.release(number)


def _send(line: socket.socket, message: Message, sockets: list[socket.socket] | None = None) -> None:
    data = msgspec.json.encode(message)
    if sockets:
        socket.send_fds(line, [data], [each.fileno() for each in sockets])
    else:
        line.send(data)


async def _receive(line: socket.socket) -> tuple[Message, list[socket.socket]]:
    """OSError: the other process is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(line, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(line)
    data, numbers, _, _ = socket.recv_fds(line, LONGEST_MESSAGE, MOST_LISTENERS, socket.MSG_CMSG_CLOEXEC)
    sockets = [socket.socket(fileno=number) for number in numbers]
    for each in sockets:
        each.setblocking(False)
    try:
        if not data:
            raise ConnectionResetError("the other process is gone")
        return msgspec.json.decode(data, type=Message), sockets
    except BaseException:
        _close(sockets)
        raise


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()

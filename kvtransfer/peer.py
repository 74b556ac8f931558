"""The process at the other end of a Unix socket: its user, the proof of its death, and the way to kill it.

Only the pidfd proves a death: a stopped process keeps its mapping, a closed socket proves nothing, and a process id may
be reused. The pidfd becomes readable once the whole process, with all its threads and mappings, is gone."""

import asyncio
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77  # Linux 6.5; not named by Python's socket


@dataclass(frozen=True, slots=True)
class Credentials:
    """Process and user of the peer, as the kernel recorded them when the socket was connected."""

    pid: int
    uid: int


def credentials(sock: socket.socket) -> Credentials:
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Credentials(pid, uid)


def stranger(peer: Credentials, uid: int) -> str:
    """Why this process may not share memory with this worker; empty when it may."""
    if peer.uid != uid:
        return f"the peer runs as uid {peer.uid}, this worker as {uid}: only processes of one user share memory"
    if peer.pid <= 0:
        return "the peer's process is not visible from this pid namespace, so its death could not be proved"
    return ""


def open_process(sock: socket.socket, pid: int) -> int:
    """A pidfd of the process that connected this socket; ProcessLookupError when it is gone."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:  # an older kernel
        pidfd = os.pidfd_open(pid)
    try:  # the process id could have been reused before it was opened, but not if the peer still holds its socket
        if sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
            raise ProcessLookupError(f"process {pid} has closed its socket")
    except BlockingIOError:
        pass
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


class Process:
    """Watches one process through its pidfd, which it owns, without polling."""

    def __init__(self, pid: int, pidfd: int, on_death: Callable[[], None]) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._dead = asyncio.Event()
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._died)

    async def ended(self, seconds: float) -> bool:
        """Is the process dead? Waits for its death at most `seconds`."""
        if self._pidfd >= 0 and self._readable():
            self._died()
        if not self._dead.is_set() and seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._dead.wait()
            except TimeoutError:
                pass
        return self._dead.is_set()

    def kill(self) -> bool:
        """Send SIGKILL; False when that is not permitted. `ended` is True once the process is gone."""
        try:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # died just now
        except PermissionError:
            return False
        return True

    def close(self) -> None:
        """Stop watching. A caller that still waits in `ended` gets False."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _died(self) -> None:
        self.close()
        self._dead.set()
        self._on_death()

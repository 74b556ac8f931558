"""The TCP connection beside a transport whose bytes take another way (NCCL, RDMA): it carries the handshake, and by its
end each side learns that the other is gone."""

import select
import socket

from kvtransfer.frames import WELCOME_BYTES, Greeting, Malformed, PoolHandle, Welcome
from mesh.messages.page_fit import transport_obstacle
from mesh.messages.page_shape import PageShape

# After so long the kernel reports a host that vanished without closing its connections.
_IDLE_SECONDS, _PROBES, _SILENT_MILLISECONDS = 4, 6, 10_000


def notice_silence(connection: socket.socket) -> None:
    """Let the kernel probe the connection: a dead process closes it, a dead host does not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MILLISECONDS)


def dial(address: tuple[str, int], seconds: float) -> socket.socket:
    """A connection whose calls take `seconds` at most, each."""
    connection = socket.create_connection(address, timeout=seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_silence(connection)
    return connection


def greet(connection: socket.socket, handle: PoolHandle, incarnation: int, shape: PageShape, *, name: str) -> Welcome:
    """Show the receiver the token of its handle; Malformed when it does not admit this writer. `name`: the
    transport's."""
    connection.sendall(Greeting(handle.token, incarnation, handle.receiver, shape).pack())
    welcome = Welcome.unpack(take(connection, WELCOME_BYTES))
    if (why := transport_obstacle(name, shape, welcome.shape)) or not welcome.accepted:
        raise Malformed(f"our pages are {shape}, the receiver's {welcome.shape}: {why or 'it refuses them'}")
    if welcome.receiver != handle.receiver:
        raise Malformed("another process answers at the receiver's address")
    return welcome


def take(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes of the receiver's side of the handshake."""
    raw = bytearray()
    while len(raw) < count:
        piece = connection.recv(count - len(raw))
        if not piece:
            raise Malformed("the receiver refused us: a stale handle, or another release")
        raw += piece
    return bytes(raw)


def hung_up(connection: socket.socket, seconds: float = 0.0) -> bool:
    """Has the receiver hung up, or does it within `seconds`? It sends nothing after the handshake, so a readable
    connection is a closed one."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * seconds))

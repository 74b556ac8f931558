"""Names of the local sockets by which the processes of one gateway reach each other, and who may use them.

Such a name is no file: it is gone when its process is. Only processes of the same user may talk to each other."""

import hashlib
import os
import socket
import struct

_PEER = struct.Struct("3i")  # pid, uid, gid


class LocalNames:
    """The names of all processes of one gateway for one purpose."""

    def __init__(self, address: str, *, process: int, processes: int, purpose: str = "") -> None:
        """`address`: of the HTTP clients, by which the processes of one gateway know each other."""
        digest = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        names = [f"\0baton-gateway-{os.getuid()}-{digest}-{number}{purpose}" for number in range(processes)]
        self.own = names[process]
        # By the process's number. The next one comes first, so that not all turn to the same one.
        self.others = {number: names[number] for number in (*range(process + 1, processes), *range(process))}


def is_own_user(connected: socket.socket) -> bool:
    """Whether the process at the other end runs as this user."""
    _, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())

"""Makes a gRPC server of this process accept no more connections, while it serves those that it has.

gRPC's own `stop` closes the port and refuses calls at the same moment: a client that has just connected loses its call.
gRPC has no way to do only the first, so this module ends the listening of its socket itself. gRPC notices, and logs one
line of its own: `Closing acceptor`."""

import os
import socket
from contextlib import suppress

DESCRIPTORS = "/proc/self/fd"


def stop_accepting(port: int) -> int:
    """Returns the number of sockets of this port that listened in this process."""
    found = 0
    for number in map(int, os.listdir(DESCRIPTORS)):
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
            if each.family not in (socket.AF_INET, socket.AF_INET6) or each.getsockname()[1] != port:
                continue
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)
                found += 1
    return found

"""The private folder of a shared-memory receiver's socket: mode 0700, with a random name.

A killed worker leaves its folder behind. The next worker that starts here sees that no process listens on its socket
and removes it."""

import errno
import os
import socket
from pathlib import Path
from random import SystemRandom

_PREFIX = "baton-pages-"
_SOCKET = "s"
_MAX_PATH = 107  # bytes in sockaddr_un


def make_folder(parent: Path, random: SystemRandom) -> tuple[Path, socket.socket]:
    """The socket's path, and the socket, listening and non-blocking."""
    sweep(parent)
    folder = parent / f"{_PREFIX}{random.getrandbits(96):024x}"
    path = folder / _SOCKET
    if len(os.fsencode(path)) > _MAX_PATH - 1:
        reason = f"a socket's path has at most {_MAX_PATH} bytes, choose a shorter folder than"
        raise OSError(errno.ENAMETOOLONG, reason, str(parent))
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"{path}_")
        listener.listen(64)
        os.rename(f"{path}_", path)  # under this name a process listens from the start
    except BaseException:
        listener.close()
        remove_folder(path)
        raise
    return path, listener


def remove_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{_SOCKET}_").unlink(missing_ok=True)
    try:
        path.parent.rmdir()
    except OSError:
        pass  # already removed, or it holds a file of another program


def sweep(parent: Path) -> None:
    """Remove the folders of this user's killed receivers."""
    for path in parent.glob(f"{_PREFIX}*/{_SOCKET}"):
        try:
            if path.lstat().st_uid == os.geteuid() and _is_abandoned(path):
                remove_folder(path)
        except OSError:
            continue  # another worker was faster


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED

"""The token of a mesh that one command starts: `baton up` and `baton demo` draw one and hand it over in a file.

Only the file's path stands on the command lines of the services; the file has mode 600 and goes away with the command.
A command that was killed leaves its file behind: the next one sees by the missing lock that nobody uses it."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from mesh.config.services import MeshConfig

PREFIX, SUFFIX = "baton-drawn-", ".token"


@contextmanager
def drawn_token(mesh: MeshConfig) -> Iterator[dict[str, str]]:
    """The setting that names a token of this mesh alone; none where the settings name a token or TLS files."""
    if mesh.gateway.mesh_token_file is not None or mesh.gateway.tls_ca is not None:
        yield {}
        return
    folder = _writable(mesh.gateway.cache_folder)
    _sweep(folder)
    descriptor, unlocked = tempfile.mkstemp(prefix=".", dir=folder)  # mode 600
    path = folder / f"{PREFIX}{Path(unlocked).name[1:]}{SUFFIX}"
    try:
        os.write(descriptor, f"{SystemRandom().getrandbits(256):064x}\n".encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(unlocked, path)  # from here on another command sees the file, and that it is locked
        yield {"mesh_token_file": str(path)}
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _writable(folder: Path) -> Path:
    """The folder, or that for temporary files if this user may not write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _sweep(folder: Path) -> None:
    """Remove the files of commands that were killed."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # it may be a pipe
            with os.fdopen(descriptor, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:
            continue  # its command runs, it is another user's, or another command was faster

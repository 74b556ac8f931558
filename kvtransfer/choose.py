"""Gives two processes equal texts exactly if they can share memory; mesh/messages/hello_pairs.py chooses the transport
by them."""

import os
from pathlib import Path

_NAMESPACES = ("mnt", "pid", "user")


def host_identity(proc: Path = Path("/proc")) -> str:
    """A text that is equal for two processes exactly if each can open the other's socket by path and see the other by
    process id.

    That takes one kernel (boot id), one file tree (mount namespace), one process table (pid namespace, or a death
    could not be proved) and one meaning of uids (user namespace). The descriptor itself crosses namespaces, so
    containers that share all three namespaces get equal identities, others use tcp. Empty when unknown: an empty
    identity equals no other."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink(proc / "self/ns" / name) for name in _NAMESPACES]
    except OSError:
        return ""
    return " ".join([boot, *spaces])

"""A service that `baton up` started ends when `baton up` ends, even when that is killed."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; kill it at once when the parent is gone already.

    To the kernel the parent is the thread that made this process: `baton up` starts services from its main thread."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)

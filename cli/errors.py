"""Errors that a person can do something about end a command with one line and a status; all others are defects of ours.

Status 2 says that starting again would not help: settings, a model folder, a port or an installation are wrong."""

import contextlib
import errno
import sys
from collections.abc import Iterator

from cli.output import fail
from cli.supervisor import MeshFailed
from mesh.config import ConfigError


class MeshError(Exception):
    """The mesh refused or is not there; the message is for people."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """`field`: of the request, where one is at fault."""
        super().__init__(message)
        self.field = field


_HOPELESS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.ENOENT, errno.ENOSPC)
_ABOUT_THIS_HOST = (("engine.model.errors", "ModelError"), ("baton_kernels", "KernelError"))


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        fail(str(error), status=2)
    except MeshError as error:
        fail(str(error))
    except MeshFailed as error:
        fail(str(error), status=error.status)
    except ModuleNotFoundError as error:
        fail(f"the Python module {error.name} is missing: pip install 'baton[serve]'", status=2)
    except OSError as error:
        if error.errno not in _HOPELESS:
            raise
        fail(str(error), status=2)
    except Exception as error:
        if not _explains_itself(error):
            raise
        fail(str(error), status=2)


def _explains_itself(error: Exception) -> bool:
    """Looked up where it is loaded already: a client has neither the engine nor the kernels."""
    for module, name in _ABOUT_THIS_HOST:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(error, kind):
            return True
    return False

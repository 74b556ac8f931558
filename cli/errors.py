"""Errors that a user can repair end a command with one line and a status; all others are defects and show a traceback.

Status 2 means that starting again would not help: settings, a model folder, a port or the installation are wrong."""

import contextlib
import errno
import sys
from collections.abc import Iterator

from cli.output import INSTALL_SERVE, fail
from mesh.config.config_checks import ConfigError


class MeshFailed(Exception):
    """The mesh cannot start; the message has the service's last log lines."""

    def __init__(self, message: str, status: int = 1) -> None:
        """`status`: exit status of the command; 2 when starting again would not help."""
        super().__init__(message)
        self.status = status


class MeshError(Exception):
    """The mesh, or the hub of models, refused a request or does not answer; the message is for users."""

    def __init__(self, message: str, field: str | None = None, reason: str = "") -> None:
        """`field`: path of the request's field at fault, if there is one. `reason`: the error's name for machines."""
        super().__init__(message)
        self.field = field
        self.reason = reason


_HOPELESS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.ENOENT, errno.ENOSPC)
_EXPLAIN_THEMSELVES = (
    ("engine.formats.errors", "ModelError"),
    ("baton_kernels", "KernelError"),
)


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
        fail(f"the Python module {error.name} is missing: {INSTALL_SERVE}", status=2)
    except OSError as error:
        if error.errno not in _HOPELESS:
            raise
        fail(str(error), status=2)
    except Exception as error:
        if not _explains_itself(error):
            raise
        fail(str(error), status=2)


def _explains_itself(error: Exception) -> bool:
    """True for the errors of engine and kernels, looked up only where they are loaded: a client has not all."""
    for module, name in _EXPLAIN_THEMSELVES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(error, kind):
            return True
    return False

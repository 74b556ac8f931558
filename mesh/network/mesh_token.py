"""The mesh's token: a secret that every service shows with each call to another one, and asks of every caller.

It keeps out processes that reach a port and do not belong to the mesh. A service reads it from `mesh_token_file`, and
again when that file changes. It shows the first line and accepts every line, so that a token can be replaced while the
mesh serves. On an address of other hosts a service listens only with a token or with TLS."""

import hmac
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from mesh.config.common_config import CommonConfig
from mesh.config.config_checks import ConfigError, is_loopback

log = logging.getLogger("baton.mesh")

HEADER = "baton-mesh-token"  # metadata of every call between services
_TOKEN = re.compile(r"[!-~]{16,512}")


class MeshToken:
    """The token of one mesh. The constructor raises ConfigError when the file holds none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = self._stamp()
        self._tokens = self._read()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call to another service."""
        return ((HEADER, self._current()[0]),)

    def accepts(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
        """Does a call with this metadata come from the mesh? The comparison takes equally long for every answer."""
        shown = [value for name, value in metadata or () if name == HEADER]
        if len(shown) != 1:
            return False
        given = shown[0].encode() if isinstance(shown[0], str) else shown[0]
        return sum(hmac.compare_digest(token.encode(), given) for token in self._current()) > 0

    def _current(self) -> tuple[str, ...]:
        """The tokens of the newest content that holds any."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = self._read()
            except ConfigError as error:  # the file is being replaced: the tokens before it stay
                log.warning("%s; the tokens before it stay", error)
        return self._tokens

    def _stamp(self) -> tuple[int, ...]:
        try:
            state = self._file.stat()
        except OSError:
            return ()
        return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino

    def _read(self) -> tuple[str, ...]:
        try:
            lines = self._file.read_text("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"mesh_token_file: {self._file} cannot be read ({problem})") from None
        tokens = tuple(line.strip() for line in lines if line.strip())
        if not tokens or not all(_TOKEN.fullmatch(token) for token in tokens):
            raise ConfigError(
                f"mesh_token_file: {self._file} must hold a token of 16 to 512 printable characters, or several, one a "
                "line; make one with `openssl rand -hex 32`"
            )
        return tokens


def mesh_token(config: CommonConfig, setting: str, address: str) -> MeshToken | None:
    """The token of a service that listens on this address for its mesh, or None if the settings name none. ConfigError
    when any process of another host could join the mesh there."""
    if config.mesh_token_file is not None:
        return MeshToken(config.mesh_token_file)
    if config.tls_ca is None and not is_loopback(address):
        raise ConfigError(
            f"{setting}: {address} can be reached from other hosts, where any process could join the mesh and read its "
            "prompts; set mesh_token_file to a file with one secret for all services of the mesh (`openssl rand -hex "
            "32`), or set tls_certificate, tls_key and tls_ca, or listen on 127.0.0.1"
        )
    return None

"""The keys file of a gateway, read again while it runs when it has changed.

A file that cannot be used, such as one that an editor has written half, changes nothing: the last good rows stay, and a
warning says why. A change counts when the file rests, so rows that are written one after the other come in together."""

import asyncio
import logging
from pathlib import Path

from gateway.tenants.rows import KeyTable, parse_table
from mesh.config.config_checks import ConfigError

log = logging.getLogger("baton.tenants")

LOOK_SECONDS = 0.5  # between two looks at the file; it rests if it is equal in both
MOST_FILE_BYTES = 64 * 2**20

_Stamp = tuple[int, ...]  # changes whenever the file does; empty: there is none


class KeyFile:
    """The constructor raises ConfigError when the file cannot be used."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._used = self._seen = self._stamp()
        self.table = self._read()
        if not self.table.tenants:
            log.warning("keys_file: %s holds no key, so nobody gets in; `baton keys add` adds one", file)

    async def watch(self) -> None:
        """Use the file as it is then, for as long as the service lives."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file if it has changed and is as it was at the last look."""
        stamp, rests = self._stamp(), self._seen
        self._seen = stamp
        if stamp == self._used or stamp != rests:
            return
        self._used = stamp
        try:
            table = await asyncio.to_thread(self._read)
        except ConfigError as error:
            log.warning("keys_file: %s. The keys stay as they were before", error)
            return
        if self._stamp() == stamp:
            self.table = table
            log.info("keys_file: %s has changed: %d tenants", self._file, len(table.tenants))

    def _read(self) -> KeyTable:
        try:
            if self._file.stat().st_size > MOST_FILE_BYTES:
                raise ConfigError(f"{self._file} is larger than {MOST_FILE_BYTES} bytes")
            text = self._file.read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self._file} is no text in UTF-8") from None
        if not text.endswith("\n"):
            what = "is empty" if not text else "does not end with a line break"
            raise ConfigError(f"{self._file} {what}: is it whole? A file without keys holds a comment line")
        return parse_table(text, str(self._file))

    def _stamp(self) -> _Stamp:
        try:
            state = self._file.stat()
        except OSError:
            return ()
        return state.st_mtime_ns, state.st_size, state.st_ino

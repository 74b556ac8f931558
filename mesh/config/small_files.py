"""Reads the small files of a model's folder without waiting and without taking all memory.

A folder comes from anywhere: under the name of a file there can be a pipe, which would hold up its reader for ever, or
more bytes than the host has memory."""

import os
import stat
from pathlib import Path

CONFIG_BYTES = 16 << 20  # size of the largest configuration or template
TOKENIZER_BYTES = 256 << 20  # size of the largest tokenizer that is read; the largest known has 35 MB


class UnfitFile(OSError):
    """This is no file that Baton reads; the message says why, without the name."""


def read_small(path: Path, most_bytes: int = CONFIG_BYTES) -> bytes:
    """The content of a regular file. UnfitFile where it is none or has more bytes than that; other errors of the system
    as they are."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise UnfitFile("is no regular file; copy the file itself into the folder")
        if about.st_size > most_bytes:
            raise UnfitFile(f"has {about.st_size} bytes, and at most {most_bytes} are read")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(handle)

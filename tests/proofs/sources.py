"""The hash of the sources that a proof covers: paths and bytes of the files that git tracks there, in sorted order.

The bytes are those of the working tree, because these run; a file that git does not track changes no proof."""

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class SourcesUnknown(Exception):
    """Git does not name the files of this folder, so no proof can be about them."""


def tracked(root: Path = ROOT) -> list[str]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SourcesUnknown("git is missing: proofs are about the files that it tracks") from error
    if done.returncode:
        raise SourcesUnknown(f"git names no files here: {done.stderr.strip()}")
    return sorted(filter(None, done.stdout.split("\0")))


def covered(files: Sequence[str], covers: Sequence[str]) -> list[str]:
    """Those of the files that lie in these folders, or are these files."""
    return [each for each in files if any(each == cover or each.startswith(f"{cover}/") for cover in covers)]


def source_hasher(root: Path = ROOT) -> Callable[[Sequence[str], str], str]:
    """Hashes folders and files, each file being read once. The text that joins them is hashed too: the command."""
    files, digests = tracked(root), dict[str, bytes]()

    def digest(path: str) -> bytes:
        if path not in digests:
            file = root / path
            content = file.read_bytes() if file.is_file() else b"(deleted)"
            digests[path] = hashlib.sha256(path.encode() + b"\0" + content).digest()
        return digests[path]

    def hashed(covers: Sequence[str], text: str) -> str:
        whole = hashlib.sha256(text.encode())
        for path in covered(files, covers):
            whole.update(digest(path))
        return whole.hexdigest()[:16]

    return hashed

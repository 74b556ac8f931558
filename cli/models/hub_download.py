"""Downloads a large file of the hub so that a download which was killed goes on where it was.

The hub's library writes to a file that only its own process knows, so a killed download begins from zero. Here the
bytes grow in a `.partial` file beside the place where the library looks for the whole one, and the next process asks
for the rest (a Range request). The hub names large files by their SHA-256, so a file that was joined wrongly is never
used."""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from cli.output import say

LARGE = 10 << 20  # bytes; the library writes as many at a time
PARTIAL = ".partial"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download_large(repository: str, file: str, commit: str) -> None:
    """Put a large file into the library's cache, which then links it; other files are left to the library."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url, headers = hf_hub_url(repository, file, revision=commit), build_hf_headers()
    about = get_hf_file_metadata(url, headers=headers)
    etag, size = about.etag or "", about.size or 0
    if not _SHA256.fullmatch(etag) or not LARGE < size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        return
    if urlsplit(about.location).netloc != urlsplit(url).netloc:  # the hub's token is not for other servers
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    cache, folder = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=repository, repo_type="model")
    whole = cache / folder / "blobs" / etag
    with _locked(cache / ".locks" / folder / f"{etag}{PARTIAL}.lock"):
        if whole.exists():
            return
        whole.parent.mkdir(parents=True, exist_ok=True)
        partial = whole.with_name(etag + PARTIAL)
        with partial.open("ab", buffering=0) as content:
            had = content.tell()
            if had > size:
                content.truncate(had := 0)
            if had:
                say(f"{file}: going on behind {had >> 20} of {size >> 20} MiB")
            http_get(
                about.location, content, resume_size=had, headers=headers, expected_size=size, displayed_filename=file
            )
        if partial.stat().st_size != size or (had and _sha256(partial) != etag):
            say(f"{file}: what was there before does not belong to it; downloading it again")
            partial.unlink()
        else:
            os.replace(partial, whole)


def partial_bytes(repository_folder: Path) -> int:
    """Bytes of downloads that were killed, which need no further room."""
    return sum(path.stat().st_size for path in (repository_folder / "blobs").glob(f"*{PARTIAL}"))


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """One process at a time; the others wait and then find the file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

"""Block hashes: keyed blake3 chains over full pages of tokens, equal on the gateway and on every worker.

A page's hash names everything its KV depends on: all tokens before it, the tenant's salt and the numerics class."""

from collections.abc import Sequence
from struct import pack

from blake3 import blake3

DIGEST_BYTES = 16


def block_hashes(
    tokens: Sequence[int], *, page_tokens: int, numerics: str, salt: bytes = b"", known: Sequence[bytes] = ()
) -> list[bytes]:
    """Hash every full page of `tokens`. `known` are the hashes of the first pages: they are not computed again."""
    hashes = list(known)
    key = blake3(numerics.encode()).digest()
    parent = hashes[-1] if hashes else blake3(salt, key=key).digest(length=DIGEST_BYTES)
    for first in range(len(hashes) * page_tokens, len(tokens) - page_tokens + 1, page_tokens):
        block = tokens[first : first + page_tokens]
        parent = blake3(parent + pack(f"<{page_tokens}I", *block), key=key).digest(length=DIGEST_BYTES)
        hashes.append(parent)
    return hashes

"""Block hashes: keyed blake3 chains over full pages of tokens, equal on the gateway and on every worker.

A page's hash names everything its KV depends on: all tokens before it, the numerics class, and the salt, in which the
tenant and the content of the request's adapter stand."""

from collections.abc import Iterator, Sequence
from struct import pack

from blake3 import blake3

DIGEST_BYTES = 16


def block_hashes(
    tokens: Sequence[int], *, page_tokens: int, numerics: str, salt: bytes = b"", known: Sequence[bytes] = ()
) -> list[bytes]:
    """Hash every full page of `tokens`. `known` are the hashes of the first pages: they are not computed again."""
    return [*known, *next_hashes(tokens, page_tokens=page_tokens, numerics=numerics, salt=salt, known=known)]


def next_hashes(
    tokens: Sequence[int], *, page_tokens: int, numerics: str, salt: bytes = b"", known: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """The hashes of the full pages behind the `known` ones, one by one: a caller may stop early."""
    key = blake3(numerics.encode()).digest()
    parent = known[-1] if known else blake3(salt, key=key).digest(length=DIGEST_BYTES)
    for first in range(len(known) * page_tokens, len(tokens) - page_tokens + 1, page_tokens):
        block = tokens[first : first + page_tokens]
        parent = blake3(parent + pack(f"<{page_tokens}I", *block), key=key).digest(length=DIGEST_BYTES)
        yield parent


def cache_salt(salt: bytes, adapter: str) -> bytes:
    """The salt of a request: the tenant's, and with an adapter the hash of that one's content too. No tenant's salt is
    equal to one with an adapter, so pages of a model and of its adapters are never taken for each other."""
    return blake3(salt, derive_key_context=f"baton adapter {adapter}").digest() if adapter else salt

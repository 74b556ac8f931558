"""The key that signs receipts: Ed25519, so that a reader needs the public half only and cannot sign.

The private half is a PEM file that the first use makes, readable by its owner alone. Several gateways may share it."""

import logging
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from gateway.receipts.canonical import SIGNATURE, Json, ReceiptError, canonical

log = logging.getLogger("baton.gateway")

ALGORITHM = "ed25519"
CONTEXT = b"baton receipt 1\n"  # begins every signed message, so that no other signature of the key is a receipt's
_KEY, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")


class KeyFileError(Exception):
    """The file of the signing key cannot be used; the message is for operators."""


class SigningKey:
    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    @property
    def public_pem(self) -> str:
        """The public half as openssl reads it."""
        public = self._private.public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def signed(self, receipt: Mapping[str, Any]) -> Json:
        """The receipt with the public key and the signature."""
        named = {**receipt, "key": self.public}
        return {**named, SIGNATURE: self._private.sign(CONTEXT + canonical(named)).hex()}


def load_or_make(file: Path) -> SigningKey:
    """The key in the file. The first process that needs it makes it; others that come at the same time read that
    one. KeyFileError or OSError where that fails."""
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        number, name = tempfile.mkstemp(dir=file.parent)  # only its owner can read it
        try:
            with os.fdopen(number, "wb") as out:
                out.write(pem)
            os.link(name, file)  # fails where the file is there: no key is ever replaced
        except FileExistsError:
            pass
        finally:
            os.unlink(name)
    if file.stat().st_mode & 0o007:
        log.warning("every user of this host can read or write %s, the key that signs receipts: chmod 600 it", file)
    try:
        private = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{file} holds no private key in PEM without a password: {error}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{file} holds a key of another kind than Ed25519")
    return SigningKey(private)


def check_signature(receipt: Mapping[str, Any], key: str | None = None) -> str:
    """The public key by which the receipt is signed. ReceiptError when something was changed after it was signed, or
    when the key is not `key`."""
    own, signature = receipt.get("key"), receipt.get(SIGNATURE)
    if not isinstance(own, str) or not _KEY.fullmatch(own):
        raise ReceiptError("`key` is no Ed25519 key: 64 digits of 0-9 and a-f")
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        raise ReceiptError("`signature` is no Ed25519 signature: 128 digits of 0-9 and a-f")
    message = CONTEXT + canonical(receipt)
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(own)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        raise ReceiptError("the signature does not fit: the receipt was changed after it was signed") from None
    if key is not None and own != key:
        raise ReceiptError(f"the receipt is signed by the key {own}, not by {key}")
    return own


def public_key_of(pem: bytes) -> str:
    """The public key in a PEM file, in hex digits."""
    try:
        found = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ReceiptError(f"the file holds no public key in PEM: {error}") from None
    if not isinstance(found, Ed25519PublicKey):
        raise ReceiptError("the file holds a key of another kind than Ed25519")
    return found.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

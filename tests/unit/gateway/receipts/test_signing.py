"""Signatures of receipts: nothing changes unseen, and the key file has one owner and one content."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.receipts.canonical import FORMAT, ReceiptError, canonical
from gateway.receipts.signing import (
    CONTEXT,
    KeyFileError,
    SigningKey,
    check_signature,
    load_or_make,
    public_key_of,
)

CONTENT: dict[str, Any] = {"format": FORMAT, "seed": "7", "choices": [{"tokens": 3, "hash": "ab"}], "best_of": None}


@pytest.fixture
def key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.generate())


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values that hold no others."""
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for name, member in members for leaf in leaves(member, (*path, name))]
    return [path]


def test_a_signed_receipt_is_valid_and_names_its_key(key: SigningKey) -> None:
    receipt = key.signed(CONTENT)
    assert check_signature(receipt) == check_signature(receipt, key.public) == receipt["key"] == key.public
    assert check_signature(json.loads(json.dumps(receipt, indent=3))) == key.public


def test_every_changed_added_or_removed_value_is_noticed(key: SigningKey) -> None:
    receipt = key.signed(CONTENT)
    for path in leaves(receipt):
        changed = json.loads(json.dumps(receipt))
        place = changed
        for name in path[:-1]:
            place = place[name]
        old = place[path[-1]]
        place[path[-1]] = old + 1 if isinstance(old, int) else f"{old}0" if path != ("signature",) else "0" * 128
        with pytest.raises(ReceiptError):
            check_signature(changed)
        del place[path[-1]]
        with pytest.raises(ReceiptError):
            check_signature(changed)
    with pytest.raises(ReceiptError, match="changed after"):
        check_signature(receipt | {"more": "x"})


def test_values_of_another_type_are_noticed(key: SigningKey) -> None:
    receipt = key.signed({"format": FORMAT, "a": 1, "b": None, "c": True})
    for changed in ({"a": "1"}, {"a": True}, {"b": "null"}, {"b": False}, {"c": 1}):
        with pytest.raises(ReceiptError, match="changed after"):
            check_signature(receipt | changed)


def test_another_key_signs_but_is_not_the_wanted_one(key: SigningKey) -> None:
    forged = SigningKey(Ed25519PrivateKey.generate()).signed(CONTENT)
    assert check_signature(forged) != key.public
    with pytest.raises(ReceiptError, match="not by"):
        check_signature(forged, key.public)
    with pytest.raises(ReceiptError, match="changed after"):
        check_signature(forged | {"key": key.public})


@pytest.mark.parametrize("value", [None, "", "0" * 127, "0" * 129, "G" * 128, "A" * 128, 5, ["0"]])
def test_a_signature_of_another_form_is_refused(key: SigningKey, value: Any) -> None:
    with pytest.raises(ReceiptError, match="no Ed25519 signature"):
        check_signature(key.signed(CONTENT) | {"signature": value})


@pytest.mark.parametrize("value", [None, "", "0" * 63, "é" * 64, 5])
def test_a_key_of_another_form_is_refused(key: SigningKey, value: Any) -> None:
    with pytest.raises(ReceiptError, match="no Ed25519 key"):
        check_signature(key.signed(CONTENT) | {"key": value})


def test_the_other_spelling_of_a_signature_is_refused(key: SigningKey) -> None:
    """The second half of a signature is a number below the group's order; plus the order it would fit too."""
    receipt = key.signed(CONTENT)
    order = 2**252 + 27742317777372353535851937790883648493
    raw = bytes.fromhex(receipt["signature"])
    second = (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    with pytest.raises(ReceiptError, match="changed after"):
        check_signature(receipt | {"signature": (raw[:32] + second).hex()})


def test_a_signature_over_the_same_bytes_without_our_context_is_none(key: SigningKey, tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    own = SigningKey(private)
    named = CONTENT | {"key": own.public}
    assert check_signature(named | {"signature": private.sign(CONTEXT + canonical(named)).hex()}) == own.public
    with pytest.raises(ReceiptError, match="changed after"):
        check_signature(named | {"signature": private.sign(canonical(named)).hex()})


# ---- the key file


def test_the_first_use_makes_a_key_that_only_its_owner_can_read(tmp_path: Path) -> None:
    file = tmp_path / "new" / "key.pem"
    key = load_or_make(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert load_or_make(file).public == key.public
    assert list(file.parent.iterdir()) == [file]


def test_processes_that_start_together_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = {key.public for key in threads.map(load_or_make, [tmp_path / "key.pem"] * 32)}
    assert len(keys) == 1


def test_files_that_hold_no_such_key_are_named(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("nothing")
    with pytest.raises(KeyFileError, match=r"key\.pem holds no private key"):
        load_or_make(file)
    other = ec.generate_private_key(ec.SECP256R1())
    file.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyFileError, match="another kind"):
        load_or_make(file)


def test_a_key_that_everybody_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key.pem"
    load_or_make(file)
    assert not caplog.records
    file.chmod(0o644)
    load_or_make(file)
    assert "chmod 600" in caplog.text


def test_the_public_half_is_read_from_pem(key: SigningKey) -> None:
    assert public_key_of(key.public_pem.encode()) == key.public
    with pytest.raises(ReceiptError, match="no public key"):
        public_key_of(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")


def test_openssl_agrees(key: SigningKey, tmp_path: Path) -> None:
    """Another implementation, as docs/receipts.md shows it."""
    receipt = key.signed(CONTENT)
    (tmp_path / "key.pem").write_text(key.public_pem)
    (tmp_path / "receipt.json").write_text(json.dumps(receipt, indent=1))
    script = (
        "import json, sys; r = json.load(open('receipt.json')); s = r.pop('signature'); "
        "text = json.dumps(r, sort_keys=True, separators=(',', ':')); "
        "open('message', 'wb').write(b'baton receipt 1\\n' + text.encode()); "
        "open('signature', 'wb').write(bytes.fromhex(s))"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    command = "openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in message -sigfile signature".split()
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ).returncode == 0
    (tmp_path / "message").write_bytes(b"baton receipt 1\n{}")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ).returncode != 0

"""`baton receipt`: checks the signature of a receipt, and shows what it says."""

import asyncio
import json as json_module
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import MeshError, readable_errors
from cli.load.target import printable
from cli.output import emit_json, fail, say, write
from cli.receipts.ask import ReplayMesh
from gateway.receipts.canonical import ReceiptError, read_receipt
from gateway.receipts.shape import Receipt, ReceiptChoice, ReceiptPrompt, shaped
from gateway.receipts.signing import check_signature, public_key_of

ReceiptFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECEIPT", help="File with the receipt, or with the whole answer that carries it; - reads stdin."
    ),
]
KeyOption = Annotated[
    str,
    typer.Option(help="The gateway's public key: 64 hex digits, or a file: PEM, or what /v1/receipts/key answers."),
]
LATEST = 253_402_300_799  # the last second that has a date of four digits
_HEX = re.compile(r"[0-9a-fA-F]{64}")


def receipt(
    file: ReceiptFile,
    key: KeyOption = "",
    url: Annotated[str, typer.Option(help="HTTP address of a gateway whose key must have signed it.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: valid, key, reason.")] = False,
) -> None:
    """Check the signature of a receipt.

    Without --key and --url the check says only that nothing was changed since
    somebody signed it: the output names the key, and you decide whose it is.

    Exit status: 0 the signature is right; 1 it is not; 2 there is no receipt,
    or no key to check it with.

    Example: baton receipt receipt.json --url http://127.0.0.1:8000
    """
    with readable_errors():
        try:
            raw = read_receipt(read_file(file))
            wanted = read_key(key) if key else asyncio.run(ReplayMesh(url).key()) if url else None
            said = shaped(raw)
        except (ReceiptError, MeshError) as error:
            fail(str(error), status=2)
    try:
        signer, reason = check_signature(raw, wanted), ""
    except ReceiptError as error:
        signer, reason = str(raw.get("key")), str(error)
    if json:
        emit_json({"valid": not reason, "key": signer, "trusted": wanted is not None, "reason": reason})
    elif reason:
        say(f"baton: {reason}", style="red")
    else:
        shown = lines(said, signer, trusted=wanted is not None)
        write("".join(f"{printable(line)}\n" for line in shown))
    raise SystemExit(1 if reason else 0)


def lines(said: Receipt, signer: str, *, trusted: bool) -> list[str]:
    choices = [(prompt, choice) for prompt in said.prompts for choice in prompt.choices]
    when = datetime.fromtimestamp(min(max(said.created, 0), LATEST), UTC).strftime("%Y-%m-%d %H:%M:%S")
    whose = "the given key" if trusted else "a key that this check knows nothing about; name yours with --key or --url"
    return [
        f"{said.id}: nothing was changed since it was signed",
        f"  signed by  {signer} ({whose})",
        f"  model      {said.model}, hash {said.model_hash}",
        *(f"  class      {each.name} fingerprint {each.fingerprint}" for each in said.numerics),
        f"  when       {when} UTC, Baton {said.baton}, request {said.request_id}",
        *(_choice(prompt, choice) for prompt, choice in choices),
    ]


def _choice(prompt: ReceiptPrompt, choice: ReceiptChoice) -> str:
    brought = f" ({choice.given} given by the client)" if choice.given else ""
    about = f"{choice.tokens} tokens{brought} after {prompt.tokens}, {choice.finish_reason or 'no end'}"
    return f"  choice {choice.index}   {about}, seed {prompt.seed}, hash {choice.hash[:16]}…"


def read_file(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None


def read_key(given: str) -> str:
    """The public key in hex digits, from an option: the digits themselves, or a file."""
    if _HEX.fullmatch(given):
        return given.lower()
    raw = read_file(Path(given))
    try:
        if raw.lstrip().startswith(b"-----BEGIN"):
            return public_key_of(raw)
        content: Any = json_module.loads(raw)
        found = str(content["key"]) if isinstance(content, dict) else raw.decode().strip()
    except (ValueError, KeyError):
        found = raw.decode(errors="replace").strip()
    if not _HEX.fullmatch(found):
        raise ReceiptError(f"--key {given}: no Ed25519 public key of 64 hex digits, and no PEM file with one")
    return found.lower()

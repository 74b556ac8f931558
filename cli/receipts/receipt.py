"""`baton receipt`: checks the signature of a receipt and the answer around it, and shows what it says."""

import asyncio
import json as json_module
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cli.connecting.answer_text import printable
from cli.errors import MeshError, readable_errors
from cli.output import emit_json, fail, say, write
from cli.receipts.ask import ReplayMesh
from cli.receipts.checked import (
    NOT_COVERED,
    AnswerState,
    CheckedReceipt,
    CheckStatus,
    check_file,
    read_answer_file,
)
from gateway.receipts.answers.fields import AnswerDifference
from gateway.receipts.canonical import ReceiptError
from gateway.receipts.shape import ReceiptChoice, ReceiptPrompt, shaped
from gateway.receipts.signing import public_key_of

ReceiptFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECEIPT",
        help="File with the answer, whole or streamed, or with its receipt alone; - reads stdin.",
    ),
]
KeyOption = Annotated[
    str,
    typer.Option(help="The gateway's public key: hex digits, PEM, what /v1/receipts/key answers, or a file of these."),
]
MOST_CHANGES = 20  # that are printed without --json
_TITLES = {
    AnswerState.EQUAL: "nothing was changed since it was signed",
    AnswerState.NONE: "nothing was changed since it was signed; the file has no answer beside it",
    AnswerState.CHANGED: "the answer is not the one that was signed",
    AnswerState.NOT_COVERED: "the receipt itself was not changed, but it does not cover the answer around it",
}
LATEST = 253_402_300_799  # the last second that has a date of four digits
_HEX = re.compile(r"[0-9a-fA-F]{64}")


def receipt(
    file: ReceiptFile,
    key: KeyOption = "",
    url: Annotated[str, typer.Option(help="HTTP address of a gateway whose key must have signed it.")] = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: valid, key, trusted, reason, answer, changes.")
    ] = False,
) -> None:
    """Check who signed a receipt, and that the answer around it is as it was signed.

    The file may hold an answer of any API, whole or streamed, as it came. Each
    field that was changed, added or removed since then is named.

    Without --key and --url nobody says whose signature it must be: the output
    names the key that signed, and you decide whose it is.

    Exit status: 0 all is as the given key signed it; 1 something was changed,
    or another key signed it; 2 there is no receipt, or no key to check it with;
    3 nothing was changed, but no key was given; 4 the receipt is right, but of
    an older gateway: it does not cover the fields of the answer in the file.

    Example: baton receipt answer.json --url http://127.0.0.1:8000
    """
    with readable_errors():
        try:
            read = read_answer_file(read_file(file))
            wanted = read_key(key) if key else asyncio.run(ReplayMesh(url).key()) if url else None
            shaped(read.receipt)
        except (ReceiptError, MeshError) as error:
            fail(str(error), status=CheckStatus.NOTHING)
    try:
        found = check_file(read, wanted)
    except ReceiptError as error:
        _refused(str(error), str(read.receipt.get("key")), wanted is not None, json=json)
    reason = _reason(found)
    if json:
        emit_json({"valid": not reason, "reason": reason} | found.fields())
    else:
        write("".join(f"{printable(line)}\n" for line in lines(found)))
    raise SystemExit(int(found.status))


def _refused(reason: str, signer: str, trusted: bool, *, json: bool) -> NoReturn:
    if json:
        emit_json({"valid": False, "reason": reason, "key": signer, "trusted": trusted})
    else:
        say(f"baton: {reason}", style="red")
    raise SystemExit(int(CheckStatus.WRONG))


def _reason(found: CheckedReceipt) -> str:
    if found.answer is AnswerState.NOT_COVERED:
        return NOT_COVERED
    return "; ".join(each.text for each in found.changes)


def lines(found: CheckedReceipt) -> list[str]:
    said = found.receipt
    choices = [(prompt, choice) for prompt in said.prompts for choice in prompt.choices]
    when = datetime.fromtimestamp(min(max(said.created, 0), LATEST), UTC).strftime("%Y-%m-%d %H:%M:%S")
    whose = "the given key" if found.trusted else "a key that this check knows nothing about"
    return [
        f"{said.id}: {_TITLES[found.answer]}",
        *change_lines(found.changes),
        f"  signed by  {found.signer} ({whose})",
        f"  model      {said.model}, hash {said.model_hash}",
        *(f"  class      {each.name} fingerprint {each.fingerprint}" for each in said.numerics),
        f"  when       {when} UTC, Baton {said.baton}, request {said.request_id}",
        *(_choice(prompt, choice) for prompt, choice in choices),
        *found.warnings(),
    ]


def change_lines(changes: Sequence[AnswerDifference]) -> list[str]:
    more = [f"  and {len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    return [*(f"  {each.text}" for each in changes[:MOST_CHANGES]), *more]


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
    """The public key in hex digits, from an option: the digits, PEM or JSON themselves, or a file with them."""
    if _HEX.fullmatch(given):
        return given.lower()
    raw = given.encode() if given.lstrip().startswith(("{", "-----BEGIN")) else read_file(Path(given))
    try:
        if raw.lstrip().startswith(b"-----BEGIN"):
            return public_key_of(raw.lstrip())
        content: Any = json_module.loads(raw)
        found = str(content["key"]) if isinstance(content, dict) else raw.decode().strip()
    except (ValueError, KeyError, RecursionError):
        found = raw.decode(errors="replace").strip()
    if not _HEX.fullmatch(found):
        raise ReceiptError(f"--key {given}: no Ed25519 public key of 64 hex digits, and no PEM file with one")
    return found.lower()

"""`baton replay`: generates the answer of a receipt again, on any mesh of its class, and compares every token."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connecting.answer_text import printable
from cli.connecting.tls_options import ConfigFile, TlsCa, TlsCertificate, TlsKey, TlsName, client_config
from cli.errors import MeshError, readable_errors
from cli.output import emit_json, fail, write
from cli.receipts.ask import OtherClass, ReplayMesh, ask_grpc
from cli.receipts.checked import CheckStatus, check_file, read_answer_file
from cli.receipts.compare import ReplayDifference, compare, identity
from cli.receipts.receipt import KeyOption, ReceiptFile, read_file, read_key
from cli.receipts.requests import bodies, check_text, message, read_request
from gateway.receipts.canonical import ReceiptError
from gateway.receipts.shape import Receipt, ReceiptNumerics
from mesh.config.settings import API_KEY
from mesh.network.tls import TlsFiles, tls_files

MOST_LINES = 20  # differences that are printed without --json


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """The user gives this besides the receipt: a text, or a whole request."""

    text: str | None
    request: dict[str, Any] | None
    chat: bool = False


def replay(
    receipt: ReceiptFile,
    prompt: Annotated[str | None, typer.Option(help="The prompt, as the text of a completion.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the prompt, taken as it is.")] = None,
    request: Annotated[
        Path | None,
        typer.Option(help="File with the request's body, or with --address a GenerateRequest as JSON; - reads stdin."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a user's message of a chat.")] = False,
    url: Annotated[str, typer.Option(help="HTTP address of a gateway.")] = "http://127.0.0.1:8000",
    address: Annotated[str, typer.Option(help="gRPC address of a gateway, to ask over gRPC instead.")] = "",
    key: KeyOption = "",
    api_key: Annotated[
        str, typer.Option(envvar=[API_KEY, "OPENAI_API_KEY"], help="Sent over HTTP as a bearer token.")
    ] = "",
    config: ConfigFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_name: TlsName = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Generate the answer of a receipt again and compare every token with it.

    First the answer in the file is compared with what was signed, as `baton
    receipt` does: where a field was changed, nothing is asked.

    The mesh may have any shape; it must have the receipt's numerics class. Before a token is generated, the gateway
    refuses if it has no worker of that class. What the request leaves out (seed, max_tokens, sampling) comes from the
    receipt. Seeds of requests with several prompts are taken care of.

    Exit status: 0 every token is equal, and the given key signed the receipt;
    1 something differs, and the output says what; 2 the replay could not be
    made; 3 every token is equal, but no key was given, so who signed could not
    be judged; 4 every token is equal, but the receipt is of an older gateway
    and does not cover the fields of the answer in the file.

    Example: baton replay answer.json --prompt "Once upon a time" --key key.json

    Example: baton replay answer.json --request body.json --url http://other:8000
    """
    with readable_errors():
        try:
            file = read_answer_file(read_file(receipt))
            old = check_file(file, read_key(key) if key else None)
            source = _source(prompt, prompt_file, request, chat)
            tls = tls_files(client_config(config, tls_certificate, tls_key, tls_ca, tls_name))
            found = [ReplayDifference("answer", each.text) for each in old.changes]
            if not found:
                asked = differences(old.receipt, source, url=url, address=address, api_key=api_key, tls=tls)
                found = asyncio.run(asked)
        except (ReceiptError, MeshError) as error:
            fail(str(error), status=CheckStatus.NOTHING)
    if json:
        emit_json(summary(old.receipt, found) | old.fields())
    else:
        write("".join(f"{printable(line)}\n" for line in [*lines(old.receipt, found), *old.warnings()]))
    raise SystemExit(int(CheckStatus.WRONG if found else old.status))


async def differences(
    old: Receipt,
    source: ReplaySource,
    *,
    url: str,
    address: str = "",
    api_key: str = "",
    tls: TlsFiles | None = None,
) -> list[ReplayDifference]:
    """Replay the receipt; an empty list: every token is equal. ReceiptError or MeshError where that cannot be done."""
    found = list[ReplayDifference]()
    try:
        if address:
            asked = message(old, source.request, source.text, chat=source.chat)
            return compare(old, 0, await ask_grpc(address, asked, tls))
        mesh = ReplayMesh(url, api_key)
        for number, body in enumerate(list(bodies(old, source.request, source.text, chat=source.chat))):
            found += compare(old, number, await mesh.answer(body, old.model))
    except OtherClass as error:
        return [*found, *other_class(old, error.attached)]
    return found


def other_class(old: Receipt, attached: Sequence[ReceiptNumerics]) -> list[ReplayDifference]:
    """How the class of the mesh that comes nearest differs from the receipt's."""
    if not old.numerics:
        raise MeshError("the mesh has no worker of the numerics class, though none was asked for")
    wanted = old.numerics[0]
    nearest = sorted(attached, key=lambda each: (-_shared(each, wanted), each.name))[:1]
    found = [difference for each in nearest for difference in identity(wanted, each)]
    return found or [ReplayDifference("class", f"numerics class: this mesh has no worker of {wanted.name}")]


def _shared(one: ReceiptNumerics, other: ReceiptNumerics) -> int:
    """Words that the names of both classes have, the model's hash first."""
    return len(set(one.name.split()) & set(other.name.split()))


def summary(old: Receipt, found: Sequence[ReplayDifference]) -> dict[str, Any]:
    choices = [choice for prompt in old.prompts for choice in prompt.choices]
    return {
        "equal": not found,
        "receipt": old.id,
        "prompts": len(old.prompts),
        "choices": len(choices),
        "tokens": sum(choice.tokens for choice in choices),
        "differences": [difference.fields() for difference in found],
    }


def lines(old: Receipt, found: Sequence[ReplayDifference]) -> list[str]:
    about = summary(old, [])
    if not found:
        shown = f"equal: {about['tokens']} tokens in {about['choices']} choices"
        return [*changes(old), f"{shown}, class {old.numerics[0].name if old.numerics else '-'}"]
    more = [f"and {len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    return ["differs:", *(f"  {difference.text}" for difference in found[:MOST_LINES]), *more, *changes(old)]


def changes(old: Receipt) -> list[str]:
    """Where the answer of the receipt went on in another class: a replay stays in the first one."""
    return [
        f"the receipt's choice {choice.index} changed its class at token {first}; the replay did not"
        for prompt in old.prompts
        for choice in prompt.choices
        for first, _ in choice.spans[1:]
    ]


def _source(prompt: str | None, prompt_file: Path | None, request: Path | None, chat: bool) -> ReplaySource:
    options = {"--prompt": prompt, "--prompt-file": prompt_file, "--request": request}
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise ReceiptError(f"give one of --prompt, --prompt-file and --request, not {' and '.join(given) or 'none'}")
    if request is not None:
        if chat:
            raise ReceiptError("--chat goes with --prompt and --prompt-file; a request says itself that it is a chat")
        return ReplaySource(None, read_request(read_file(request)))
    if prompt_file is not None:
        try:
            prompt = read_file(prompt_file).decode()
        except UnicodeDecodeError as error:
            raise ReceiptError(f"{prompt_file} is not UTF-8: {error}") from None
    check_text(prompt or "", "the prompt")
    return ReplaySource(prompt, None, chat)

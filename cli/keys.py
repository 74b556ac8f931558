"""`baton keys add | list | remove`: the keys file of a gateway, whose setting `keys_file` names it.

A key is drawn here and printed once; the file holds its hash. The file is replaced as a whole, so a gateway that reads
it meanwhile sees the old rows or the new ones."""

import contextlib
import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import readable_errors
from cli.output import emit_json, say
from gateway.tenants.rows import KEY_HASH, OPERATOR, KeyRow, hash_of, parse_table, read_rows
from mesh.config.config_checks import ConfigError

HEADER = "# Tenants of a gateway: name, hash of the key, limits. `baton keys` writes this file.\n"
PREFIX = "baton-"  # by which people and scanners of source code know a key
KEY_BYTES = 32
SHORTEST_KEY = 24  # characters of a key that is brought along
SHOWN_DIGITS = 12  # digits of a hash that are the id of a key

app = typer.Typer(
    no_args_is_help=True, help="Keys of the tenants of a gateway.\n\nExample: baton keys add alice --file keys.txt"
)

File = Annotated[Path, typer.Option("--file", envvar="BATON_GATEWAY_KEYS_FILE", help="The gateway's keys_file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def keys() -> None:
    """Add, list and remove the keys with which tenants call a gateway.

    Example: baton keys add alice --file keys.txt --tokens-per-minute 60000
    """


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The tenant. One that is there already gets a further key.")],
    file: File,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Tokens of prompts and answers a minute.")] = None,
    burst_tokens: Annotated[
        int | None, typer.Option(help="Tokens that may be spent at once; the default is those of a minute.")
    ] = None,
    concurrent: Annotated[int | None, typer.Option(help="Choices that may run at a time.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Seconds by which its requests count as younger, from -600 to 600.")
    ] = None,
    priorities: Annotated[
        str | None, typer.Option(help="LOW..HIGH: what its clients may add by `priority`; the default is 0..600.")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="It may look at /metrics, /ui and /debug.")] = False,
    certificate: Annotated[
        str | None, typer.Option(help="A name in its client certificate, in place of a key.")
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the key from stdin instead of drawing one.")] = False,
    json: Json = False,
) -> None:
    """Add a tenant, or a further key of one, and print the key. It cannot be shown again.

    Example: baton keys add alice --file keys.txt --tokens-per-minute 60000 --concurrent 8
    """
    given = {
        "tokens_per_minute": tokens_per_minute,
        "burst_tokens": burst_tokens,
        "concurrent": concurrent,
        "priority": priority,
        "priorities": priorities,
    }
    limits = [f"{limit}={value}" for limit, value in given.items() if value is not None]
    limits += [OPERATOR] if operator else []
    with readable_errors():
        if certificate is not None and stdin:
            raise ConfigError("--certificate: a row has a certificate or a key; leave --stdin out")
        key = "" if certificate is not None else _given_key() if stdin else PREFIX + secrets.token_urlsafe(KEY_BYTES)
        credential = f"certificate:{certificate}" if certificate is not None else hash_of(key)
        with _rewriting(file) as lines:
            lines.append(" ".join([name, credential, *limits]) + "\n")
    if json:
        emit_json({"name": name, "id": key_id(credential)} | ({"key": key} if key else {}))
    elif key and not stdin:
        say(f"the key of {name}, which {file} holds as a hash only:")
        print(key)
    else:
        say(f"added {name}, {key_id(credential)}")


@app.command("list")
def show(file: File, json: Json = False) -> None:
    """List tenants, the ids of their keys and their limits.

    Example: baton keys list --file keys.txt
    """
    with readable_errors():
        rows = [row for row in read_rows(_read(file), str(file)) if row is not None]
        parse_table(_read(file), str(file))
    if json:
        emit_json({"keys": [_facts(row) for row in rows]})
        return
    for row in rows:
        print(f"{row.name:<24} {key_id(row.credential):<24} {' '.join(row.limits)}".rstrip())


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The tenant.")],
    file: File,
    id: Annotated[str | None, typer.Option(help="Only the key with this id, as `baton keys list` shows it.")] = None,
    json: Json = False,
) -> None:
    """Remove a tenant with all its keys, or one key of it. A running gateway refuses the key within a second or two.

    Example: baton keys remove alice --file keys.txt
    """
    with readable_errors(), _rewriting(file) as lines:
        rows = list(read_rows("".join(lines), str(file)))
        gone = [n for n, row in enumerate(rows) if row is not None and row.name == name and id in (None, _id_of(row))]
        if not gone:
            raise ConfigError(f"{file} holds no key of {name}{f' with the id {id}' if id else ''}")
        left = [n for n, row in enumerate(rows) if row is not None and row.name == name and n not in gone]
        first = rows[gone[0]]
        if left and first is not None and first.limits and gone[0] < left[0]:  # the next key takes the limits over
            lines[left[0]] = " ".join([lines[left[0]].rstrip("\n"), *first.limits]) + "\n"
        for number in reversed(gone):
            del lines[number]
    if json:
        emit_json({"name": name, "removed": len(gone)})
    else:
        say(f"removed {len(gone)} key{'s' if len(gone) > 1 else ''} of {name}")


def key_id(credential: str) -> str:
    """A short name of a credential; a key cannot be found from it."""
    return credential.removeprefix(KEY_HASH)[:SHOWN_DIGITS] if credential.startswith(KEY_HASH) else credential


def _id_of(row: KeyRow) -> str:
    return key_id(row.credential)


def _facts(row: KeyRow) -> dict[str, Any]:
    return {"name": row.name, "id": key_id(row.credential), "limits": list(row.limits)}


def _given_key() -> str:
    key = sys.stdin.readline().strip()
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"--stdin: a key has {SHORTEST_KEY} or more printable ASCII characters, without spaces")
    return key


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--file: there is no {file}; `baton keys add` makes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file: {file} cannot be read ({error})") from None


@contextlib.contextmanager
def _rewriting(file: Path) -> Iterator[list[str]]:
    """The lines of the file; afterwards it is replaced by them, if all are valid. One command at a time does so."""
    file = file.resolve()
    folder = file.parent
    if not folder.is_dir():
        raise ConfigError(f"--file: there is no folder {folder}")
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = _read(file) if file.exists() else HEADER
        lines = (text if text.endswith("\n") else f"{text}\n").splitlines(keepends=True)
        yield lines
        content = "".join(lines) or HEADER
        parse_table(content, str(file))
        descriptor, draft = tempfile.mkstemp(dir=folder, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as new:
                new.write(content)
                new.flush()
                os.fsync(new.fileno())
            if file.exists():
                before = file.stat()
                os.chmod(draft, before.st_mode & 0o777)
                with contextlib.suppress(PermissionError):
                    os.chown(draft, before.st_uid, before.st_gid)
            os.replace(draft, file)
        except BaseException:
            os.unlink(draft)
            raise
    finally:
        os.close(lock)

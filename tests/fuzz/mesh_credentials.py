"""Fuzz targets of the places where a peer is admitted to the mesh: tokens, incarnations, certificates.

Nothing wrong is ever admitted, and what is right always is. The rule is written down here once more, in plain words of
Python: one header with one of the file's lines; a secret equal to the first one shown; a certificate of the
own authority with the name that was dialled, whatever happens to the bytes on the way."""

import atexit
import shutil
import ssl
import tempfile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from decode_svc.handoff.writers import SECRET_BYTES, Writers
from mesh.messages.kv_messages import KvHello
from mesh.network.mesh_token import HEADER, MeshToken
from mesh.network.tls import TlsFiles
from mesh.network.token_guard import OPEN_SERVICES, TokenGuard
from tests.fuzz.case_loop import case_loop
from tests.fuzz.cases import Wrong, chance, mutated
from tests.unit.certificates import Authority, files_in

TOKENS = ("0123456789abcdef" * 2, "fedcba9876543210-next")
METHODS = ("/baton.worker.v1.WorkerService/Attach", "/baton.kv.v1.KvService/Session", "/baton.worker.v1.X/Register")
HEALTH = "/grpc.health.v1.Health/Check"
_TOKEN: list[MeshToken] = []
_FILES: dict[str, TlsFiles] = {}


def mesh_credentials(rng: Random) -> bool:
    """A case reaches deep states when a right credential was admitted."""
    return _secret(rng) if chance(rng, 0.3) else _guarded(rng)


def _guarded(rng: Random) -> bool:
    """A call with drawn metadata at the interceptor that every service has."""
    metadata = [(_name(rng), _shown(rng)) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    method = rng.choice((*METHODS, *METHODS, HEALTH, HEALTH[1:], "/grpc.health.v1.Healthy/Check", "", METHODS[0][:9]))
    with case_loop() as loop:
        guard, continued = TokenGuard(_mesh_token()), list[Any]()

        async def go_on(details: Any) -> str:
            continued.append(details)
            return "served"

        call = SimpleNamespace(method=method, invocation_metadata=metadata)
        answer = loop.run(guard.intercept_service(go_on, call))
        if (answer == "served") != bool(continued):
            raise Wrong("a refused call was served")
        shown = [value if isinstance(value, bytes) else value.encode() for name, value in metadata if name == HEADER]
        known = len(shown) == 1 and shown[0] in {token.encode() for token in TOKENS}
        opened = method.startswith(OPEN_SERVICES)
        if bool(continued) != (known or opened):
            raise Wrong(f"{method} with {metadata} was {'admitted' if continued else 'refused'}")
        return known and not opened


def _name(rng: Random) -> str:
    return (
        HEADER if chance(rng, 0.8) else rng.choice((HEADER.upper(), HEADER + "-bin", "authorization", "", HEADER[:-1]))
    )


def _shown(rng: Random) -> str | bytes:
    """A token of the file, or something near it."""
    token = rng.choice(TOKENS)
    match rng.randrange(10):
        case 0:
            return token[: rng.randrange(len(token))]
        case 1:
            return token + rng.choice((" ", "\n", "\0", token, "a"))
        case 2:
            return mutated(rng, token.encode())
        case 3:
            return rng.choice(("", " ", "é" * 16, "\ud7ff", "\n".join(TOKENS), token.swapcase(), token[::-1]))
        case 4 | 5:
            return token.encode()
        case _:
            return token


def _secret(rng: Random) -> bool:
    """Prefill workers show incarnations and secrets, among them those of others; few are remembered here."""
    writers, first, deep = Writers(most=4), dict[int, bytes](), False
    for _ in range(rng.randint(2, 8)):
        incarnation = rng.choice((1, 2, 3, (1 << 64) - 1))
        secret = rng.choice((b"", b"a" * 32, b"b" * 32, b"a" * 31, b"a" * SECRET_BYTES, b"a" * (SECRET_BYTES + 1)))
        problem = writers.problem(KvHello(incarnation, "", None, "", 0, 0, secret=secret))
        right = len(secret) <= SECRET_BYTES and first.setdefault(incarnation, secret) == secret
        if right == bool(problem):
            raise Wrong(f"secret {secret!r} for {incarnation} was {'refused' if problem else 'admitted'}: {problem}")
        deep = deep or (right and not problem)
    return deep


def tls_handshakes(rng: Random) -> bool:
    """Both ends of a handshake in memory, of which one may have wrong files and the bytes may be changed on the way. A
    case reaches deep states when both ends have admitted each other."""
    made = _files()
    server, client = (rng.choice(("ours", "ours", "ours", "stranger", "other_name")) for _ in range(2))
    name = rng.choice(("worker.mesh", "worker.mesh", "worker.mesh", "another.mesh", "worker.mesh.evil"))
    tampered = chance(rng, 0.3)
    done = _shake(made[server].current().accepting, made[client].current().dialling, name, rng if tampered else None)
    served, dialled, changed = done
    one_authority = (server == "stranger") == (client == "stranger")
    named = name == ("another.mesh" if server == "other_name" else "worker.mesh")
    if dialled and not (one_authority and named):
        raise Wrong(f"a client with {client} files admitted a server with {server} files as {name}")
    if served and not one_authority:
        raise Wrong(f"a server with {server} files admitted a client with {client} files")
    if one_authority and named and not (served and dialled) and not changed:
        raise Wrong(f"server {server}, client {client}, name {name}: refused")
    return served and dialled


def _shake(
    accepting: ssl.SSLContext, dialling: ssl.SSLContext, name: str, tamper: Random | None
) -> tuple[bool, bool, bool]:
    """Whether the server admitted the client, the client the server, and whether bytes were changed."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = dialling.wrap_bio(to_client, to_server, server_hostname=name)
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    over, changed = {"client": False, "server": False}, False
    when = tamper.randrange(3) if tamper is not None else -1
    for turn in range(4):
        for which, end, sends in (("client", client, to_server), ("server", server, to_client)):
            try:
                if not over[which]:
                    end.do_handshake()
                    over[which] = True
                elif turn > 1:
                    end.read(1)
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass
            except (ssl.SSLError, ssl.CertificateError):
                over[which] = False
                return over["server"] and which != "client", False, changed
            if tamper is not None and turn * 2 + (which == "server") == when and sends.pending:
                raw = sends.read()
                other = mutated(tamper, raw)
                changed = changed or other != raw
                sends.write(other)
    return over["server"], over["client"], changed


def _files() -> dict[str, TlsFiles]:
    """Made once for this process: ours, another name under our authority, and those of a foreign authority."""
    if not _FILES:
        folder = Path(tempfile.mkdtemp(prefix="baton-"))
        atexit.register(_remove, folder)
        ours, others = Authority(folder / "authority"), Authority(folder / "strange")
        _FILES["ours"] = files_in(ours.sign(folder / "ours", names="DNS:worker.mesh"))
        _FILES["other_name"] = files_in(ours.sign(folder / "other", names="DNS:another.mesh"))
        _FILES["stranger"] = files_in(others.sign(folder / "stranger", names="DNS:worker.mesh"))
    return _FILES


def _mesh_token() -> MeshToken:
    if not _TOKEN:
        folder = Path(tempfile.mkdtemp(prefix="baton-"))
        atexit.register(_remove, folder)
        (folder / "token").write_text("\n".join(TOKENS) + "\n")
        _TOKEN.append(MeshToken(folder / "token"))
    return _TOKEN[0]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)

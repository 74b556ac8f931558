"""Certificates for trying a mesh behind sidecars out: an authority, and one certificate per member with its SPIFFE id.

They are made with the openssl command. For a mesh that lasts, let the authority that you run already sign them; what a
certificate must carry is in docs/envoy.md."""

import ipaddress
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cli.envoy.members import Member
from mesh.config.config_checks import ConfigError, split_address

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path, days: int) -> None:
    """Write ca.pem and ca.key into the folder, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "ca.pem").is_file() and (folder / "ca.key").is_file():
        return
    usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(
        *("req", "-x509", *KEY, "-days", str(days), "-subj", "/CN=baton-ca", *usage),
        *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem")),
    )


def make_certificate(folder: Path, member: Member, *, trust_domain: str, hosts: Sequence[str] = (), days: int) -> Path:
    """Write certificate.pem, key.pem and ca.pem into a folder of the member's name; what was there is replaced, the
    certificate last."""
    own = folder / member.name
    own.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own) as scratch:
        request, signed, key, extensions = (Path(scratch) / name for name in ("request", "signed", "key", "extensions"))
        _openssl("req", *KEY, "-subj", f"/CN={member.name}", "-keyout", str(key), "-out", str(request))
        names = [f"URI:{member.identity(trust_domain)}", *_names(member, hosts)]
        extensions.write_text(
            f"subjectAltName={','.join(names)}\n"
            "basicConstraints=critical,CA:FALSE\n"
            "keyUsage=critical,digitalSignature\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key")),
            *("-CAcreateserial", "-CAserial", str(Path(scratch) / "serial"), "-days", str(days)),
            *("-extfile", str(extensions), "-out", str(signed)),
        )
        authority = Path(scratch) / "ca"
        shutil.copyfile(folder / "ca.pem", authority)
        for file, name in ((authority, "ca.pem"), (key, "key.pem"), (signed, "certificate.pem")):
            file.replace(own / name)
    return own


def _names(member: Member, hosts: Sequence[str]) -> list[str]:
    """The hosts under which the member is dialled: clients of the edge check them, and services that push pages."""
    found = [member.name, split_address(member.address)[0], "localhost", "127.0.0.1", *hosts]
    return [f"{'IP' if _is_ip(host) else 'DNS'}:{host}" for host in dict.fromkeys(found)]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError("openssl: there is no such command; install OpenSSL, it makes the certificates") from None
    if done.returncode != 0:
        raise ConfigError(f"openssl {arguments[0]}: {done.stderr.strip()}")

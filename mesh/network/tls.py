"""Mutual TLS between the services of a mesh: one certificate, key and CA per process, read again when the files change.

Every port that carries requests or pages asks its peer for a certificate of the CA, and every dial shows one and checks
the server's. Each new connection uses the files as they are then; connections that stand are left alone. Files that do
not fit together, as in the middle of a renewal, are not used: the last good ones stay, and a warning names the key."""

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import grpc

from mesh.config.common_config import TlsConfig
from mesh.config.config_checks import ConfigError

log = logging.getLogger("baton.tls")

# Encoded object identifiers of the algorithms that BoringSSL leaves out of its handshakes, by name.
_UNUSABLE = {
    "Ed25519": bytes.fromhex("06032b6570"),
    "Ed448": bytes.fromhex("06032b6571"),
    "P-521": bytes.fromhex("06052b81040023"),
}
_Stamp = tuple[tuple[int, ...], ...]  # changes whenever one of the files does


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The content of the files at one moment, as gRPC (PEM) and sockets (contexts) want it."""

    certificate: bytes
    key: bytes
    authority: bytes
    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


class TlsFiles:
    """Certificate that a process shows to its peers, and the authority whose peers it accepts. The constructor raises
    ConfigError when the files cannot be used."""

    def __init__(self, certificate: Path, key: Path, authority: Path, *, name: str = "") -> None:
        self.name = name  # expected in every server's certificate; empty: the host that was dialled
        self._certificate, self._key, self._authority = certificate, key, authority
        self._turn = Lock()  # gRPC calls from threads of its own
        self._seen = self._stamp()
        self._identity = self._read()

    def current(self) -> TlsIdentity:
        """The newest files that fit together."""
        with self._turn:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                try:
                    self._identity = self._read()
                    log.info("the TLS files changed: new connections use them")
                except ConfigError as error:
                    log.warning("%s. New connections use the files as they were before", error)
            return self._identity

    # ---- gRPC

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials for one port. Peers without a certificate of the CA do not get past the handshake."""
        used = self.current()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """gRPC calls this before each handshake; None keeps the files in use."""
            nonlocal used
            before, used = used, self.current()
            return None if used is before else _configuration(used)

        first = _configuration(used)
        return grpc.dynamic_ssl_server_credentials(first, renewed, require_client_authentication=True)  # type: ignore[arg-type]

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for one dial."""
        now = self.current()
        return grpc.ssl_channel_credentials(now.authority, now.key, now.certificate)

    def channel_options(self) -> tuple[tuple[str, str], ...]:
        return (("grpc.ssl_target_name_override", self.name),) if self.name else ()

    # ---- sockets

    def listening_context(self) -> ssl.SSLContext:
        """The context of one listening socket. Each handshake uses the files of that moment: OpenSSL calls `renew` in
        every handshake, before it shows a certificate or checks one."""
        context = _context(ssl.PROTOCOL_TLS_SERVER)

        def renew(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.current().accepting

        context.sni_callback = renew
        return context

    def dialling_context(self) -> ssl.SSLContext:
        """The context of one dial."""
        return self.current().dialling

    def _stamp(self) -> _Stamp:
        stamps = list[tuple[int, ...]]()
        for file in (self._certificate, self._key, self._authority):
            try:
                state = file.stat()
                stamps.append((state.st_mtime_ns, state.st_size, state.st_ino))
            except OSError:
                stamps.append(())
        return tuple(stamps)

    def _read(self) -> TlsIdentity:
        before = self._stamp()
        certificate = _content("tls_certificate", self._certificate)
        key = _content("tls_key", self._key)
        authority = _content("tls_ca", self._authority).decode("ascii", "ignore")  # comments may have other letters
        accepting, dialling = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
        for context in (accepting, dialling):
            try:
                context.load_cert_chain(self._certificate, self._key, self._refuse_passphrase)
            except ConfigError:
                raise
            except (OSError, ValueError) as error:
                files = f"{self._certificate} and {self._key}"
                raise ConfigError(f"tls_certificate: {files} are no PEM certificate with its key ({error})") from None
            try:
                context.load_verify_locations(cadata=authority)
            except (OSError, ValueError) as error:
                raise ConfigError(f"tls_ca: {self._authority} holds no PEM certificate ({error})") from None
        if kind := _unusable_kind(certificate):
            raise ConfigError(
                f"tls_certificate: {self._certificate} uses {kind}, which gRPC does not take; sign one with a key of "
                "P-256, P-384 or RSA"
            )
        if self._stamp() != before:
            raise ConfigError(f"tls_certificate: {self._certificate} or a file beside it changed while it was read")
        if problem := _refusal(accepting, dialling, self.name):
            log.warning(
                "tls_certificate: services with this tls_ca and tls_name refuse %s: %s", self._certificate, problem
            )
        return TlsIdentity(certificate, key, authority.encode(), accepting, dialling)

    def _refuse_passphrase(self) -> str:
        """OpenSSL calls this for an encrypted key; without it, it would ask at the terminal."""
        raise ConfigError(
            f"tls_key: {self._key} is encrypted, and no service can enter its passphrase; decrypt it with "
            f"`openssl pkey -in {self._key} -out NEW` and protect the new file by its rights"
        )


def tls_files(config: TlsConfig) -> TlsFiles | None:
    """The files that the settings of a service or client name; None: plain text."""
    if config.tls_certificate is None or config.tls_key is None or config.tls_ca is None:
        return None  # the configuration holds all three or none
    return TlsFiles(config.tls_certificate, config.tls_key, config.tls_ca, name=config.tls_name)


def open_channel(address: str, tls: TlsFiles | None, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """The one place that decides whether a gRPC connection of this process is encrypted."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=(*options, *tls.channel_options()))


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would skip the check against a CA that has changed since
    return context


def _refusal(accepting: ssl.SSLContext, dialling: ssl.SSLContext, name: str) -> str:
    """Why a peer with the same files would refuse this process, as server or as client; empty: it would not. Both ends
    of one handshake run here, in memory, because Python's ssl cannot check a certificate otherwise."""
    checks_host, dialling.check_hostname = dialling.check_hostname, bool(name)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = dialling.wrap_bio(to_client, to_server, server_hostname=name or None)
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server, client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or str(error)
    finally:
        dialling.check_hostname = checks_host
    return ""


def _unusable_kind(certificate: bytes) -> str:
    """The algorithm of the certificate with which no gRPC handshake succeeds; empty: none."""
    first = certificate[certificate.find(b"-----BEGIN CERT") :].partition(b"-----END CERTIFICATE-----")
    der = ssl.PEM_cert_to_DER_cert((first[0] + first[1]).decode("ascii", "ignore"))
    return next((kind for kind, identifier in _UNUSABLE.items() if identifier in der), "")


def _content(key: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from None


def _configuration(identity: TlsIdentity) -> grpc.ServerCertificateConfiguration:
    pair = (identity.key, identity.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=identity.authority)

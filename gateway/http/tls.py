"""TLS at the HTTP port, for clients: a certificate to show, and an authority whose clients alone get in, if one is set.

The settings `tls_*` are another matter: they are between the services of the mesh."""

import ssl

from mesh.config.config_checks import ConfigError
from mesh.config.door_config import DoorConfig


def http_tls(config: DoorConfig) -> ssl.SSLContext | None:
    """The context of the HTTP port; None: plain HTTP. Raises ConfigError when the files cannot be used."""
    certificate, key = config.http_tls_certificate, config.http_tls_key
    if certificate is None or key is None:
        return None  # the configuration holds both or none
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])

    def refuse_passphrase() -> str:
        raise ConfigError(f"http_tls_key: {key} is encrypted, and no service can enter its passphrase; decrypt it")

    try:
        context.load_cert_chain(certificate, key, refuse_passphrase)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        files = f"{certificate} and {key}"
        raise ConfigError(f"http_tls_certificate: {files} are no PEM certificate with its key ({error})") from None
    if config.http_tls_ca is not None:
        try:
            context.load_verify_locations(cafile=config.http_tls_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(f"http_tls_ca: {config.http_tls_ca} holds no PEM certificate ({error})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context

"""TLS of an Envoy: its certificate, the authority that it trusts, and what it asks of the other end.

Inside the mesh both ends show certificates of one authority. The end that is dialled admits the whole trust domain and
leaves the choice to RBAC, which answers with a status that the caller can read; the end that dials pins the exact
SPIFFE id of its peer."""

from pathlib import PurePath
from typing import Any

from cli.envoy.document import extension, typed
from cli.envoy.proxy import Proxy

IDENTITY, AUTHORITY, PUBLIC = "identity", "authority", "public"
MESH_VERSIONS = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
CLIENT_VERSIONS = {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"}


def static_secrets(proxy: Proxy) -> list[dict[str, Any]]:
    """The files, read once when Envoy starts. With watched secrets there are only the edge's own."""
    secrets = [] if proxy.secrets else secret_files(proxy.certificate, proxy.key, proxy.ca)
    if proxy.is_edge:
        secrets.append(_pair(PUBLIC, proxy.public_certificate, proxy.public_key))
    return secrets


def secret_files(certificate: str, key: str, ca: str) -> list[dict[str, Any]]:
    authority = {"trusted_ca": {"filename": ca}}
    return [_pair(IDENTITY, certificate, key), {"name": AUTHORITY, "validation_context": authority}]


def watched_secrets(certificate: str, key: str, ca: str) -> dict[str, dict[str, Any]]:
    """The files of secrets by their names, one secret in each, as Envoy wants them. Envoy reads the PEM files anew when
    something is moved into their folder."""
    found = dict[str, dict[str, Any]]()
    for secret in secret_files(certificate, key, ca):
        name = secret.pop("name")
        ((kind, content),) = secret.items()
        watched = {kind: {**content, "watched_directory": {"path": str(PurePath(certificate).parent)}}}
        found[f"{name}.yaml"] = {
            "resources": [{**typed("extensions.transport_sockets.tls.v3.Secret"), "name": name, **watched}]
        }
    return found


def inbound_tls(proxy: Proxy) -> dict[str, Any]:
    sans = [{"san_type": "URI", "matcher": {"prefix": f"spiffe://{proxy.trust_domain}/"}}]
    return extension(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.DownstreamTlsContext",
        require_client_certificate=True,
        common_tls_context=_mutual(proxy, sans),
        # A resumed session would skip the check of a certificate against an authority that has changed.
        disable_stateless_session_resumption=True,
    )


def outbound_tls(proxy: Proxy, identities: tuple[str, ...]) -> dict[str, Any]:
    sans = [{"san_type": "URI", "matcher": {"exact": identity}} for identity in identities]
    return extension(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context=_mutual(proxy, sans),
        max_session_keys=0,
    )


def public_tls(proxy: Proxy) -> dict[str, Any]:
    return extension(
        "envoy.transport_sockets.tls",
        "transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": CLIENT_VERSIONS,
            "tls_certificate_sds_secret_configs": [{"name": PUBLIC}],
        },
    )


def _mutual(proxy: Proxy, sans: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "alpn_protocols": ["h2"],
        "tls_params": MESH_VERSIONS,  # as a client Envoy would stop at TLS 1.2 if it were not allowed more
        "tls_certificate_sds_secret_configs": [_secret(proxy, IDENTITY)],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": sans},
            "validation_context_sds_secret_config": _secret(proxy, AUTHORITY),
        },
    }


def _secret(proxy: Proxy, name: str) -> dict[str, Any]:
    if not proxy.secrets:
        return {"name": name}
    return {
        "name": name,
        "sds_config": {
            "resource_api_version": "V3",
            "path_config_source": {"path": str(PurePath(proxy.secrets) / f"{name}.yaml")},
        },
    }


def _pair(name: str, certificate: str, key: str) -> dict[str, Any]:
    files = {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}
    return {"name": name, "tls_certificate": files}

"""The remedy for a call that the sidecar of this process, or the peer's, refuses: Envoy names what broke, not what to
change.

`baton envoy render` writes UNKNOWN_PEER into the answer to a call for an address that is in no `--peer`."""

UNKNOWN_PEER = "sidecar: no peer has this address"

_REMEDIES = (
    (
        UNKNOWN_PEER,
        "render this process's sidecar again with a --peer of exactly this address: what the peer advertises, or what "
        "`gateways` names",
    ),
    (
        "rbac: access denied",
        "the peer's sidecar refuses this process's identity for this call: render the peer's sidecar again with a "
        "--peer of this process's tier and name, or give this process the certificate of its name",
    ),
    (
        "no healthy upstream",
        "its health checks or its last calls failed, so this process's sidecar sends it nothing for a while: see "
        "whether the peer and its sidecar run",
    ),
    (
        "certificate_verify_failed",
        "the peer's certificate has expired, or does not carry the SPIFFE id of its --peer, or has another authority",
    ),
    (
        "tls_error",
        "the two sidecars do not accept each other's certificates: both need one authority and one trust domain, and "
        "neither certificate may have expired",
    ),
    (
        "upstream connect error",
        "this process's sidecar, or the peer's, reaches no process there: its access log names the reason",
    ),
)


def with_sidecar_advice(problem: str, sidecar: str) -> str:
    """The message of a failed call through the sidecar at this address, followed by what to do."""
    seen = problem.lower()
    if "failed to connect to all addresses" in seen or "failed to connect to remote host" in seen:
        return f"{problem} (no Envoy answers at {sidecar}: start this process's sidecar, or correct `sidecar`)"
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in seen), "")
    return f"{problem} ({remedy})" if remedy else problem

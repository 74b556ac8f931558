"""The remedy for a connection that fails because of TLS: gRPC and OpenSSL name what broke, not what to change.

A refused peer learns little by design: the server of a TLS mesh closes the connection without a reason, and its own log
has it."""

_ALL_SERVICES = "set tls_certificate, tls_key and tls_ca for every service and client of the mesh, or for none"


def advice(problem: str, *, tls: bool, name: str = "") -> str:
    """Remedy for a connection that failed with this message; empty when TLS has nothing to do with it. `name` is the
    tls_name of this process."""
    problem = problem.lower()
    closed = "socket closed" in problem or "connection reset" in problem
    if not tls:
        return f"it may want TLS, which this process does not speak: {_ALL_SERVICES}" if closed else ""
    if "wrong_version_number" in problem or "wrong version number" in problem:
        return f"it speaks plain text and this process TLS: {_ALL_SERVICES}"
    if "hostname verification" in problem or "hostname mismatch" in problem or "ip address mismatch" in problem:
        wanted = f"{name!r} (tls_name)" if name else "the host that was dialled"
        return f"its certificate does not carry {wanted}: sign it for that name, or set tls_name to the name it carries"
    if "expired" in problem:
        return "its certificate has expired: renew the file of its tls_certificate"
    if "certificate_verify_failed" in problem or "certificate verify failed" in problem:
        return "no authority of tls_ca signed its certificate: every process of a mesh needs the same authorities"
    if closed or "alert" in problem:
        return (
            "it may refuse this process's tls_certificate, if that has expired or if none of its own tls_ca signed it; "
            "its log says which"
        )
    return ""


def with_advice(problem: str, *, tls: bool, name: str = "") -> str:
    """The message, followed by what to do."""
    more = advice(problem, tls=tls, name=name)
    return f"{problem} ({more})" if more else problem

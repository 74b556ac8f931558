"""The error that a client receives for an exception: errors of the closed list as they are; anything else is a defect
of ours, which is logged in full and reaches the client without its details."""

import logging

from mesh.errors import BatonError, Internal

log = logging.getLogger("baton.gateway")


def client_error(error: Exception, request_id: str) -> BatonError:
    if isinstance(error, BatonError):
        return error
    log.error("request %s: %r", request_id, error, exc_info=error)
    return Internal(f"an internal error ended the request; the gateway's log has more under request id {request_id}")

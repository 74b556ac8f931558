"""What a client is told of an error: those of the closed list as they are, anything else as a defect of ours, logged in
full and told without detail."""

import logging

from mesh.errors import BatonError, Internal

log = logging.getLogger("baton.gateway")


def told(error: Exception, request_id: str) -> BatonError:
    if isinstance(error, BatonError):
        return error
    log.error("request %s: %r", request_id, error, exc_info=error)
    return Internal(f"an internal error ended the request; the gateway's log has more under request id {request_id}")

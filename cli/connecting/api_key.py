"""The key with which commands call a gateway that has tenants: the variable BATON_API_KEY, never an argument, since
other users of a machine can see arguments."""

import os

from mesh.config.settings import API_KEY


def api_key_headers(given: str = "") -> dict[str, str]:
    """The header of every request, also as metadata of gRPC; none without a key. `given`: replaces the variable."""
    key = given or os.environ.get(API_KEY, "").strip()
    return {"authorization": f"Bearer {key}"} if key else {}

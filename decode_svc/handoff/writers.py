"""Which process each prefill worker's incarnation belongs to: the one that was the first to show it here.

An incarnation is no secret: gateways, other workers and operators see it. So a prefill worker draws a secret for each
decode worker and shows it in every KvHello. A process that shows another one under a known incarnation gets no session:
it hears no ticket, gets no handle of the pool, and its Quiet and Commit prove nothing."""

import hmac
from collections import OrderedDict

from mesh.messages.kv_messages import KvHello

MOST_WRITERS = 16_384  # whose secrets are kept; the one whose last session began longest ago is forgotten
SECRET_BYTES = 64  # length of the longest secret


class Writers:
    def __init__(self, most: int = MOST_WRITERS) -> None:
        self._most = most
        self._secrets: OrderedDict[int, bytes] = OrderedDict()  # by incarnation

    def problem(self, hello: KvHello) -> str:
        """Why this process gets no session; empty: it gets one, and the incarnation is its own from now on."""
        if len(hello.secret) > SECRET_BYTES:
            return f"secret: has {len(hello.secret)} bytes, more than {SECRET_BYTES}"
        known = self._secrets.setdefault(hello.incarnation, hello.secret)
        if not same_process(known, hello):
            return f"incarnation: {hello.incarnation:016x} belongs to another process, which showed it first"
        self._secrets.move_to_end(hello.incarnation)
        if len(self._secrets) > self._most:
            self._secrets.popitem(last=False)
        return ""


def same_process(known: bytes, hello: KvHello) -> bool:
    """Rule [incarnation]: proof counts only from the process that opened the landing, and an incarnation alone proves
    nothing. Otherwise a stranger that shows it hears Abort with the ticket, answers Quiet, and the pages are free under
    live writes."""
    return hmac.compare_digest(known, hello.secret)

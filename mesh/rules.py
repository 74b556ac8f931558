"""The rules of the hand-off protocol and its timers. No configuration reaches this object: only tests build another,
to switch one rule off and show what it prevents."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    first: bool = True  # decode emits from base on, also when prefill has sent that token
    resend_count: bool = True  # Commit counts only with the current round
    one_ready: bool = True  # one unanswered Ready per ticket
    requiet: bool = True  # Abort is repeated in a new session; an unknown ticket is answered Quiet
    sink: bool = True  # two-sided: a half-received frame is drained elsewhere when its landing ends
    incarnation: bool = True  # Quiet counts for the incarnation that sent it only
    ticket: bool = True  # the gateway's random bits are part of the ticket
    attempt: bool = True  # the gateway forwards tokens of the current attempt only
    early: bool = True  # a Ready that overtakes its Open is put off, not refused
    quarantine: bool = True  # one-sided: pages of an ended landing wait for proof
    checksum: bool = True  # every span is checked before it can be read

    heartbeat_seconds: float = 1.0
    lease_seconds: float = 5.0
    late_seconds: float = 1.0  # an end whose own loop was later than this renews leases before it judges
    ready_seconds: float = 0.1  # silence after Ready: take other prompts
    again_seconds: float = 0.1  # after Later: ask again at the latest
    progress_seconds: float = 2.0  # landing without progress
    progress_steps: float = 4.0  # ... or this many of prefill's longest steps
    missing_seconds: float = 0.2  # two-sided: Commit noted, spans still missing: send again
    pidfd_seconds: float = 0.05  # shared memory: how long to poll the pidfd after the socket closed
    overtakes: int = 8  # younger landings that may pass a request that got Later
    priority_seconds: float = 1.0  # of waiting that one step of a request's priority is worth
    deaths: int = 3  # workers that may die under one request


RULES = Rules()

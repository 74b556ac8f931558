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

    heartbeat_seconds: float = 1.0  # an end that has sent nothing for about this long sends Heartbeat
    lease_seconds: float = 5.0  # an end that has heard nothing for this long ends the session
    late_seconds: float = 1.0  # an end whose own loop was later than this renews its leases before it judges others
    ready_seconds: float = 0.1  # without an answer to Ready for this long, prefill lets other prompts pass
    again_seconds: float = 0.1  # after Later, prefill sends Ready again at the latest after this time
    progress_seconds: float = 2.0  # decode gives a landing up after this time without a new span or Computing ...
    progress_steps: float = 4.0  # ... or after this many of prefill's longest steps, if that is longer
    missing_seconds: float = 0.2  # two-sided: spans still missing this long after Commit are asked for again
    pidfd_seconds: float = 0.05  # shared memory: how long decode polls the writer's pidfd after its socket closed
    overtakes: int = 8  # younger requests that may land before a request that got Later
    priority_seconds: float = 1.0  # seconds of waiting that one step of priority is worth
    deaths: int = 3  # workers that may die while they compute one request; then it ends with an error


RULES = Rules()

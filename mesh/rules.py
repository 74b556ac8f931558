"""The timers and counts of the hand-off protocol. No configuration reaches this object; tests may build another one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    heartbeat_seconds: float = 1.0  # an end that has sent nothing for about this long sends Heartbeat
    lease_seconds: float = 5.0  # an end that has heard nothing for this long ends the session
    late_seconds: float = 1.0  # an end whose own loop was later than this renews its leases before it judges others
    ready_seconds: float = 0.1  # without an answer to Ready for this long, prefill lets other prompts pass
    again_seconds: float = 0.1  # after Later, prefill waits this long before it sends Ready again
    progress_seconds: float = 2.0  # decode gives a landing up after this time without a new span or Computing ...
    progress_steps: float = 4.0  # ... or after this many of prefill's longest steps, if that is longer
    missing_seconds: float = 0.2  # two-sided: time after Commit until decode sends Resend for missing spans
    pidfd_seconds: float = 0.05  # shared memory: how long decode waits for the writer's pidfd at a session's end
    overtakes: int = 8  # younger requests that may land before a request that got Later
    priority_seconds: float = 1.0  # seconds of waiting that one step of priority is worth
    deaths: int = 3  # workers that may die while they compute one request; then it ends with an error
    deaths_in_all: int = 10  # the same, deaths included that count as no fault of the request
    proven_tokens: int = 16  # a worker that died after this number of an attempt's tokens did not die of the request
    together_seconds: float = 1.0  # workers that die within this time die of the same cause
    judged_seconds: float = 2.0  # a request waits for this time after its last death: the worker may come back
    hung_seconds: float = 10.0  # the gateway leaves a worker whose step takes longer than this ...
    silent_seconds: float = 30.0  # ... or that reports neither a step nor that one takes long
    settling_seconds: float = 15.0  # a gateway that starts, or was stopped, waits for this time until workers attach
    patience_seconds: float = 30.0  # a request that no worker takes for this long ends with an error


RULES = Rules()

"""Delays that a test puts into one stage of a request, to see in which span they appear.

Every process of a mesh with `delays` in its orders wraps one place of the product for each stage that it has. A delay
must be armed (`arm`); the next request that passes there takes it, once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.step.plan import Plan
from mesh.messages.jobs import End
from mesh.messages.kv_messages import Commit
from mesh.messages.orders import Prefill
from mesh.messages.reports import Tokens

# Stage, the tier that delays it, and the span that must show it: its parent among prefill and decode, and its name.
STAGES = {
    "preprocess": ("gateway", "preprocess"),
    "admission": ("gateway", "admission"),
    "route": ("gateway", "loop.blocked in route"),  # choosing never waits, so a slow choice blocks the loop
    "hop to prefill": ("prefill", "prefill dispatch"),
    "wait for a turn at prefill": ("prefill", "prefill queue"),
    "landing wait": ("decode", "prefill kv.reserve"),
    "compute": ("prefill", "prefill compute"),
    "page writes": ("prefill", "prefill kv.send"),
    "landing check": ("decode", "decode kv.receive"),
    "wait for a step at decode": ("decode", "decode queue"),
    "generate": ("decode", "decode generate"),
    "hop to the gateway": ("gateway", "deliver"),
    "postprocess": ("gateway", "postprocess"),
    "blocked loop of the gateway": ("gateway", "loop.blocked in deliver"),
    "blocked loop of prefill": ("prefill", "loop.blocked in prefill kv.reserve"),
    "blocked loop of decode": ("decode", "loop.blocked in decode kv.receive"),
}

_armed: dict[str, float] = {}  # stage -> seconds


def arm(stage: str, seconds: float) -> None:
    _armed.clear()
    _armed[stage] = seconds


def take(stage: str) -> float:
    """Seconds of the delay if it is armed, and disarm it; else 0."""
    return _armed.pop(stage, 0.0)


def install(tier: str) -> None:
    {"gateway": _gateway, "prefill": _prefill, "decode": _decode}[tier]()


def _later(seconds: float, call: Callable[..., object], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(seconds, call, *arguments)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _gateway() -> None:
    from gateway.attaching.attaching import Attaching
    from gateway.dialects import opening
    from gateway.dialects.common import out
    from gateway.sequencing import sequencer
    from gateway.sequencing.reasons import ROOM

    def slow_parsing(parse: Any) -> Any:
        async def begin(self: Any, *arguments: Any) -> Any:
            await asyncio.sleep(take("preprocess"))
            return await parse(self, *arguments)

        return begin

    def late_worker(raise_attempt: Any) -> Any:
        """No worker can take the request now; one can later."""

        def raise_later(self: Any, request: Any, **more: Any) -> None:
            if seconds := take("admission"):
                self.wait(request, lambda: ROOM)
                _later(seconds, lambda: self.on_room(next(iter(self.workers))))
            else:
                raise_attempt(self, request, **more)

        return raise_later

    def slow_choice(choose: Any) -> Any:
        def choosing(*arguments: Any, **more: Any) -> Any:
            time.sleep(take("route"))
            return choose(*arguments, **more)

        return choosing

    held = deque[tuple[Any, ...]]()

    def late_reports(handle: Any) -> Any:
        """A worker's last token reaches the gateway late, and everything behind it too."""

        def on_report(self: Any, worker: Any, message: Any) -> None:
            last = isinstance(message, Tokens) and any(item.token.end is not End.NONE for item in message.items)
            if last and (seconds := take("blocked loop of the gateway")):
                time.sleep(seconds)
            if held or (last and (seconds := take("hop to the gateway"))):
                if not held:
                    _later(seconds, release)
                held.append((self, worker, message))
                return
            handle(self, worker, message)

        def release() -> None:
            while held:
                handle(*held.popleft())

        return on_report

    def slow_sending(send: Any) -> Any:
        async def event(self: Any, data: bytes, *, last: bool = False) -> None:
            if last:
                await asyncio.sleep(take("postprocess"))
            await send(self, data, last=last)

        return event

    _wrap(opening.Opening, "begin", slow_parsing)
    _wrap(sequencer.Sequencer, "raise_attempt", late_worker)
    _wrap(sequencer, "choose", slow_choice)
    _wrap(Attaching, "on_report", late_reports)
    _wrap(out.HttpOut, "event", slow_sending)


def _prefill() -> None:
    from engine.cpu.runner import CpuRunner
    from prefill_svc.handoff import HandOff
    from prefill_svc.intake import PromptIntake
    from prefill_svc.pushing import Pushing
    from prefill_svc.worker import PrefillWorker

    def late_message(handle: Any) -> Any:
        def from_gateway(self: Any, gateway: Any, message: Any) -> None:
            seconds = take("hop to prefill") if isinstance(message, Prefill) else 0.0
            if seconds:
                _later(seconds, handle, self, gateway, message)
            else:
                handle(self, gateway, message)

        return from_gateway

    def late_turn(queue: Any) -> Any:
        def wait(self: Any, *arguments: Any) -> None:
            queue(self, *arguments)
            if seconds := take("wait for a turn at prefill"):
                for prompt in self._prompts:
                    prompt.later.begin(seconds, self._wake)

        return wait

    def blocked(land: Any) -> Any:
        def landed(self: Any, *arguments: Any) -> None:
            time.sleep(take("blocked loop of prefill"))
            land(self, *arguments)

        return landed

    def slow_write(write: Any) -> Any:
        """The last layers of the prompt are written late, after the first token."""

        async def writing(self: Any, prompt: Any, spans: Any, first: int, layers: int, again: bool) -> None:
            if first + layers == self._shape.layers:
                await asyncio.sleep(take("page writes"))
            await write(self, prompt, spans, first, layers, again)

        return writing

    _wrap(PrefillWorker, "_from_gateway", late_message)
    _wrap(PromptIntake, "queue", late_turn)
    _wrap(HandOff, "_land", blocked)
    _wrap(Pushing, "_write", slow_write)
    _wrap(CpuRunner, "run", _slow_step("compute"))


def _decode() -> None:
    from decode_svc.handoff.landings import Landings
    from decode_svc.worker import DecodeWorker
    from engine.cpu.runner import CpuRunner

    def late_landing(ready: Any) -> Any:
        def answer(self: Any, *arguments: Any) -> None:
            if seconds := take("landing wait"):
                _later(seconds, ready, self, *arguments)
            else:
                ready(self, *arguments)

        return answer

    def late_commit(handle: Any) -> Any:
        def on_message(self: Any, peer: Any, message: Any) -> None:
            if isinstance(message, Commit):
                time.sleep(take("blocked loop of decode"))
                if seconds := take("landing check"):
                    _later(seconds, handle, self, peer, message)
                    return
            handle(self, peer, message)

        return on_message

    waits_until = 0.0

    def late_plan(plan: Any) -> Any:
        """The loop computes nothing for a while, although requests are admitted."""

        def planned(self: Any) -> Plan:
            nonlocal waits_until
            now = asyncio.get_running_loop().time()
            if any(request.phase.value == "running" for request in self.requests.values()):
                if seconds := take("wait for a step at decode"):
                    waits_until = now + seconds
                    _later(seconds + 0.001, self.wake)
                if now < waits_until:
                    return Plan(0, ())
            result: Plan = plan(self)
            return result

        return planned

    _wrap(Landings, "_ready", late_landing)
    _wrap(Landings, "on_message", late_commit)
    _wrap(DecodeWorker, "plan", late_plan)
    _wrap(CpuRunner, "run", _slow_step("generate"))


def _slow_step(stage: str) -> Callable[[Any], Any]:
    def wrap(run: Any) -> Any:
        async def step(self: Any, *arguments: Any) -> Any:
            await asyncio.sleep(take(stage))
            return await run(self, *arguments)

        return step

    return wrap

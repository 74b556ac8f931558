"""A runner whose steps are timed while they run, so that a step that never ends is noticed
(mesh/sessions/watchdog.py)."""

import asyncio

from engine.step.plan import OnLayers, Plan, Result, Runner
from mesh.sessions.step_times import StepTimes


class TimedRunner:
    def __init__(self, runner: Runner, steps: StepTimes) -> None:
        self.runner, self._steps = runner, steps
        self.layers, self.ahead = runner.layers, runner.ahead

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> "asyncio.Future[Result]":
        result = asyncio.ensure_future(self.runner.run(plan, on_layers))
        self._steps.begin(plan.rows)
        result.add_done_callback(lambda _: self._steps.end())
        return result

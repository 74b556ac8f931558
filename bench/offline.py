"""`python -m bench.offline`: `LLM.generate` beside the engine's own steps, and what importing `baton` costs.

256 prompts are answered in this process. Right behind each step the same plan is computed again by nothing but the
engine, while all else waits; that time is the engine's, and none of `generate`'s. Each round has prompts of its own, so
that no cache knows them. `ratio_to_engine`: the engine's time over the time of `generate`, the median over rounds.
`import_seconds`: of `from baton import LLM, SamplingParams` in a fresh interpreter, likewise. Status 1 when a target is
missed."""

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.command import missed, parser_of, run, say
from bench.models import make_once
from bench.processor import processor
from bench.spread import Spread, medians, ranges
from cli.local_mesh.loop import PreciseLoop
from engine.cpu.runner import CpuRunner
from engine.step.plan import Plan
from engine.step.timed_runner import TimedRunner
from library.asking import Asking
from library.opened import ModelOrder, opened
from library.params import SamplingParams
from library.prompts import GivenPrompt
from mesh.config.common_config import default_cache_folder

LEAST, MOST = {"ratio_to_engine": 0.97}, {"import_seconds": 0.3}
IMPORT = "import time; t = time.perf_counter(); from baton import LLM, SamplingParams; print(time.perf_counter() - t)"
LONGEST_PROMPT_SHARE = 8  # prompts have from this part of the longest one up to all of its tokens


class Replays:
    """Right behind each step of the worker its plan is computed once more by nothing but the engine, while all else
    waits: `seconds` of that, and how many `steps`. So both meet the machine as it is in that moment."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0
        self._run = TimedRunner.run

    def __enter__(self) -> "Replays":
        replays, run_plan = self, self._run

        def replayed(self: TimedRunner, plan: Plan, on_layers: Any = None) -> "asyncio.Future[Any]":
            result = run_plan(self, plan, on_layers)
            runner = self.runner
            assert isinstance(runner, CpuRunner)
            result.add_done_callback(lambda _: replays.again(runner, plan))
            return result

        TimedRunner.run = replayed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        TimedRunner.run = self._run  # type: ignore[method-assign]

    def again(self, runner: CpuRunner, plan: Plan) -> None:
        began = time.perf_counter()
        runner.compute(plan)
        self.seconds += time.perf_counter() - began
        self.steps += 1

    def clear(self) -> None:
        self.seconds, self.steps = 0.0, 0


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    model = None if options.model == "built-in" else str(options.model or make_once(default_cache_folder()))
    settings = {"pool_bytes": 1 << 30}
    ratios, speeds, random = list[float](), list[float](), Random(options.seed)
    with Replays() as replays:
        async with opened(ModelOrder.of(model, None, settings)) as found:
            asking = Asking(found.door, found.at_once)
            await generate(asking, random, options, 4)  # memory and connections get warm
            for _ in range(options.rounds):
                replays.clear()
                seconds, tokens = await generate(asking, random, options, options.prompts)
                seconds, engine = seconds - replays.seconds, replays.seconds
                ratios.append(engine / seconds)
                speeds.append(tokens / seconds)
                say(f"generate {seconds:.2f} s, {replays.steps} steps of the engine {engine:.2f} s, {ratios[-1]:.3f}")
    imports = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(max(5, options.rounds))]
    spreads = {
        "ratio_to_engine": Spread.of(ratios),
        "tokens_per_second": Spread.of(speeds),
        "import_seconds": Spread.of(imports),
    }
    say(f"importing takes {spreads['import_seconds']} s")
    return medians(spreads) | {
        "spread": ranges(spreads),
        "model": Path(model).name if model else "built-in",
        "prompts": options.prompts,
        "processor": processor(),
        "missed": missed(medians(spreads), least=LEAST, most=MOST),
    }


async def generate(asking: Asking, random: Random, options: argparse.Namespace, count: int) -> tuple[float, int]:
    """Seconds, and tokens of all answers."""
    least = options.prompt // LONGEST_PROMPT_SHARE
    prompts = [
        [random.randrange(100, 1000) for _ in range(random.randint(least, options.prompt))] for _ in range(count)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=options.answer, ignore_eos=True)
    begun = time.perf_counter()
    given = [GivenPrompt(ids=tuple(each)) for each in prompts]
    outputs = await asking.generate(given, [params] * count, lambda _: None)
    return time.perf_counter() - begun, sum(len(each.outputs[0].token_ids) for each in outputs)


def main() -> None:
    parser = parser_of("offline", __doc__)
    parser.add_argument("--model", help="a model's folder, or `built-in`; without it, random weights of the 0.5B shape")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the longest prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    run(parser, bench, loop_factory=PreciseLoop)


if __name__ == "__main__":
    main()

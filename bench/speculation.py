"""`python -m bench.speculation`: what drafts bring to decode, in pairs of runs with and without drafts.

Both runs of a pair use one engine, one after the other, by turns; decode's own controller chooses the draft lengths,
and the texts of both must be equal. (a) A model and its draft, requests one by one. (b) Random weights of
Qwen2.5-0.5B's shape with a draft of a tenth: its proposals are computed and then replaced by a script that is right as
often as (a)'s draft was. (c) Both with 32 requests at once, where drafting should switch itself off; the worse one
counts. Status 1 when a target is missed."""

import argparse
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine.builtin
from bench.command import parser_of, run, say
from bench.models import VOCAB, make_once, make_tenth
from bench.processor import processor
from bench.speculation_figures import Point, Run, acceptance, chance, misses, scripted
from bench.speculation_runs import Bed, Fixed, Pacing, ScriptedRequest
from bench.turns import rounds
from decode_svc.speculation.draft_length import DraftLengths
from decode_svc.speculation.speculation import PRIORS, DraftSource
from engine.loading.loaded import load_model
from gateway.prompts.assets import load_assets
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling

PAIR = Path(engine.builtin.__file__).parent / "pair"
PAGE_TOKENS, BATCH, FIXED_LENGTH, LONGEST = 32, 32, 4, 8
SLOTS = 512  # per request
QUESTIONS = (
    "What is Baton?",
    "What does a prefill worker do?",
    "What is 27 + 58?",
    "Count from 3 to 15.",
    "Tell me a little story about a fox.",
    "List five colours.",
    "Why are pages handed over layer by layer?",
    "Who keeps the pages when a worker dies?",
)
SAMPLINGS = (Sampling(), Sampling(temperature=0.8, seed=7))
POINTS = ("builtin", "scripted", "batch")

Decode = Callable[[Sequence[ScriptedRequest], Pacing], Awaitable[Run]]


class NoModel(Exception):
    """A folder that an option names holds no model."""


def main() -> None:
    parser = parser_of("speculation", __doc__)
    parser.add_argument("--model", type=Path, default=PAIR / "model", help="folder of (a)'s model")
    parser.add_argument("--draft", type=Path, default=PAIR / "draft", help="folder of its draft")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=POINTS)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each point; figures are medians")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of each request")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--acceptance", type=float, help="chance that a scripted draft is right; default: (a)'s")
    parser.add_argument("--cache", type=Path, default=None, help="folder of packed weights and of the random models")
    run(parser, bench, NoModel)


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    for name in ("model", "draft"):
        if not (getattr(arguments, name) / "config.json").is_file():
            raise NoModel(f"--{name}: {getattr(arguments, name)} is no model folder")
    say(f"{processor()}, {arguments.threads} threads, medians of {arguments.rounds} pairs")
    cache: Path = arguments.cache or default_cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    points: list[Point] = []
    report: dict[str, Any] = {"processor": processor(), "threads": arguments.threads}
    right = arguments.acceptance
    if "builtin" in arguments.points or "batch" in arguments.points or right is None:
        right = await builtin(arguments, cache, points, report)
    if "scripted" in arguments.points or "batch" in arguments.points:
        await random_shape(arguments, cache, points, arguments.acceptance or right)
    report |= {f"{point.name}_speedup_b1": point.speedup.median for point in points if "_b32" not in point.name}
    large = {point.name: point.speedup.median for point in points if "_b32" in point.name}
    report |= {"speedup_b32": min(large.values()), "speedups_b32": large} if large else {}
    report["identical"] = all(point.identical for point in points)
    report["missed"] = misses(report)
    return report


async def builtin(arguments: argparse.Namespace, cache: Path, points: list[Point], report: dict[str, Any]) -> float:
    """Measure the model and its draft; return the chance that one drafted token is right."""
    bed = open_bed(arguments.model, arguments.draft, cache, arguments.threads)
    requests = questions(arguments.model, arguments.tokens)
    greedy, sampled = [
        await bed.one_by_one(
            [each for each in requests if bool(each.sampling.temperature) is warm], Fixed(FIXED_LENGTH)
        )
        for warm in (False, True)
    ]
    report |= {"acceptance": acceptance(greedy), "acceptance_sampled": acceptance(sampled), "chance": chance(greedy)}
    say(f"{FIXED_LENGTH} drafts: {acceptance(greedy):.2f} accepted, at temperature 0.8 {acceptance(sampled):.2f}")
    if "builtin" in arguments.points:
        points.append(await compare("builtin", bed.one_by_one, requests, requests, arguments.rounds))
    if "batch" in arguments.points:
        crowd = endless(requests)
        points.append(await compare("builtin_b32", bed.together, crowd, crowd, arguments.rounds))
    bed.close()
    return chance(greedy)


async def random_shape(arguments: argparse.Namespace, cache: Path, points: list[Point], right: float) -> None:
    bed = open_bed(make_once(cache), make_tenth(cache), cache, arguments.threads)
    plain = [ScriptedRequest(tuple(range(100 + i, 164 + i)), SAMPLINGS[i % 2]) for i in range(BATCH)]
    plain = [replace(request, sampling=replace(request.sampling, max_tokens=arguments.tokens)) for request in plain]
    for name, decode, requests in (("scripted", bed.one_by_one, plain[:2]), ("scripted_b32", bed.together, plain)):
        if ("batch" if "_b32" in name else "scripted") in arguments.points:
            truth = (await decode(requests, Fixed(0))).texts
            scripts = [
                scripted([token for token, _ in text], right, seed=seed, vocab=VOCAB) for seed, text in enumerate(truth)
            ]
            drafted = [replace(request, script=script) for request, script in zip(requests, scripts, strict=True)]
            points.append(await compare(name, decode, requests, drafted, arguments.rounds))
    bed.close()


async def compare(
    name: str, decode: Decode, plain: Sequence[ScriptedRequest], drafted: Sequence[ScriptedRequest], rounds_wanted: int
) -> Point:
    """Measure pairs; the side that runs first in one pair runs second in the next. A first pair warms up and is
    dropped; only what the draft lengths learned in it stays, as it does in a worker."""
    prior, share = PRIORS[DraftSource.DRAFT]
    controller = DraftLengths(longest=LONGEST, prior=prior, draft_share=share)
    sides: dict[str, tuple[Sequence[ScriptedRequest], Pacing]] = {
        "plain": (plain, Fixed(0)),
        "drafted": (drafted, controller),
    }
    pairs: list[tuple[Run, Run]] = []
    async for found in rounds(sides, lambda side: decode(*sides[side]), rounds_wanted + 1):
        last, last_drafted = found["plain"], found["drafted"]
        pairs.append((last, last_drafted))
        say(f"  {name}: {last.tokens_per_second:.0f} tokens/s, with drafts {last_drafted.tokens_per_second:.0f}, "
            f"{last_drafted.tokens / last_drafted.steps:.2f} tokens a step")  # fmt: skip
    point = Point(name, tuple(pairs[1:]))
    say(
        f"{name}: {point.speedup.median:.2f} times as fast ({point.speedup.low:.2f} to {point.speedup.high:.2f}), "
        f"{point.acceptance:.2f} of the drafts accepted"
    )
    return point


def open_bed(model: Path, draft: Path, cache: Path, threads: int) -> Bed:
    opened = load_model(model, cache, product_path="auto", page_tokens=PAGE_TOKENS, draft=draft)
    return Bed(opened, threads=threads, requests=BATCH, slots=SLOTS)


def questions(folder: Path, tokens: int) -> list[ScriptedRequest]:
    """Each question greedy and sampled, as a chat where the model has a template."""
    assets = load_assets(folder, "model")
    requests = []
    for question in QUESTIONS:
        text = assets.template.render([{"role": "user", "content": question}]) if assets.template else question
        prompt = assets.tokenizer.encode(text, special=assets.template is None)
        for sampling in SAMPLINGS:
            requests.append(ScriptedRequest(prompt, replace(sampling, max_tokens=tokens, stop_ids=assets.eos_ids)))
    return requests


def endless(requests: Sequence[ScriptedRequest]) -> list[ScriptedRequest]:
    """Enough requests for a full batch, none of which stops early, so that the batch stays full to the end."""
    return [
        replace(request, sampling=replace(request.sampling, stop_ids=(), seed=index))
        for index, request in enumerate((list(requests) * BATCH)[:BATCH])
    ]


if __name__ == "__main__":
    main()

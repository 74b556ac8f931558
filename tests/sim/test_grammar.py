"""Answers that follow a grammar, whatever dies on the way: the same bytes, and valid ones."""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from decode_svc.speculation.speculation import DraftSource
from engine.builtin.tokenizer import END, VOCAB, write_tokenizer
from engine.step.constraint import Constraint, Masker, open_masker
from engine.step.piece_masks import StepMasks
from gateway.structured.forms import lark
from gateway.structured.schema import json_grammar
from mesh.messages.jobs import End, Sampling, Tier
from tests.sim.clients import SimClient
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual, virtual

SCHEMA = {
    "type": "object",
    "properties": {
        "identification": {"type": "integer", "minimum": 0, "maximum": 9999999},
        "words": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 5},
    },
    "required": ["identification", "words"],
    "additionalProperties": False,
}
GRAMMAR = lark("start: " + json_grammar(SCHEMA, "schema"))


class AtOnce(Executor):
    """Computes in the calling thread, without taking virtual time."""

    def submit(self, work: Any, /, *given: Any, **named: Any) -> "Future[Any]":
        future = Future[Any]()
        self.finish(future, work, given, named)
        return future

    def finish(self, future: "Future[Any]", work: Any, given: Any, named: Any) -> None:
        try:
            future.set_result(work(*given, **named))
        except Exception as error:
            future.set_exception(error)


class Slowly(AtOnce):
    """Every mask takes longer than a step."""

    def submit(self, work: Any, /, *given: Any, **named: Any) -> "Future[Any]":
        future = Future[Any]()
        asyncio.get_running_loop().call_later(0.007, self.finish, future, work, given, named)
        return future


class ForgetfulConstraint(Constraint):
    """Follows the text only from where this worker took it over: the guard switched off."""

    forgotten: int | None = None

    def masks(self, emitted: Sequence[int], drafts: tuple[int, ...] = (), *, certain: bool = False) -> StepMasks:
        self.forgotten = len(emitted) if self.forgotten is None else self.forgotten
        return super().masks(emitted[self.forgotten :], drafts, certain=certain)


class ForgetfulMasker(Masker):
    def constraint(self, sampling: Sampling) -> Constraint | None:
        return ForgetfulConstraint(self, sampling) if sampling.grammar else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 4096)
    return folder


def mesh(folder: Path, executor: Callable[[], Executor] = AtOnce, **more: Any) -> Cluster:
    kind = more.pop("kind", Masker)

    def masker() -> Masker:
        grammars = open_masker(folder, VOCAB).grammars
        return kind(grammars, vocabulary=VOCAB, executor=executor())

    judge = Masker(open_masker(folder, VOCAB).grammars, vocabulary=VOCAB, executor=AtOnce())

    def bans(sampling: Sampling, text: list[int]) -> list[int]:
        constraint = judge.constraint(sampling)
        return [] if constraint is None else constraint.masks(text).result.result().banned[0].tolist()

    return Cluster(1, vocabulary=VOCAB, pages=256, masker=masker, bans=bans, **more)


def ask(cluster: Cluster, seed: int, **more: Any) -> SimClient:
    sampling = Sampling(max_tokens=200, temperature=1.0, seed=seed, stop_ids=(END,), grammar=GRAMMAR, **more)
    return cluster.ask(tuple((seed * 31 + slot) % 250 for slot in range(9)), sampling)


def check(client: SimClient) -> None:
    assert client.seen[-1] == END
    answer = json.loads(bytes(client.seen[:-1]))
    assert 3 <= len(answer["words"]) <= 5 and 0 <= answer["identification"] <= 9999999


@pytest.mark.parametrize("source", [DraftSource.OFF, DraftSource.DRAFT, DraftSource.LOOKUP])
@pytest.mark.parametrize("executor", [AtOnce, Slowly])
@virtual
async def test_kills_of_both_tiers_in_mid_json_change_no_byte(
    folder: Path, executor: Callable[[], Executor], source: DraftSource
) -> None:
    cluster = await mesh(folder, executor, source=source).start(2, 2)
    clients = [ask(cluster, seed) for seed in range(3)]
    free = cluster.ask(tuple(range(9)), Sampling(max_tokens=90))
    assert await cluster.until(lambda: all(len(client.seen) > 12 for client in clients))
    await cluster.kill("decode0")
    assert await cluster.until(lambda: all(len(client.seen) > 25 for client in clients))
    await cluster.kill("prefill0")
    await cluster.add(Tier.DECODE, "decode0")
    await cluster.kill("decode1")
    assert await cluster.finish() == []  # every text equals the reference
    for client in clients:
        check(client)
    assert len(free.seen) == 90


def test_a_worker_that_forgets_what_was_emitted_before_it_is_noticed(folder: Path) -> None:
    async def main(kind: type[Masker]) -> list[str]:
        cluster = await mesh(folder, kind=kind).start(1, 2)
        client = ask(cluster, 5)
        client.may_fail = True
        assert await cluster.until(lambda: len(client.seen) > 20)
        serving = next(name for name in ("decode0", "decode1") if cluster.processes[name].worker.requests)
        await cluster.kill(serving)
        return await cluster.finish()

    assert run_virtual(main(Masker)) == []
    assert any("differs" in what for what in run_virtual(main(ForgetfulMasker)))


def test_a_slow_mask_lets_its_own_request_sit_out_and_no_other(folder: Path) -> None:
    async def times(executor: Callable[[], Executor]) -> tuple[float, float]:
        cluster = await mesh(folder, executor).start(1, 1)
        loop = asyncio.get_running_loop()
        began, client = loop.time(), ask(cluster, 1)
        free = cluster.ask(tuple(range(9)), Sampling(max_tokens=30))
        assert await cluster.until(lambda: free.ended)
        free_seconds = loop.time() - began
        assert await cluster.finish() == []
        check(client)
        return free_seconds, loop.time() - began

    at_once, slowly = run_virtual(times(AtOnce)), run_virtual(times(Slowly))
    assert slowly[0] < 1.2 * at_once[0]
    assert slowly[1] > 2 * at_once[1]


@virtual
async def test_a_run_that_is_forced_takes_fewer_steps_than_tokens(folder: Path) -> None:
    cluster = await mesh(folder).start(1, 1)
    client = ask(cluster, 2)
    assert await cluster.finish() == []
    check(client)
    steps = cluster.decode().counts()["steps"]
    assert steps < 0.6 * len(client.seen)
    assert client.handle.timings.accepted_tokens >= len(client.seen) - steps - 1


@virtual
async def test_a_continued_answer_follows_its_grammar_from_where_it_was(folder: Path) -> None:
    cluster = await mesh(folder).start(1, 1)
    whole = ask(cluster, 3)
    assert await cluster.finish() == []
    again = cluster.ask(whole.spec.prompt, whole.spec.sampling, emitted=tuple(whole.seen[:20]))
    assert await cluster.finish() == []
    assert whole.seen[:20] + again.seen == whole.seen
    assert whole.spec.sampling.end(len(whole.seen) - 1, whole.seen[-1]) is End.STOP

"""A draft model on the GPU: it proposes the tokens that it would emit itself, and changes only the speed of a text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_kernels.triton.layout import GpuPageShape
from bench.gpu.random_model import DRY, as_draft, on_device
from engine.cuda import runner as runners
from engine.step.plan import Drafting, Piece, Plan
from mesh.messages.jobs import Sampling
from tests.unit.engine.cuda.conftest import CudaEngine
from tests.unit.engine.speculating import DraftedRequest, run_to_end

GREEDY = Sampling(max_tokens=5)
SEEDED = Sampling(temperature=0.8, seed=11, max_tokens=5, top_logprobs=2)
FILTERED = Sampling(temperature=0.8, top_k=40, seed=3, max_tokens=5)
TABLES = [tuple(range(first, first + 4)) for first in range(0, 24, 4)]


def words(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 320, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def model() -> Any:
    return on_device(replace(DRY, layers=1), torch.device("cpu"))


@pytest.fixture(scope="module")
def draft(model: Any) -> Any:
    """A draft that is sometimes right."""
    return as_draft(model, 0.25)


@pytest.fixture(scope="module")
def other() -> Any:
    """A draft of another shape, which is never right."""
    config = replace(DRY, layers=1, hidden=48, heads=2, kv_heads=1, head_dim=32, ffn=64)
    return on_device(config, torch.device("cpu"), seed=5)


@pytest.fixture
def engine() -> Any:
    built: list[CudaEngine] = []

    def build(*models: Any) -> CudaEngine:
        built.append(CudaEngine(*models))
        return built[-1]

    yield build
    for one in built:
        one.runner.close()


Build = Callable[..., CudaEngine]


def run(runner: Any, *pieces: Piece) -> Any:
    return runner.compute(Plan(0, pieces))


def test_proposals_are_what_the_draft_says_alone_with_the_requests_own_noise(
    engine: Build, model: Any, other: Any
) -> None:
    ours, alone = engine(model, other), engine(other)
    asked = [(FILTERED, 2), (replace(SEEDED, max_tokens=3), 9), (GREEDY, 2)]  # the second has room for one
    prompts = [words(count, count) for count in (3, 1, 17)]
    found = run(
        ours.runner,
        *(
            Piece(at, tuple(prompt), 0, TABLES[at], 1, 0, sampling, Drafting(0, (), propose))
            for at, (prompt, (sampling, propose)) in enumerate(zip(prompts, asked, strict=True))
        ),
    )
    said = [[one[0].token] for one in found.sampled]
    for number in range(2):
        pieces = [
            Piece(
                at,
                (*prompts[at], *said[at]) if not number else (said[at][-1],),
                0 if not number else len(prompts[at]) + number,
                TABLES[at],
                1,
                1 + number,
                sampling,
            )
            for at, (sampling, _) in enumerate(asked)
        ]
        for tokens, sampled in zip(said, run(alone.runner, *pieces).sampled, strict=True):
            tokens.append(sampled[0].token)
    assert found.proposed == (tuple(said[0][1:]), tuple(said[1][1:2]), tuple(said[2][1:]))


def test_answers_with_a_draft_are_those_without_bit_by_bit(engine: Build, model: Any, draft: Any) -> None:
    """Right and wrong drafts, a prompt in chunks, and a request whose text the draft reads only later; and nothing of
    what rejected drafts leave behind is ever read."""

    def talks(**more: Any) -> list[DraftedRequest]:
        kinds = [(GREEDY, 3, 6), (SEEDED, 2, 3), (FILTERED, 2, 4)]
        return [
            DraftedRequest(words(count, at + 5), sampling, TABLES[at], propose, chunk=4, **more)
            for at, (sampling, propose, count) in enumerate(kinds)
        ]

    plain, drafted = talks(drafted=False), talks()
    run_to_end(engine(model).runner, plain, 16)
    drafted[2].drafted = False
    run_to_end(Poisoned(engine(model, draft), drafted, late=drafted[2]), drafted, 16)
    assert [one.emitted for one in drafted] == [one.emitted for one in plain]
    assert all(one.proposed > 0 for one in drafted)
    assert 0 < sum(one.accepted for one in drafted) < sum(one.proposed for one in drafted)


class Poisoned:
    """Before each step every byte behind the texts is NaN, in the model's layers and in the draft's. From the third
    step on the draft reads the late request too, first what it missed."""

    def __init__(self, engine: CudaEngine, talks: Sequence[DraftedRequest], late: DraftedRequest) -> None:
        self._engine, self._talks, self._late, self._steps = engine, talks, late, 0

    def compute(self, plan: Plan) -> Any:
        for one in self._talks:
            poison(self._engine, one.pages, one.done, one.read)
        self._steps += 1
        result = self._engine.runner.compute(plan)
        self._late.drafted = self._steps >= 2
        return result


def poison(engine: CudaEngine, table: Sequence[int], *slots: int) -> None:
    """Writes NaN from these slots on: the first one for the model's layers, the second for the draft's."""
    tiles = engine.pool.view(24, 2, 2 * DRY.kv_heads, 16, -1)
    for share, slot in enumerate(slots):
        for at, page in enumerate(table):
            tiles[page, share, :, max(0, min(16, slot - 16 * at)) :] = 0xFF


def test_a_poisoned_slot_that_is_read_is_noticed(engine: Build, model: Any, draft: Any) -> None:
    ours = engine(model, draft)
    run(ours.runner, ours.piece(words(3), sampled=0, drafting=Drafting(0)))
    row = replace(ours.piece([7], 3, sampling=GREEDY), drafting=Drafting(3, (), 1))
    wanted = run(ours.runner, row)
    poison(ours, ours.table, 3, 3)
    assert run(ours.runner, row) == wanted
    for slots in ((3, 2), (2, 4)):
        with pytest.raises(Exception, match="invalid value"):  # the interpreter stops at the first
            poison(ours, ours.table, *slots)
            run(ours.runner, row)


def written(engine: CudaEngine) -> list[set[int]]:
    """The pages in which anything is written: in the model's layers and in the draft's."""
    pages = engine.pool.view(24, 2, -1)
    return [{page for page in range(24) if not bool((pages[page, share] == 0xFF).all())} for share in range(2)]


def test_model_and_draft_keep_to_their_own_layers_of_the_pages(engine: Build, model: Any, draft: Any) -> None:
    ours = engine(model, draft)
    piece = ours.piece(words(3), sampled=1, sampling=SEEDED, pages=(5,))
    assert run(ours.runner, piece).proposed == ((),) and written(ours) == [{5}, set()]
    before = ours.pool.view(24, 2, -1)[5, 0].clone()
    reported = list[tuple[int, int]]()
    ours.runner.compute(Plan(1, (replace(piece, sampled=0, sampling=None, drafting=Drafting(0)),)), _note(reported))
    assert written(ours) == [{5}, {5}] and torch.equal(ours.pool.view(24, 2, -1)[5, 0], before)
    assert reported == [(1, 1), (0, 1)]  # a prompt's go first, to travel while the model computes
    ours.runner.compute(Plan(2, (replace(piece, drafting=Drafting(0, (), 1)),), ((5, 7),)), _note(reported))
    assert reported[2:] == [(0, 1), (1, 1)] and written(ours) == [{5, 7}, {5, 7}] and ours.runner.layers == 2


def _note(reported: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda first, count: reported.append((first, count))


def test_a_draft_that_wrote_over_the_models_layers_would_be_noticed(
    engine: Build, model: Any, draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(*arguments: Any) -> tuple[GpuPageShape, ...]:
        first, second = shapes(*arguments)
        return first, replace(second, first_byte=0)

    shapes = runners.page_shapes
    monkeypatch.setattr(runners, "page_shapes", over)
    wrong = engine(model, draft)
    run(wrong.runner, wrong.piece(words(3), sampled=0, pages=(5,), drafting=Drafting(0)))
    assert written(wrong) == [{5}, set()]


def test_nothing_is_proposed_beyond_pages_context_or_the_end(engine: Build, model: Any, draft: Any) -> None:
    ours = engine(replace(model, config=replace(model.config, context=34)), draft)
    ours.pool.zero_()  # as if the text in front had been read
    endless = replace(GREEDY, max_tokens=100)

    def piece(key: int, slot: int, pages: int, sampling: Sampling = endless) -> Piece:
        table, drafting = TABLES[key][:pages], Drafting(slot, (), 9)
        return ours.piece([7], slot, key=key, sampling=sampling, pages=table, drafting=drafting)

    token = run(ours.runner, replace(piece(0, 3, 1), drafting=None)).sampled[0][0].token
    pieces = (
        piece(0, 13, 1),
        piece(1, 30, 3),
        piece(2, 3, 1, replace(endless, max_tokens=3)),
        piece(3, 3, 1, replace(endless, stop_ids=(token,))),
    )
    assert [len(one) for one in run(ours.runner, *pieces).proposed] == [2, 2, 1, 0]


def test_a_step_that_follows_one_with_drafts_finds_its_token(engine: Build, model: Any, draft: Any) -> None:
    ours, prompt = engine(model, draft), words(3)
    one = replace(ours.piece(prompt, sampled=1, sampling=SEEDED), drafting=Drafting(0, (), 1))
    first = run(ours.runner, one).sampled[0][0]
    second = ours.piece([0], 3, sampling=SEEDED, position=1)
    found = run(ours.runner, replace(second, follows=True))
    assert found == run(ours.runner, replace(second, tokens=(first.token,)))


def test_a_plan_that_names_a_draft_where_there_is_none_is_refused(engine: Build, model: Any) -> None:
    ours = engine(model)
    with pytest.raises(ValueError, match="names a draft model, but none is loaded"):
        run(ours.runner, ours.piece(words(3), sampled=0, drafting=Drafting(0)))

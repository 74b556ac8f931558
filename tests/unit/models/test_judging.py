"""How the pair is judged: answers, acceptance by its definition, and what counts as right."""

from collections.abc import Callable
from random import Random
from xml.etree import ElementTree

import pytest
import torch

from engine.drafts.acceptance import accepted as engine_accepted
from engine.step.plan import Piece, Sampled
from mesh.messages.jobs import Sampling
from models.acceptance import AcceptanceTally, judge, tally
from models.curve import draw_curve
from models.network import TrainedNetwork
from models.questions import names_all, right_sum
from models.speak import GREEDY, TokenChoice, answers, logits_after

END = 0


def speculate(model: list[int], draft: Callable[[tuple[int, ...]], int], *, length: int, most: int) -> AcceptanceTally:
    """Played out with the engine's own rule: propose, verify, emit."""
    sampling = Sampling(stop_ids=(END,), max_tokens=most)
    accepted = proposed = 0
    emitted = model[:1]
    while emitted[-1] != END and len(emitted) < most:
        proposals: list[int] = []
        while len(proposals) < min(length, most - len(emitted) - 1):
            proposals.append(draft((*emitted, *proposals)))
        rows = len(proposals) + 1
        piece = Piece(1, (emitted[-1], *proposals), 0, (0,), rows, len(emitted), sampling)
        says = [Sampled(token, -1.0, (), ()) for token in (model[len(emitted) :] + [END] * rows)[:rows]]
        agreed = engine_accepted(piece, says)
        accepted, proposed = accepted + agreed, proposed + len(proposals)
        emitted = model[: len(emitted) + agreed + 1]
    return AcceptanceTally(accepted, proposed)


def test_counting_along_the_models_answer_is_speculation_played_out() -> None:
    rng = Random(1)
    some = 0
    for case in range(300):
        answer = [rng.randint(1, 2) for _ in range(rng.randint(1, 14))] + [END]

        def draft(seen: tuple[int, ...], case: int = case) -> int:
            return Random(f"{case}/{seen}").choice((1, 1, 1, 2, 2, END))

        choices = [draft(tuple(answer[:position])) for position in range(len(answer))]
        most = len(answer) + rng.choice((0, 1, 2, 3, 20))
        played = speculate(answer, draft, length=4, most=most)
        assert tally(answer, choices, end=END, most=most) == played
        some += played.accepted
    assert some > 100


@pytest.mark.parametrize(
    ("model", "draft", "expected"),
    [
        ([5, 6, 7, 8, 9, END], [5, 6, 7, 8, 9, END], AcceptanceTally(4, 4)),  # four agreed, the fifth comes with them
        ([5, 6, 7, END], [9, 6, 7, END], AcceptanceTally(2, 4)),  # the first token is prefill's; the end needs no draft
        ([5, 6, 7, 8, 9, 3, 4, END], [5, 1, 7, 8, 9, 3, 4, END], AcceptanceTally(4, 12)),  # a wrong one costs all four
        ([END], [END], AcceptanceTally(0, 0)),
    ],
)
def test_tallies_by_hand(model: list[int], draft: list[int], expected: AcceptanceTally) -> None:
    assert tally(model, draft, end=END, most=100) == expected


def test_no_more_is_proposed_than_the_answer_may_grow() -> None:
    assert tally([5, 6, 7, 8], [5, 6, 7, 8], end=END, most=4) == AcceptanceTally(2, 2)


def test_answers_in_a_batch_are_those_of_each_prompt_alone(network: TrainedNetwork) -> None:
    rng = Random(2)
    prompts = [[rng.randrange(512) for _ in range(rng.randint(2, 30))] for _ in range(9)]
    for answer, prompt in zip(answers(network, prompts, most=12, end=-1), prompts, strict=True):
        logits = logits_after(network, prompt, answer)  # rounded otherwise than in a batch: so near the best is enough
        chosen = logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        assert len(answer) == 12 and (logits.amax(-1) - chosen).max() < 1e-4


def test_an_answer_stops_with_its_end(network: TrainedNetwork) -> None:
    prompt = [5, 6, 7]
    free = answers(network, [prompt], most=10, end=-1)[0]
    assert answers(network, [prompt], most=10, end=free[3])[0] == free[: free.index(free[3]) + 1]


def test_a_model_that_is_its_own_draft_is_accepted_whole_with_common_noise(network: TrainedNetwork) -> None:
    rng = Random(3)
    prompts = [[rng.randrange(512) for _ in range(rng.randint(2, 30))] for _ in range(6)]
    for choice in (GREEDY, TokenChoice(0.8)):
        emitted = answers(network, prompts, most=16, end=-1, choice=choice)
        counted = sum(judge(network, prompts, emitted, end=-1, most=16, choice=choice), AcceptanceTally())
        assert counted.share > 0.9  # all of them, but where two tokens are equal within rounding
    other = judge(
        network, prompts, answers(network, prompts, most=16, end=-1), end=-1, most=16, choice=TokenChoice(0.8)
    )
    assert sum(other, AcceptanceTally()).share < 0.9


def test_a_sum_is_right_only_when_its_number_is() -> None:
    assert right_sum("37 + 45 = 82.", 82)
    assert right_sum("37 + 45 = 82, so Ada has 82.", 82)
    assert right_sum("82.", 82)
    for wrong in ("37 + 45 = 182.", "37 + 45 = 8", "", "37 + 45 = .", "37 + 82 = 45."):
        assert not right_sum(wrong, 82)


def test_an_answer_must_name_all_four_parts() -> None:
    assert names_all("The Gateway sends it to prefill, the pages go to decode.")
    assert not names_all("The gateway sends it to prefill, and then to decode.")


def test_the_curve_is_a_picture_with_a_line_per_stage() -> None:
    root = ElementTree.fromstring(draw_curve({"model": [(0.1, 7.0), (1.0, 0.5)], "draft": [(0.1, 3.0)]}))
    lines = [one for one in root.iter("{http://www.w3.org/2000/svg}path") if one.get("fill") == "none"]
    assert len(lines) == 2
    with pytest.raises(ValueError, match="train first"):
        draw_curve({"model": []})

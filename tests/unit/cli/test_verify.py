"""`baton verify` in parts: its cells meet in all pairs, its comparison misses no bit, its verdicts are right."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cli.supervisor import MeshFailed, Service, serve_arguments
from cli.verify import command
from cli.verify.answers import Best, best, compare
from cli.verify.asks import LONGEST, PROMPTS, TOKENS, asks_of, single
from cli.verify.cells import FACTORS, LEAST_CELLS, Cell, every_cell, every_pair, missing_pairs, pairwise_cover
from cli.verify.checks import Checked
from cli.verify.meshed import Outcome, broken, settings_of
from cli.verify.sabotage import Sabotage, Spoilt
from mesh.settings import read_settings

CELL = Cell(transport="tcp", chunk=16, page=64, batch=8, workers=2, cache=True, path="pairs")
ANSWER = (best(5, -0.25, (5, 9), (-0.25, -1.5)), best(7, -3.0, (1, 2), (-0.5, -0.75)))
GOOD = Checked(
    cell=CELL,
    prompts=24,
    token_mismatches=0,
    logprob_mismatches=0,
    differing=(),
    remote=24,
    admitted=24,
    committed=24,
    bytes_moved=4096,
    bytes_expected=4096,
    bytes_resent=0,
    largest_batch=8,
    numerics=("class", "fingerprint"),
    seconds=1.0,
)


@pytest.mark.parametrize("seed", [0, 1, command.SEED])
def test_the_cover_holds_every_pair_of_settings(seed: int) -> None:
    cells = pairwise_cover(seed)
    assert not missing_pairs(cells)
    assert LEAST_CELLS <= len(cells) <= 20
    assert len(set(cells)) == len(cells)


def test_missing_pairs_are_told() -> None:
    two = [cell for cell in every_cell() if cell.transport == "tcp" and cell.cache]
    assert missing_pairs(two) >= {(("transport", "shm"), ("page", page)) for page in FACTORS["page"]}
    assert missing_pairs([]) == every_pair()
    assert len(missing_pairs([CELL])) == len(every_pair()) - 21


def test_the_same_seed_draws_the_same_cells_and_prompts() -> None:
    assert pairwise_cover(3) == pairwise_cover(3) != pairwise_cover(4)
    assert asks_of(CELL, 3) == asks_of(CELL, 3) != asks_of(CELL, 4)


def test_the_usual_run_asks_enough_and_of_every_kind() -> None:
    cells = pairwise_cover(command.SEED)
    asked = {cell: asks_of(cell, command.SEED) for cell in cells}
    everything = [ask for asks in asked.values() for ask in asks]
    assert len(everything) == sum(PROMPTS[cell.batch] for cell in cells) >= 300
    assert max(len(ask.prompt) for ask in everything) == LONGEST
    assert min(len(ask.prompt) for ask in everything) == 1
    greedy = sum(ask.sampling.temperature == 0 for ask in everything)
    assert 0.3 * len(everything) < greedy < 0.7 * len(everything)
    for cell, asks in asked.items():
        least, most = TOKENS[cell.batch]
        assert all(least <= ask.sampling.max_tokens <= most for ask in asks)
        assert len({ask.prompt for ask in asks}) < len(asks) or cell.batch == 1, "no prompt comes twice"


def test_a_request_says_what_the_reference_computes() -> None:
    for ask in asks_of(CELL, 1):
        raw = ask.request("name").SerializeToString()
        request = type(ask.request("name")).FromString(raw)
        wish, told = ask.sampling, request.sampling
        assert (told.temperature, told.top_p, told.top_k, told.min_p, told.seed) == (
            wish.temperature, wish.top_p, wish.top_k, wish.min_p, wish.seed,
        )  # fmt: skip
        assert (request.stop.max_tokens, request.stop.ignore_eos, request.logprobs.top) == (wish.max_tokens, True, 3)
        assert tuple(request.token_ids.ids) == ask.prompt
    assert single(0.7) != 0.7


def next_up(value: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    (up,) = struct.unpack("<f", struct.pack("<I", bits + 1))
    return float(up)


@pytest.mark.parametrize(
    ("other", "token", "logprob"),
    [
        (ANSWER, None, None),
        ((ANSWER[0], ANSWER[1]._replace(token=8)), 1, None),
        ((ANSWER[0], best(7, next_up(-3.0), (1, 2), (-0.5, -0.75))), None, 1),
        ((best(5, -0.25, (5, 9), (-0.25, next_up(-1.5))), ANSWER[1]), None, 0),
        ((best(5, -0.25, (5, 8), (-0.25, -1.5)), ANSWER[1]), None, 0),
        ((best(5, -0.25, (5,), (-0.25,)), ANSWER[1]), None, 0),
        (ANSWER[:1], 1, None),
        ((), 0, None),
    ],
)
def test_the_smallest_difference_is_found(other: Sequence[Best], token: int | None, logprob: int | None) -> None:
    for difference in (compare(ANSWER, other), compare(other, ANSWER)):
        assert (difference.token, difference.logprob) == (token, logprob)
        assert bool(difference) == (other != ANSWER)


def test_zeros_of_other_sign_differ_and_nan_equals_itself() -> None:
    assert compare([best(1, 0.0, (), ())], [best(1, -0.0, (), ())]).logprob == 0
    assert not compare([best(1, float("nan"), (), ())], [best(1, float("nan"), (), ())])


@pytest.mark.parametrize(
    "change",
    [
        {"remote": 23},
        {"admitted": 25},
        {"committed": 23},
        {"bytes_moved": 4095},
        {"bytes_moved": 0, "bytes_expected": 0},
        {"token_mismatches": 1},
        {"logprob_mismatches": 1},
    ],
)
def test_whatever_is_not_as_it_must_be_ends_with_status_1(change: dict[str, int]) -> None:
    assert command.judge([GOOD, GOOD], json=False) == 0
    assert command.judge([GOOD, replace(GOOD, **change)], json=True) == 1


def test_the_report_adds_the_cells_up() -> None:
    report = command.summary([replace(GOOD, token_mismatches=1), replace(GOOD, remote=12, admitted=24)])
    assert (report["cells"], report["prompts"], report["token_mismatches"]) == (2, 48, 1)
    assert (report["remote_share"], report["bytes_moved"]) == (0.75, 8192)
    assert report["numerics"] == {"path": "pairs", "class": "class", "fingerprint": "fingerprint"}


@pytest.mark.parametrize(("noticed", "status"), [(20, 1), (19, 2), (0, 2)])
def test_a_sabotage_that_goes_unnoticed_ends_with_status_2(noticed: int, status: int) -> None:
    result = Spoilt(GOOD, GOOD, noticed=noticed, wanted=20)
    assert command.judge_sabotage(result, Sabotage.PAGE, json=False) == status


@pytest.mark.parametrize("error", [MeshFailed("a worker is not ready"), OSError("broken"), AssertionError()])
def test_what_is_no_difference_never_ends_with_status_1(error: Exception) -> None:
    with pytest.raises(SystemExit) as ended, command.anything_else_is_unknown():
        raise error
    assert ended.value.code == 2


def test_what_decode_prefilled_or_patched_itself_is_not_remote() -> None:
    outcome = Outcome([], ("", ""))
    outcome.decode.update(admitted_remote=5, admitted_patched=2, admitted_local=3, bytes_landed=70)
    outcome.prefill.update(bytes_written=100, bytes_resent=30)
    assert (outcome.remote, outcome.admitted) == (5, 10)
    assert outcome.bytes_moved == outcome.bytes_expected == 70


def test_a_cell_is_a_mesh_of_those_settings() -> None:
    mesh = read_settings(overrides=settings_of(CELL)).mesh()
    assert (mesh.prefill_workers, mesh.decode_workers) == (2, 2)
    for worker in (mesh.prefill, mesh.decode):
        assert (worker.transports, worker.page_tokens, worker.prefix_cache) == (("tcp",), 64, True)
        assert (worker.chunk_tokens, worker.product_path) == (16, "pairs")
    assert mesh.decode.max_batch == 8


def test_only_decode_workers_are_broken_and_keep_their_settings() -> None:
    decode = Service("decode-0", serve_arguments("decode", {"decode.name": "d"}))
    prefill = Service("prefill-0", serve_arguments("prefill", {}))
    assert broken(prefill, Path("fault")) == prefill
    assert broken(decode, Path("fault")).arguments[:3] == ("-m", "cli.verify.broken_worker", "fault")
    assert broken(decode, Path("fault")).arguments[3:] == decode.arguments[4:]


def test_nothing_but_verify_knows_the_broken_worker() -> None:
    root = Path(__file__).resolve().parents[3]
    rooms = ("cli", "gateway", "prefill_svc", "decode_svc", "engine", "kvtransfer", "mesh")
    files = [path for room in rooms for path in (root / room).rglob("*.py")]
    knowing = {path.relative_to(root).as_posix() for path in files if "broken_worker" in path.read_text()}
    assert knowing == {"cli/verify/faults.py", "cli/verify/meshed.py"}

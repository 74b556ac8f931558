"""`baton verify` in parts: its cells meet in all pairs, its comparison misses no bit, its verdicts are right."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import baton_kernels
from cli.supervisor import MeshFailed, Service, serve_arguments
from cli.verify import command
from cli.verify.answers import Best, best, compare
from cli.verify.asks import LONGEST, PROMPTS, REPEATING, TOKENS, asks_of, single
from cli.verify.bodies import Roles, paths, turn
from cli.verify.cells import FACTORS, LEAST_CELLS, Cell, every_cell, every_pair, missing_pairs, pairwise_cover
from cli.verify.checks import Checked
from cli.verify.drafts import ensure_draft
from cli.verify.meshed import Outcome, embodied, instead, settings_of
from cli.verify.restless_worker import Restless
from cli.verify.sabotage import Sabotage, Spoilt
from decode_svc.speculation.draft_length import Acceptance, Candidate
from engine.builtin import tiny
from engine.model.checkpoint import Checkpoint
from mesh.settings import read_settings

TIERS = ("gateway", "prefill", "decode")
CELL = Cell(transport="tcp", chunk=16, page=64, batch=8, workers=2, cache=True, speculation="lookup", path="pairs:avx2")
PATHS = ("pairs:plain", "pairs:avx2", "pairs:avx512", "pairs:avx512bf16", "fp32:avx512", "amx:avx512")
CPU = {**FACTORS["cpu"], "path": PATHS}
PRINTS = {"pairs": {"plain": "p", "avx2": "p"}, "fp32": {"plain": "f"}}
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
    drafted=40,
    accepted=15,
    roles=Roles("pairs", prefill="avx2", decode="avx512", alone="avx512bf16"),
    numerics=("class", "fingerprint"),
    seconds=1.0,
)


@pytest.mark.parametrize("seed", [0, 1, command.SEED])
def test_the_cover_holds_every_pair_of_settings(seed: int) -> None:
    cells = pairwise_cover(seed, CPU)
    assert not missing_pairs(cells, CPU)
    assert LEAST_CELLS <= len(cells) <= 24
    assert len(set(cells)) == len(cells)


def test_missing_pairs_are_told() -> None:
    two = [cell for cell in every_cell(CPU) if cell.transport == "tcp" and cell.cache]
    assert missing_pairs(two, CPU) >= {(("transport", "shm"), ("page", page)) for page in CPU["page"]}
    assert missing_pairs([], CPU) == every_pair(CPU)
    assert len(missing_pairs([CELL], CPU)) == len(every_pair(CPU)) - 28


def test_the_same_seed_draws_the_same_cells_and_prompts() -> None:
    assert pairwise_cover(3, CPU) == pairwise_cover(3, CPU) != pairwise_cover(4, CPU)
    assert asks_of(CELL, 3) == asks_of(CELL, 3) != asks_of(CELL, 4)


def test_the_usual_run_asks_enough_and_of_every_kind() -> None:
    cells = pairwise_cover(command.SEED, CPU)
    asked = {cell: asks_of(cell, command.SEED) for cell in cells}
    everything = [ask for asks in asked.values() for ask in asks]
    assert len(everything) == sum(PROMPTS["cpu"][cell.batch] for cell in cells) >= 300
    assert max(len(ask.prompt) for ask in everything) == LONGEST
    assert min(len(ask.prompt) for ask in everything) == 1
    greedy = sum(ask.sampling.temperature == 0 for ask in everything)
    assert 0.3 * len(everything) < greedy < 0.7 * len(everything)
    for cell, asks in asked.items():
        least, most = (REPEATING["cpu"][cell.batch],) * 2 if cell.speculation == "lookup" else TOKENS[cell.batch]
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
        {"accepted": 0},
        {"accepted": 40},
        {"drafted": 0, "accepted": 0},
    ],
)
def test_whatever_is_not_as_it_must_be_ends_with_status_1(change: dict[str, int]) -> None:
    assert command.judge([GOOD, GOOD], PRINTS, json=False) == 0
    assert command.judge([GOOD, replace(GOOD, **change)], PRINTS, json=True) == 1


def test_drafts_where_there_must_be_none_end_with_status_1() -> None:
    plain = replace(GOOD, cell=replace(CELL, speculation="off"))
    assert command.judge([replace(plain, drafted=0, accepted=0)], PRINTS, json=False) == 0
    assert command.judge([plain], PRINTS, json=False) == 1


def test_a_body_with_another_fingerprint_ends_with_status_1() -> None:
    assert command.judge([GOOD], PRINTS | {"amx": {"plain": "a", "avx2": "b"}}, json=False) == 1


@pytest.mark.parametrize("known", [("plain", "avx2"), ("plain", "avx2", "avx512"), ("plain", "avx2", "avx512", "amx")])
def test_pages_are_written_by_one_body_read_by_another_and_judged_by_a_third(known: tuple[str, ...]) -> None:
    for body in known:
        parts = turn("amx", body, known)
        assert parts.prefill == body
        assert len({parts.prefill, parts.decode, parts.alone}) == min(3, len(known))
    assert {turn("amx", body, known).decode for body in known} == set(known)
    assert turn("amx", "avx2", known).environment("prefill") == (("BATON_PRODUCT_PATH", "amx:avx2"),)


def test_every_body_of_pairs_and_every_path_is_checked_here() -> None:
    assert {path.partition(":")[0] for path in paths()} == set(baton_kernels.PATHS)
    assert {f"pairs:{body}" for body in baton_kernels.bodies()["product.pairs"]} <= set(paths())


def test_a_draft_model_has_the_models_shape_and_other_weights(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3", dtype="bf16")
    folder = ensure_draft(model, tmp_path / "cache")
    mine, theirs = Checkpoint(folder).tensors, Checkpoint(model).tensors
    assert {name: one.shape for name, one in mine.items()} == {name: one.shape for name, one in theirs.items()}
    changed = {name for name in mine if (mine[name].values != theirs[name].values).any()}
    assert changed == {name for name, one in theirs.items() if len(one.shape) == 2}
    assert ensure_draft(model, tmp_path / "cache") == folder


def test_a_restless_pace_takes_every_length_and_never_more_than_fits() -> None:
    pace = Restless(3)
    candidates = [Candidate(Acceptance(), most=9), Candidate(Acceptance(), most=1)]
    chosen = [pace.lengths(candidates) for _ in range(4)]
    assert [one[0] for one in chosen] == [1, 2, 3, 0] and [one[1] for one in chosen] == [1, 1, 0, 1]


def test_the_report_adds_the_cells_up() -> None:
    report = command.summary([replace(GOOD, token_mismatches=1), replace(GOOD, remote=12, admitted=24)])
    assert (report["cells"], report["prompts"], report["token_mismatches"]) == (2, 48, 1)
    assert (report["remote_share"], report["bytes_moved"]) == (0.75, 8192)
    assert report["numerics"] == {"path": "pairs", "class": "class", "fingerprint": "fingerprint"}


@pytest.mark.parametrize(("noticed", "status"), [(20, 1), (19, 2), (0, 2)])
def test_a_sabotage_that_goes_unnoticed_ends_with_status_2(noticed: int, status: int) -> None:
    result = Spoilt(GOOD, GOOD, noticed=noticed, wanted=20)
    assert command.judge_sabotage([result], Sabotage.PAGE, json=False) == status
    spotless = Spoilt(GOOD, GOOD, noticed=20, wanted=20)
    assert command.judge_sabotage([spotless, result], Sabotage.BATCH, json=True) == status


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
    module = "cli.verify.broken_worker"
    assert instead(prefill, module, "fault") == prefill
    assert instead(decode, module, "fault").arguments[:3] == ("-m", module, "fault")
    assert instead(decode, module, "fault").arguments[3:] == decode.arguments[4:]


def test_each_tier_is_told_its_body_and_the_gateway_none() -> None:
    parts = Roles("pairs", prefill="avx2", decode="plain", alone="avx512")
    told = {tier: embodied(Service(tier, serve_arguments(tier, {})), parts).environment for tier in TIERS}
    assert told == {
        "gateway": (),
        "prefill": (("BATON_PRODUCT_PATH", "pairs:avx2"),),
        "decode": (("BATON_PRODUCT_PATH", "pairs:plain"),),
    }


def test_nothing_but_verify_knows_the_broken_worker() -> None:
    root = Path(__file__).resolve().parents[3]
    rooms = ("cli", "gateway", "prefill_svc", "decode_svc", "engine", "kvtransfer", "mesh")
    files = [path for room in rooms for path in (root / room).rglob("*.py")]
    knowing = {path.relative_to(root).as_posix() for path in files if "broken_worker" in path.read_text()}
    assert knowing == {"cli/verify/faults.py", "cli/verify/meshed.py"}

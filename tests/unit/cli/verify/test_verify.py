"""`baton verify` in parts: its cells meet in all pairs, its comparison misses no bit, its verdicts are right."""

import importlib
import inspect
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import baton_kernels
from cli.errors import MeshFailed
from cli.local_mesh import serve
from cli.local_mesh.supervisor import Service, serve_arguments
from cli.verify import command, report
from cli.verify.answers import Best, best, compare
from cli.verify.bodies import Roles, paths, turn
from cli.verify.cell_mesh import settings_of, with_body, with_program
from cli.verify.cells import FACTORS, LEAST_CELLS, Cell, every_cell, every_pair, missing_pairs, pairwise_cover
from cli.verify.checks import RESTLESS, Checked
from cli.verify.drafts import ensure_draft
from cli.verify.outcomes import CellOutcome
from cli.verify.requests import LONGEST, PROMPTS, REPEATING, TOKENS, requests_of, single
from cli.verify.restless_worker import Restless
from cli.verify.sabotage import Sabotage, Sabotaged, load_saboteur
from decode_svc.speculation.draft_length import Acceptance, Candidate
from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from mesh.config.settings import read_settings

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
    bytes_given_up=0,
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
    assert LEAST_CELLS <= len(cells) <= 26
    assert len(set(cells)) == len(cells)


def test_missing_pairs_are_found() -> None:
    two = [cell for cell in every_cell(CPU) if cell.transport == "tcp" and cell.cache]
    assert missing_pairs(two, CPU) >= {(("transport", "shm"), ("page", page)) for page in CPU["page"]}
    assert missing_pairs([], CPU) == every_pair(CPU)
    assert len(missing_pairs([CELL], CPU)) == len(every_pair(CPU)) - 36


def test_the_same_seed_draws_the_same_cells_and_prompts() -> None:
    assert pairwise_cover(3, CPU) == pairwise_cover(3, CPU) != pairwise_cover(4, CPU)
    assert requests_of(CELL, 3) == requests_of(CELL, 3) != requests_of(CELL, 4)


def test_the_usual_run_sends_enough_requests_of_every_kind() -> None:
    cells = pairwise_cover(command.SEED, CPU)
    drawn = {cell: requests_of(cell, command.SEED) for cell in cells}
    everything = [one for requests in drawn.values() for one in requests]
    assert len(everything) == sum(PROMPTS["cpu"][cell.batch] for cell in cells) >= 300
    assert max(len(one.prompt) for one in everything) == LONGEST
    assert min(len(one.prompt) for one in everything) == 1
    greedy = sum(one.sampling.temperature == 0 for one in everything)
    assert 0.3 * len(everything) < greedy < 0.7 * len(everything)
    for cell, requests in drawn.items():
        least, most = (REPEATING["cpu"][cell.batch],) * 2 if cell.speculation == "lookup" else TOKENS[cell.batch]
        assert all(least <= one.sampling.max_tokens <= most for one in requests)
        assert len({one.prompt for one in requests}) < len(requests) or cell.batch == 1, "no prompt comes twice"


def test_a_message_carries_what_the_reference_computes() -> None:
    for request in requests_of(CELL, 1):
        raw = request.message("name").SerializeToString()
        message = type(request.message("name")).FromString(raw)
        mine, sent = request.sampling, message.sampling
        assert (sent.temperature, sent.top_p, sent.top_k, sent.min_p, sent.seed) == (
            mine.temperature, mine.top_p, mine.top_k, mine.min_p, mine.seed,
        )  # fmt: skip
        assert (message.stop.max_tokens, message.stop.ignore_eos, message.logprobs.top) == (mine.max_tokens, True, 3)
        assert tuple(message.token_ids.ids) == request.prompt
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


def test_landings_that_were_given_up_may_lack_their_bytes_and_no_others() -> None:
    done = replace(GOOD, bytes_moved=3072, bytes_given_up=1024)
    assert report.judge([GOOD, done], PRINTS, json=False) == 0
    assert "1024 of landings given up" in done.line


@pytest.mark.parametrize(
    "change",
    [
        {"remote": 23},
        {"admitted": 25},
        {"committed": 23},
        {"bytes_moved": 4095},
        {"bytes_moved": 0, "bytes_expected": 0},
        {"bytes_moved": 4097, "bytes_given_up": 1024},
        {"bytes_moved": 3071, "bytes_given_up": 1024},
        {"token_mismatches": 1},
        {"logprob_mismatches": 1},
        {"accepted": 0},
        {"accepted": 40},
        {"drafted": 0, "accepted": 0},
    ],
)
def test_whatever_is_not_as_it_must_be_ends_with_status_1(change: dict[str, int]) -> None:
    assert report.judge([GOOD, GOOD], PRINTS, json=False) == 0
    assert report.judge([GOOD, replace(GOOD, **change)], PRINTS, json=True) == 1


def test_drafts_where_there_must_be_none_end_with_status_1() -> None:
    plain = replace(GOOD, cell=replace(CELL, speculation="off"))
    assert report.judge([replace(plain, drafted=0, accepted=0)], PRINTS, json=False) == 0
    assert report.judge([plain], PRINTS, json=False) == 1


def test_a_body_with_another_fingerprint_ends_with_status_1() -> None:
    assert report.judge([GOOD], PRINTS | {"amx": {"plain": "a", "avx2": "b"}}, json=False) == 1


@pytest.mark.parametrize("known", [("plain", "avx2"), ("plain", "avx2", "avx512"), ("plain", "avx2", "avx512", "amx")])
def test_pages_are_written_by_one_body_read_by_another_and_judged_by_a_third(known: tuple[str, ...]) -> None:
    for body in known:
        parts = turn("amx", body, known)
        assert parts.prefill == body
        assert len({parts.prefill, parts.decode, parts.alone}) == min(3, len(known))
    assert {turn("amx", body, known).decode for body in known} == set(known)
    assert turn("amx", "avx2", known).environment("prefill") == (("BATON_PRODUCT_PATH", "amx:avx2"),)


def test_every_body_of_pairs_and_every_path_is_checked_here() -> None:
    coded = {"kv-int8", "kv-fp8", "kv-int4"}
    assert {path.partition(":")[0] for path in paths()} == {*baton_kernels.PATHS, *coded, "int8", "int8-amx", "int4"}
    assert {f"pairs:{body}" for body in baton_kernels.bodies()["product.pairs"]} <= set(paths())


def test_a_draft_model_has_the_models_shape_and_other_weights(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3", dtype="bf16")
    folder = ensure_draft(model, tmp_path / "cache")
    mine, theirs = Checkpoint(folder).tensors, Checkpoint(model).tensors
    assert {name: one.shape for name, one in mine.items()} == {name: one.shape for name, one in theirs.items()}
    changed = {name for name in mine if (mine[name].values != theirs[name].values).any()}
    assert changed == {name for name, one in theirs.items() if len(one.shape) == 2}
    assert ensure_draft(model, tmp_path / "cache") == folder


@pytest.mark.parametrize("module", [*RESTLESS, "tests.sabotage.broken_worker"])
def test_a_worker_in_place_of_the_one_that_serves_takes_every_option_of_the_supervisor(module: str) -> None:
    mine, own = (inspect.signature(main).parameters for main in (importlib.import_module(module).main, serve.decode))
    assert mine.keys() >= own.keys() - {"config"}, "its settings come by --set alone"


def test_a_restless_pace_takes_every_length_and_never_more_than_fits() -> None:
    pace = Restless(3)
    candidates = [Candidate(Acceptance(), most=9), Candidate(Acceptance(), most=1)]
    chosen = [pace.lengths(candidates) for _ in range(4)]
    assert [one[0] for one in chosen] == [1, 2, 3, 0] and [one[1] for one in chosen] == [1, 1, 0, 1]


def test_the_report_adds_the_cells_up() -> None:
    summary = report.summary([replace(GOOD, token_mismatches=1), replace(GOOD, remote=12, admitted=24)])
    assert (summary["cells"], summary["prompts"], summary["token_mismatches"]) == (2, 48, 1)
    assert (summary["remote_share"], summary["bytes_moved"]) == (0.75, 8192)
    assert summary["numerics"] == {"path": "pairs", "class": "class", "fingerprint": "fingerprint"}


@pytest.mark.parametrize(("noticed", "status"), [(20, 1), (19, 2), (0, 2)])
def test_a_sabotage_that_goes_unnoticed_ends_with_status_2(noticed: int, status: int) -> None:
    result = Sabotaged(GOOD, GOOD, noticed=noticed, wanted=20)
    assert report.judge_sabotage([result], Sabotage.PAGE, json=False) == status
    spotless = Sabotaged(GOOD, GOOD, noticed=20, wanted=20)
    assert report.judge_sabotage([spotless, result], Sabotage.BATCH, json=True) == status


@pytest.mark.parametrize("error", [MeshFailed("a worker is not ready"), OSError("broken"), AssertionError()])
def test_what_is_no_difference_never_ends_with_status_1(error: Exception) -> None:
    with pytest.raises(SystemExit) as ended, command.anything_else_is_unknown():
        raise error
    assert ended.value.code == 2


def test_what_decode_prefilled_or_patched_itself_is_not_remote() -> None:
    outcome = CellOutcome([], ("", ""))
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
    module = "tests.sabotage.broken_worker"
    assert with_program(prefill, module, "fault") == prefill
    assert with_program(decode, module, "fault").arguments[:3] == ("-m", module, "fault")
    assert with_program(decode, module, "fault").arguments[3:] == decode.arguments[4:]


def test_the_environment_of_each_tier_names_its_body_and_the_gateways_none() -> None:
    parts = Roles("pairs", prefill="avx2", decode="plain", alone="avx512")
    environments = {tier: with_body(Service(tier, serve_arguments(tier, {})), parts).environment for tier in TIERS}
    assert environments == {
        "gateway": (),
        "prefill": (("BATON_PRODUCT_PATH", "pairs:avx2"),),
        "decode": (("BATON_PRODUCT_PATH", "pairs:plain"),),
    }


def test_no_shipped_room_names_what_only_the_saboteur_does() -> None:
    root = Path(__file__).resolve().parents[4]
    rooms = ("cli", "gateway", "prefill_svc", "decode_svc", "engine", "kvtransfer", "mesh")
    texts = {
        path.relative_to(root).as_posix(): path.read_text() for room in rooms for path in (root / room).rglob("*.py")
    }
    assert [name for name, text in texts.items() if "broken_worker" in text] == []
    assert [name for name, text in texts.items() if "tests.sabotage" in text] == ["cli/verify/sabotage.py"]


def test_a_checkout_has_a_saboteur() -> None:
    assert callable(load_saboteur())


def test_without_a_checkout_a_sabotage_ends_with_status_2_and_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, command.anything_else_is_unknown():
        load_saboteur(tmp_path)
    assert ended.value.code == 2 and "needs a checkout of Baton" in " ".join(capsys.readouterr().err.split())

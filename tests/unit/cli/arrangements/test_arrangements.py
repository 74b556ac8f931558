"""`baton doctor --arrangements`: the table, the plots, the verdict and the picture, from figures that are given."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.arrangements import summary
from cli.arrangements.command import report, show_arrangements
from cli.arrangements.measure import ARRANGEMENTS, DEFAULT, MeasureOrder, Turns
from cli.arrangements.picture import draw, plot, points_of, table
from cli.arrangements.stream import StreamTimes
from cli.arrangements.turn import LoadTurn, NoTokens
from cli.arrangements.verdict import best_of, sentences, share_of_default

CHOSEN = "1 prefill + 2 decode, 2 threads each: one worker computes at a time on 2 cores"
RATES = {DEFAULT: 200.0, "one worker": 205.0, "adaptive 1+1": 199.0, "split 1+1": 130.0}
GAPS = {DEFAULT: 0.08, "one worker": 0.08, "adaptive 1+1": 0.09, "split 1+1": 0.2}


def turn(rate: float, gap: float, first: float = 0.5) -> LoadTurn:
    return LoadTurn(rate, [StreamTimes(0.0, tuple(first + gap * i for i in range(8)))])


def found_with(**changed: float) -> dict[str, Turns]:
    rates = RATES | {name.replace("_", " ").replace("1 1", "1+1"): rate for name, rate in changed.items()}
    return {
        name: {1: turn(rates[name] / 4, GAPS[name] / 4), 16: turn(rates[name], GAPS[name])} for name in ARRANGEMENTS
    }


def test_the_default_is_compared_with_the_best_of_each_load() -> None:
    found = found_with()
    assert best_of(found, 16) == "one worker"
    share = share_of_default(found, 16)
    assert share.tokens == pytest.approx(200 / 205) and share.ttft == 1.0 and share.itl_p99 == pytest.approx(1.0)


def test_the_verdict_names_a_better_arrangement_only_where_it_is_clearly_better() -> None:
    assert sentences(found_with(), CHOSEN) == [
        f"In use: {CHOSEN}.",
        "1 client: no arrangement yields clearly more than the default.",
        "16 clients: no arrangement yields clearly more than the default.",
        "A split does not pay on this machine: 0.63 times the tokens of one worker, and gaps 2.50 times as long (p99). "
        "Tiers pay where each has cores or devices of its own.",
    ]
    better = sentences(found_with(one_worker=300.0), CHOSEN)
    assert better[2].startswith(
        "16 clients: one worker yields 1.50 times the tokens: baton up --set mesh.prefill_workers=0"
    )


def test_a_split_that_pays_is_said_to_pay() -> None:
    found = found_with(split_1_1=300.0)
    found["split 1+1"][16] = turn(300.0, 0.05)
    assert sentences(found, CHOSEN)[-1].startswith("A split pays here: 1.46 times the tokens of one worker")
    found["split 1+1"][16] = turn(204.0, 0.05)
    assert sentences(found, CHOSEN)[-1].startswith("A split shortens gaps here: 1.00 times")


def test_the_table_and_the_plot_have_a_letter_for_each_arrangement() -> None:
    found = found_with()
    lines = table(found, {DEFAULT: "what baton up starts here"})
    assert len(lines) == 1 + 2 * len(ARRANGEMENTS)
    assert lines[2].split() == ["16", "200.0", "0.50", "s", "80", "ms"]
    drawn = "\n".join(plot(points_of(found, 16), "16 clients"))
    assert all(letter in drawn for letter in "CD") and ("*" in drawn or "A" in drawn)


def test_the_picture_is_whole_and_names_every_arrangement() -> None:
    picture = draw(found_with(), title="Arrangements for m<&>", subtitle="here")
    words = "".join(ElementTree.fromstring(picture).itertext())
    assert "m<&>" in words and all(words.count(name) >= 2 for name in ARRANGEMENTS)


def measured(found: dict[str, Turns], problem: str = "") -> Callable[..., object]:
    async def measure(name: str, order: MeasureOrder, show: Callable[[str], None]) -> Turns:
        show(f"{name}: starts")
        if problem:
            raise NoTokens(problem)
        return found[name]

    return measure


def test_the_command_prints_everything_and_writes_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, found = tmp_path / "a.svg", found_with()
    for as_json in (False, True):
        show_arrangements(
            {},
            machine="a processor, 2 cores",
            model="m",
            chosen=CHOSEN,
            picture=file,
            as_json=as_json,
            measure=measured(found),  # type: ignore[arg-type]
        )
        out = capsys.readouterr().out
        assert ElementTree.parse(file)
        if as_json:
            printed = json.loads(out)
            assert printed == json.loads(json.dumps(report(found, CHOSEN)))
            assert printed["default_share"]["16"]["tokens"] == pytest.approx(200 / 205)
        else:
            assert "a processor, 2 cores, m" in out and CHOSEN in out and "A split does not pay" in out


def test_a_mesh_that_yields_no_token_ends_the_command_with_what_clients_saw(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        show_arrangements(
            {},
            machine="",
            model="m",
            chosen=CHOSEN,
            picture=None,
            as_json=False,
            measure=measured({}, "most requests got no token in 8 s: refused"),  # type: ignore[arg-type]
        )
    assert ended.value.code == 1 and "most requests got no token" in capsys.readouterr().err


def test_the_benchmark_names_every_target_that_is_missed() -> None:
    report = summary([found_with(), found_with()], CHOSEN)
    assert report["missed"] == [] and report["adaptive_share"] == pytest.approx(199 / 205)
    assert set(report["default_share"]) == {"1", "16"} and report["spread"]["16"]["tokens"][0] == pytest.approx(
        200 / 205
    )
    slow = summary([found_with(one_worker=300.0)], CHOSEN)
    assert any(line.startswith("16 clients: tokens is 0.6667, wanted >= 0.95") for line in slow["missed"])
    assert any(line.startswith("adaptive_share is 0.66") for line in slow["missed"])

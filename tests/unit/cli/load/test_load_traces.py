"""Trace files: both formats, their order and times, lines that cannot be read, and lengths beyond the context."""

from pathlib import Path

import pytest

from cli.load.options import LoadOptions
from cli.load.plan import LoadError, LoadRequest, capped
from cli.load.shapes import SHAPES, ShapeName
from cli.load.trace_files import read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,0
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 7]}
{"timestamp": 1000, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}

{"timestamp": 1500, "input_length": 3, "output_length": 2}
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    first, second = read_trace(file(tmp_path, AZURE))
    assert (first.input_tokens, first.output_tokens, first.at_seconds, first.blocks) == (374, 44, 0.0, ())
    assert (second.input_tokens, second.output_tokens) == (396, 1)  # no server accepts an answer of no tokens
    assert second.at_seconds == pytest.approx(4.314579)
    assert read_trace(file(tmp_path, "\ufeff" + AZURE.replace("\n", "\r\n").replace("9951690", "9951690+00:00")))


def test_a_mooncake_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    assert read_trace(file(tmp_path, MOONCAKE)) == [
        LoadRequest(600, 9, 0.0, (0, 1)),
        LoadRequest(3, 2, 0.5),
        LoadRequest(700, 5, 2.0, (0, 7)),
    ]
    assert len(read_trace(file(tmp_path, MOONCAKE), most=2)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ": holds no request"),
        ("a,b,c\n1,2,3\n", ":1: is neither JSON nor the header"),
        (AZURE + "2023-11-16 18:15:50,5\n", ":4: has 2 cells, not 3"),
        (AZURE + "yesterday,5,5\n", ":4: TIMESTAMP 'yesterday' is no date"),
        (AZURE + "2023-11-16 18:15:50,-5,5\n", ":4: ContextTokens is '-5'"),
        (AZURE + "2023-11-16 18:15:50,5,5.5\n", ":4: GeneratedTokens is '5.5'"),
        (MOONCAKE + "{\n", ":5: is no JSON"),
        (MOONCAKE + "[]\n", ":5: is no JSON object"),
        (MOONCAKE + '{"timestamp": "1", "input_length": 1, "output_length": 1}', ":5: timestamp is '1'"),
        (MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}', ":5: timestamp is nan"),
        (MOONCAKE + '{"timestamp": 1, "output_length": 1}', ":5: input_length is None"),
        (MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 1}', ":5: input_length is True"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', ":5: hash_ids"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(LoadError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_a_file_that_is_missing_or_binary_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        with pytest.raises(LoadError, match="cannot be read"):
            read_trace(path)


def test_requests_beyond_the_context_are_shortened_and_counted() -> None:
    requests = [LoadRequest(80, 20), LoadRequest(90, 20), LoadRequest(500, 500, 3.0, (1, 2))]
    fitting, count = capped(requests, 100)
    assert count == 2
    assert [(each.input_tokens, each.output_tokens) for each in fitting] == [(80, 20), (80, 20), (50, 50)]
    assert fitting[2].at_seconds == 3.0 and fitting[2].blocks == (1, 2)
    assert capped(requests, None) == (requests, 0)


def options(**more: object) -> LoadOptions:
    values = {"shape": None, "trace": None, "scale": None, "requests": None, "rate": None, "concurrency": None}
    return LoadOptions(**{**values, "seed": 0, **more})  # type: ignore[arg-type]


def test_a_scale_makes_a_trace_faster_and_a_rate_replaces_its_times(tmp_path: Path) -> None:
    trace = file(tmp_path, MOONCAKE)
    assert [each.at_seconds for each in options(trace=trace).plan()] == [0.0, 0.5, 2.0]
    assert [each.at_seconds for each in options(trace=trace, scale=4.0).plan()] == [0.0, 0.125, 0.5]
    assert [each.at_seconds for each in options(trace=trace, concurrency=2).plan()] == [None] * 3
    drawn = [each.at_seconds for each in options(trace=trace, rate=1.0).plan()]
    assert drawn[0] == 0.0 and drawn != [0.0, 0.5, 2.0]


@pytest.mark.parametrize("name", ShapeName)
def test_every_shape_draws_lengths_around_its_mean_and_equal_ones_for_equal_seeds(name: ShapeName) -> None:
    shape, planned = SHAPES[name], options(shape=name).plan()
    assert len(planned) == shape.requests and planned == options(shape=name).plan()
    assert planned != options(shape=name, seed=1).plan()
    assert all(shape.input_tokens / 2 <= each.input_tokens <= shape.input_tokens * 1.5 for each in planned)
    assert (options(shape=name).clients() is None) == (shape.concurrency is None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "either --shape"),
        ({"shape": ShapeName.SHORT, "trace": Path("x")}, "either --shape"),
        ({"shape": ShapeName.SHORT, "rate": 1.0, "concurrency": 1}, "exclude each other"),
        ({"shape": ShapeName.SHORT, "scale": 2.0}, "--scale changes the times of a trace"),
        ({"trace": Path("x"), "scale": 2.0, "rate": 1.0}, "--scale changes the times of a trace"),
        ({"shape": ShapeName.SHORT, "rate": 0.0}, "--rate 0"),
        ({"trace": Path("x"), "scale": float("nan")}, "--scale nan"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        options(**more)

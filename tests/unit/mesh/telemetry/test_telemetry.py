"""W3C trace context, and what each Telemetry does with a finished trace."""

import pytest

from mesh.telemetry.spans import KeptHere, RecordingTelemetry, Silent, SpanRecord, make_traceparent, parse_traceparent

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_survives_the_round_trip() -> None:
    context = parse_traceparent(CLIENT)
    assert context is not None and context.sampled and make_traceparent(context) == CLIENT


def test_the_sampled_flag_survives_the_round_trip() -> None:
    unsampled = CLIENT[:-2] + "00"
    context = parse_traceparent(unsampled)
    assert context is not None and not context.sampled and make_traceparent(context) == unsampled


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        CLIENT.upper(),
        CLIENT + "-more",
        "ff" + CLIENT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str | None) -> None:
    assert parse_traceparent(text) is None


def test_a_later_version_may_carry_more() -> None:
    assert parse_traceparent("01" + CLIENT[2:] + "-more") is not None


def test_only_what_records_makes_the_spans_of_a_trace() -> None:
    made = list[str]()

    def assemble() -> list[SpanRecord]:
        made.append("spans")
        return [SpanRecord("gateway", "queue", 1, 2, 3, 0.0, 1.0)]

    for quiet in (Silent(), KeptHere(0.5)):
        quiet.export(assemble)
        quiet.close()
    assert made == []
    recording = RecordingTelemetry()
    recording.export(assemble)
    recording.close()
    assert [span.name for span in recording.spans] == ["queue"]


def test_silent_records_nothing_whatever_a_client_asks_for() -> None:
    assert Silent().share < 0 <= KeptHere(0.0).share

"""A structured event leaves a worker process with its fields, a line for people does not."""

import json
import logging

import pytest

from tests.harness.events import EventHandler, event_of
from tests.harness.orders import Orders

log = logging.getLogger("baton.test_events")


@pytest.fixture(autouse=True)
def handled() -> None:
    log.handlers, log.propagate = [EventHandler()], False
    log.setLevel(logging.DEBUG)


def test_an_event_becomes_one_fact_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log.debug("request %d: cancelled", 7, extra={"event": "request_cancelled", "request": 7, "phase": "running"})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"event": "note", "name": "request_cancelled", "request": 7, "phase": "running"}


def test_a_line_for_people_is_no_fact(capsys: pytest.CaptureFixture[str]) -> None:
    log.warning("request %d: cancelled", 7)
    assert capsys.readouterr().out == ""


def test_an_event_has_no_other_fields_than_its_own() -> None:
    record = log.makeRecord("n", logging.INFO, "file", 1, "text", (), None, extra={"event": "e", "one": 1})
    logging.Formatter("%(asctime)s %(message)s").format(record)
    assert event_of(record) == {"name": "e", "one": 1}


def test_orders_survive_their_argument() -> None:
    orders = Orders("decode", {"a": "b"}, 12, rules={"lease_seconds": 2.0}, mutants=("quarantine", "checksum"))
    assert Orders.unpack(orders.pack()) == orders
    assert orders.changed_rules().lease_seconds == 2.0

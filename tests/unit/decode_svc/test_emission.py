"""Tokens leave in one message per gateway and step; pages of an ended request stay until no step names them."""

import asyncio
from typing import Any

from decode_svc.emission import Emission, prefilled_here
from decode_svc.flights import Flights
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Token
from mesh.messages.reports import Tokens
from tests.unit.decode_svc.fakes import FakeSession, request


def test_all_tokens_of_a_step_for_one_gateway_leave_in_one_message() -> None:
    gateway, other, emission = FakeSession(), FakeSession(), Emission()
    requests = [request(1, gateway=gateway), request(2, gateway=gateway), request(3, gateway=other)]
    for one in requests:
        emission.show(one, Token(0, 40 + one.key))
    assert gateway.sent == []
    emission.flush()
    emission.flush()
    (message,) = gateway.sent
    assert isinstance(message, Tokens) and [item.token.token for item in message.items] == [41, 42]
    assert len(other.sent) == 1 and requests[0].produced == {0: Token(0, 41)}


def test_the_token_that_prefill_sampled_is_emitted_too() -> None:
    gateway, emission = FakeSession(), Emission()
    one = request(1, gateway=gateway)
    assert emission.show_first(one) is None and gateway.sent == []
    one.produced[0] = Token(0, 40)
    assert emission.show_first(one) == Token(0, 40) and len(gateway.sent) == 1


def test_a_local_prompt_reports_what_was_cached_how_long_it_waited_and_computed() -> None:
    one = request(1, opened=1.0, tokens=8)
    one.running_seconds, one.cached = 3.0, 4
    done = prefilled_here(one, 7.5)
    assert (done.cached_tokens, done.queued_seconds, done.computed_seconds) == (4, 2.0, 4.5)


async def test_pages_of_an_ended_request_wait_for_the_last_step_with_its_rows() -> None:
    result: Any = asyncio.get_running_loop().create_future()
    one, other = request(1), request(2)
    flights, plan = Flights(), Plan(1, (Piece(1, (5,), 0, (7,)),), copies=((3, 7),))
    first, second = (flights.begin(plan, result, {1: one}) for _ in range(2))
    assert flights.keep(one, [7, 8]) and not flights.keep(other, [9])
    assert flights.end(first) == [3] and flights.end(second) == [3, 7, 8]
    assert not flights.keep(one, [7]), "no step flies"

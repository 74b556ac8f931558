"""The requests of bench/routing.py, and what its figures say of a mesh that is known."""

from pathlib import Path
from random import Random

import pytest

from bench.command import missed
from bench.routing import TARGETS, mean_ttft
from bench.routing_mesh import SimulatedRouting, in_turn, routed
from bench.routing_trace import TraceRow, conversations, read_trace
from bench.routing_world import NUMERICS, PAGE_TOKENS, RoutingWorld
from cli.load.plan import BLOCK_TOKENS, LoadError


def test_public_traces_are_read_and_no_request_comes_in_two_rounds(tmp_path: Path) -> None:
    mooncake = tmp_path / "mooncake.jsonl"
    row = '{{"timestamp": {at}, "input_length": 1100, "output_length": 5, "hash_ids": [0, {at}, 7]}}\n'
    mooncake.write_text("".join(row.format(at=1000 * i) for i in range(4)))
    (first, second), others = read_trace(mooncake, rounds=2, count=2)
    assert [row.seconds for row in others] == [2.0, 3.0]
    with pytest.raises(LoadError, match="has 4 requests, and 5 rounds of 1 need 5: name fewer --requests"):
        read_trace(mooncake, rounds=5, count=1)
    assert (first.seconds, second.seconds, first.tokens, first.answer) == (0.0, 1.0, 1100, 5)
    assert len(first.blocks) == 2 and first.blocks[0] == second.blocks[0] and first.blocks[1] != second.blocks[1]
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,1030,44\n2023-11-16 18:15:50.9951690,96,109\n"
    )
    ((first, second),) = read_trace(azure, rounds=1, count=2)
    assert second.seconds == pytest.approx(4.314579) and len(first.blocks) == 2 and second.blocks == ()


def test_conversations_go_on_below_what_was_said() -> None:
    requests = conversations(200, Random(1))
    seen, goes_on = set[bytes](), 0
    for request in requests:
        assert len(request.blocks) == request.tokens // BLOCK_TOKENS
        goes_on += len(request.blocks) > 4 and request.blocks[3] in seen
        seen.update(request.blocks)
    assert goes_on > 50


def test_routes_are_worth_more_than_turns_where_prompts_share_prefixes() -> None:
    requests = conversations(300, Random(2))
    router, turns = (mean_ttft(SimulatedRouting(requests, choose, 0.7)) for choose in (routed, in_turn()))
    assert router < 0.8 * turns


def test_an_idle_mesh_computes_each_prompt_at_once() -> None:
    rows = [TraceRow(float(i), 800, 1, ()) for i in range(8)]
    assert mean_ttft(SimulatedRouting(rows, routed, 0.01)) == pytest.approx(0.1)


def test_the_world_has_the_blocks_that_its_requests_begin_with() -> None:
    world = RoutingWorld(20, 4000, Random(3))
    requests = [world.request() for _ in range(50)]
    assert any(world.table.leading((), b"", hashes) for _, hashes in requests)
    for tokens, hashes in requests:
        assert tokens > len(hashes[NUMERICS, PAGE_TOKENS]) * PAGE_TOKENS
        world.sends(world.decide(tokens, hashes), tokens)


def test_targets_are_named_when_they_are_missed() -> None:
    worse = missed({"decision_us_p99": 100.0, "ttft_ratio_to_round_robin": 0.81}, most=TARGETS)
    assert worse == ["ttft_ratio_to_round_robin is 0.81, wanted <= 0.8"]
    slow = missed({"decision_us_p99": 101.0, "ttft_ratio_to_round_robin": 0.5}, most=TARGETS)
    assert slow == ["decision_us_p99 is 101, wanted <= 100"]

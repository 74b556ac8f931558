"""The model explores the smallest worlds without a violation, finds removed protections, and speaks the code's words.

`make model` explores all of them; here are those that take a moment."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import decode_svc.request.requests
import gateway.sequencing.requests
import prefill_svc.prompts
from mesh.messages.message import Message
from tests.protocol.configurations import SMALL, Configuration
from tests.protocol.explore import Exploration, explore
from tests.protocol.moves import DECODE_PHASES, GATEWAY_PHASES, PREFILL_PHASES, Move, moves
from tests.protocol.protections import PROTECTIONS, UNMODELLED, demonstration
from tests.protocol.world import State

ROOT = Path(__file__).resolve().parents[2]
COST_ONLY = {"growth", "youngest", "failed", "lastproof"}  # nothing goes wrong without these

# Reachable states of the worlds that take a moment: a change of the model's meaning changes them.
STATES = {
    ("one request, no fault", "shm"): 38,
    ("frame lost", "tcp"): 621,
    ("larger than the pool", "shm"): 496,
    ("two requests, a small prefill pool", "shm"): 1347,
    ("growth beyond the pool", "shm"): 2483,
    ("page damaged and another fault", "shm"): 5353,
    ("local retry while the old attempt pushes", "rdma"): 5185,
    ("any stream breaks", "rdma"): 7111,
    ("the gateway restarts", "shm"): 10630,
    ("a worker crashes and restarts", "shm"): 10101,
    ("a client is behind, and another fault", "shm"): 4384,
}
SLOW = {"retire", "one_ready", "whole", "lost"}  # removals that take seconds to find; `make model` shows them
QUICK = [name for name in PROTECTIONS if name not in COST_ONLY | SLOW]


@cache
def explored(name: str, transport: str) -> tuple[Exploration, frozenset[Move], frozenset[str]]:
    """The exploration, the moves that it made and the names of the messages that it sent."""
    (configuration,) = (c for c in SMALL if (c.name, c.transport) == (name, transport))
    made, sent = set[Move](), set[str]()

    def watch(before: State, after: State) -> None:
        made.update(moves(before, after))
        sent.update(message[0] for stream in after[8] for message in stream)

    return explore(configuration, watch=watch), frozenset(made), frozenset(sent - {"stream broke"})


@pytest.mark.parametrize(("name", "transport"), STATES)
def test_a_small_world_has_so_many_states_and_no_violation(name: str, transport: str) -> None:
    exploration, _, _ = explored(name, transport)
    assert exploration.violation == ""
    assert (exploration.states, exploration.complete) == (STATES[name, transport], True)


@pytest.mark.parametrize("name", QUICK)
def test_a_removed_protection_is_found(name: str) -> None:
    configuration = demonstration(name)
    assert configuration is not None
    assert explore(configuration, frozenset({name})).violation


def test_every_protection_but_those_kept_for_cost_has_a_world_that_needs_it() -> None:
    assert {name for name in PROTECTIONS if demonstration(name) is None} == COST_ONLY


def test_the_models_phases_are_the_codes() -> None:
    assert {phase.value for phase in prefill_svc.prompts.PromptPhase} == {*PREFILL_PHASES, "ended"}
    assert {phase.value for phase in decode_svc.request.requests.DecodePhase} == {*DECODE_PHASES, "ended"}
    assert {phase.value for phase in gateway.sequencing.requests.RequestPhase} == set(GATEWAY_PHASES.values())


def moves_of_the_code() -> set[Move]:
    return {
        (tier, source.value, target.value)
        for tier, table in (
            ("gateway", gateway.sequencing.requests.MOVES),
            ("prefill", prefill_svc.prompts.MOVES),
            ("decode", decode_svc.request.requests.MOVES),
        )
        for source, targets in table.items()
        for target in targets
    }


def moves_of_the_model() -> set[Move]:
    return set[Move]().union(*(explored(*key)[1] for key in STATES))


def test_every_move_of_the_model_is_a_move_of_the_code() -> None:
    """A prompt of the code passes through stopping on its way to its end; in the model that may take no time."""
    code = moves_of_the_code()
    at_once = {
        ("prefill", source, "ended") for tier, source, target in code if (tier, target) == ("prefill", "stopping")
    }
    assert moves_of_the_model() - code - at_once == set()


def test_the_model_makes_every_move_of_the_code() -> None:
    """One move needs a cancel in a world that is not explored here: a deep one makes it. The other is the deadline of
    a client that never reads on: in the model every client does."""
    model = moves_of_the_model()
    model |= {
        ("prefill", source, "stopping") for tier, source, target in model if (tier, target) == ("prefill", "ended")
    }
    assert moves_of_the_code() - model == {
        ("decode", "local", "ended"),
        ("gateway", "paused", "error"),
    }


def test_the_models_messages_are_the_codes() -> None:
    sent = set[str]().union(*(explored(*key)[2] for key in STATES))
    assert sent - {kind.__name__ for kind in get_args(Message)} == set()
    assert {"Open", "Prefill", "Ready", "Landing", "Commit", "Resend", "Landed", "Tokens"} <= sent


# ---- the document


def rows() -> dict[str, str]:
    """The table of rules in docs/protocol.md: name -> row."""
    text = (ROOT / "docs/protocol.md").read_text()
    return {match[1]: match[0] for match in re.finditer(r"^\| \[(\w+)\] \|.*$", text, re.MULTILINE)}


def test_the_documents_rules_are_the_models_protections() -> None:
    assert set(rows()) == set(PROTECTIONS) - COST_ONLY | UNMODELLED


def test_the_document_cites_every_rule_where_it_applies() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    assert set(re.findall(r"\*\*\[(\w+)\]\*\*", text)) == set(rows())


def test_the_negative_controls_of_the_document_are_the_mutants() -> None:
    written = {(name, file) for name, row in rows().items() for file in re.findall(r"`tests/mutants/(\w+)\.py`", row)}
    there = {
        (name, file.stem)
        for file in (ROOT / "tests/mutants").glob("*.py")
        for name in getattr(importlib.import_module(f"tests.mutants.{file.stem}"), "MUTANTS", ())
    }
    assert written == there


def test_a_guard_of_each_rule_with_a_mutant_names_its_rule() -> None:
    silent = []
    for name, row in rows().items():
        guards = re.findall(r"`([\w/]+\.py): ([\w.]+)`", row)
        texts = [docstring(ast.parse((ROOT / file).read_text()), place) for file, place in guards]
        if "tests/mutants" in row and not any(f"Rule [{name}]" in text for text in texts):
            silent.append(name)
    assert silent == []


def docstring(module: ast.Module, place: str) -> str:
    """The docstring of a function or method of this module."""
    body: list[ast.stmt] = module.body
    for part in place.split("."):
        node = next((n for n in body if getattr(n, "name", "") == part), None)
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        body = node.body
    return ast.get_docstring(node) or ""


def test_the_document_counts_the_small_worlds() -> None:
    assert f"all reachable states of {len(SMALL)} small worlds" in (ROOT / "docs/protocol.md").read_text()


def test_no_small_world_is_listed_twice() -> None:
    keys = [(c.name, c.transport) for c in SMALL]
    assert len(set(keys)) == len(keys)
    assert all(isinstance(c, Configuration) for c in SMALL)

"""A slice of `make receipts`, in real processes: another shape gives equal tokens, one changed weight is refused."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cli.receipts.replay import ReplaySource
from tests.harness.process import ROOT
from tests.receipts.cases import TOOLS, Json, ReceiptCase, cases
from tests.receipts.forging import forgeries, refusal
from tests.receipts.meshes import OTHER_SHAPE, SMALL_SHAPE, Doors, mesh_of, with_one_weight_changed
from tests.receipts.run import TakenReceipt, replay_all, take_all

MOST_FORGERIES = 60  # forgeries tried of each answer, about
HI: Json = {"messages": [{"role": "user", "content": "How many decode workers run?"}]}
NAMED: Json = {"name": "mesh_status", "input_schema": TOOLS[0]["function"]["parameters"]}
FULL: list[tuple[str, Json]] = [
    (
        "/v1/chat/completions",
        {"tools": TOOLS, "tool_choice": "required", "logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 40}
        | {"return_token_ids": True}
        | HI,
    ),
    ("/v1/completions", {"prompt": ["A", "B"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 5, "stop": ["."]}),
    (
        "/v1/responses",
        {"input": "hi", "tools": [{"type": "function"} | TOOLS[0]["function"]], "tool_choice": "required"}
        | {"max_output_tokens": 60, "metadata": {"a.b[0]": "c"}},
    ),
    ("/v1/messages", {"tools": [NAMED], "tool_choice": {"type": "any"}, "max_tokens": 60} | HI),
    ("/generate", {"text": ["A", "B"], "return_logprob": True, "sampling_params": {"max_new_tokens": 4}}),
]

pytestmark = pytest.mark.mesh
in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("receipts")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def taken(folder: Path) -> list[TakenReceipt]:
    """Receipts of every kind and door, from a mesh that is gone when the tests begin."""
    async with mesh_of(folder, SMALL_SHAPE) as doors:
        return await take_all(doors, list(cases(20)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def meshes(folder: Path, taken: list[TakenReceipt]) -> AsyncIterator[list[Doors]]:
    """Starts a mesh of another shape and one of another model, both at once: for some time after its start the gateway
    of the second waits for the class that it misses."""
    async with AsyncExitStack() as stack:
        other = mesh_of(folder, OTHER_SHAPE | {"mesh.prefill_workers": "1"})
        changed = mesh_of(folder, SMALL_SHAPE, with_one_weight_changed(folder))
        yield await asyncio.gather(*map(stack.enter_async_context, (other, changed)))


@pytest.fixture(scope="module")
def other(meshes: list[Doors]) -> Doors:
    return meshes[0]


async def baton(*arguments: str) -> tuple[int, str, str]:
    command = sys.executable, "-m", "cli", *arguments
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@in_one_loop
async def test_replays_on_another_shape_are_equal(taken: list[TakenReceipt], other: Doors) -> None:
    assert {(each.case.kind, each.case.door) for each in taken} >= {
        ("sampled", "grpc"),
        ("tools", "stream"),
        ("json", "whole"),
        ("choices", "stream"),
        ("/v1/responses", "whole"),
        ("/v1/messages", "stream"),
        ("/inference/v1/generate", "whole"),
        ("/generate", "whole"),
    }
    assert await replay_all(other, taken) == [[]] * len(taken)


@in_one_loop
async def test_the_command_says_equal_and_names_the_first_other_token(
    taken: list[TakenReceipt], other: Doors, tmp_path: Path
) -> None:
    each = next(each for each in taken if each.case.kind == "sampled" and each.case.door == "whole")
    file, text = tmp_path / "answer.json", each.source.text
    file.write_bytes(each.raw)
    assert text is not None
    asked = "replay", str(file), "--prompt", text, "--url", other.url
    status, out, err = await baton(*asked, "--json", "--key", each.key)
    assert (status, json.loads(out)["equal"]) == (0, True), err
    status, out, _ = await baton(*asked)
    assert status == 3 and "equal" in out and "this check has no key" in out
    status, out, _ = await baton("replay", str(file), "--prompt", f"{text}!", "--url", other.url)
    assert status == 1 and "prompt hash" in out
    status, out, err = await baton("receipt", str(file), "--url", other.url)
    assert status == 0, err  # both meshes share the folder of the key


@in_one_loop
@pytest.mark.parametrize("door", ["whole", "stream"])
async def test_whatever_is_changed_in_a_real_answer_is_refused_by_name(
    taken: list[TakenReceipt], other: Doors, door: str
) -> None:
    """Answers of all kinds, and those to requests that turn on whatever an answer can have."""
    more = [ReceiptCase("full", door, path, body) for path, body in FULL]
    kinds = {each.case.kind: each for each in taken if each.case.door in (door, "grpc")}
    for each in [*kinds.values(), *await take_all(other, more)]:
        assert refusal(each.raw, each.key) is None
        forged = list(forgeries(each.raw))
        for one in forged[:: max(1, len(forged) // MOST_FORGERIES)]:
            said = refusal(one.raw, each.key)
            assert said is not None and (each.case.door == "grpc" or one.name in said), (each.case, one.what, said)


@in_one_loop
async def test_each_kind_of_difference_is_found(taken: list[TakenReceipt], other: Doors) -> None:
    """The negative controls: what is asked is not what the receipt is of."""
    each = next(each for each in taken if each.case.kind == "json" and each.case.door == "whole")
    changes: dict[str, dict[str, Any]] = {
        "prompt": {"messages": [{"role": "user", "content": "another"}]},
        "parameter": {"response_format": {"type": "json_object"}},
        "seed": {"seed": 99},
    }
    for what, change in changes.items():
        asked = replace(each, case=replace(each.case, body=each.case.body | change))
        assert asked.source == ReplaySource(None, each.case.body | change)
        (found,) = await replay_all(other, [asked])
        assert what in {difference.what for difference in found}


@in_one_loop
async def test_one_changed_weight_refuses_every_replay_before_a_token(
    taken: list[TakenReceipt], meshes: list[Doors]
) -> None:
    refused = await replay_all(meshes[1], taken)
    assert [[difference.what for difference in found] for found in refused] == [["model_hash"]] * len(taken)

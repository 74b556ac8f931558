"""Grammars that would compile for hours are refused after a second, and keep no ordinary one waiting."""

import asyncio
import errno
import io
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.dialects.openai.large import LARGE_BYTES, BodyParser
from gateway.dialects.openai.types import CompletionRequest
from gateway.structured.check import GrammarCheck
from gateway.structured.compiling import TOO_COSTLY, WHY_NOT, prepare, verdict
from gateway.structured.costly import MOST_WAITING, CostlyGrammars, is_costly
from gateway.structured.forms import parse_structured_outputs
from gateway.text.client_template import ClientTemplates
from mesh.config.door_config import DoorConfig
from mesh.errors import InvalidRequest, Overloaded, Unavailable

BOMB = ".*" * 40_000  # the cost is the square of the repeats: minutes on any machine
NESTED = "start: T0\n" + "".join(f"T{at}: {' '.join([f'T{at + 1}'] * 10)}\n" for at in range(5)) + "T5: /.*/\n"
LARK = 'start: "a" | "b" start'


async def checked(check: GrammarCheck, kind: str, text: str) -> str:
    return await check.compiled(parse_structured_outputs({kind: text}, {}))


async def test_a_bomb_is_refused_and_ordinary_expressions_do_not_wait_for_it() -> None:
    check = GrammarCheck({})
    bomb = asyncio.create_task(checked(check, "regex", BOMB))
    await asyncio.sleep(0)
    assert await checked(check, "regex", "[a-z]+") and not bomb.done()
    with pytest.raises(InvalidRequest, match="regex cannot be followed: it takes more than 1 s or 512 MiB"):
        await bomb
    assert await checked(check, "grammar", LARK), "the process goes on with the next one"


async def test_terminals_that_multiply_are_bounded_too() -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs.grammar cannot be followed"):
        await checked(GrammarCheck({}), "grammar", NESTED)


async def test_grammars_of_clients_that_are_fine_pass_and_wrong_ones_get_their_reason() -> None:
    """Negative control."""
    costly = CostlyGrammars()
    fine = [parse_structured_outputs({kind: text}, {}) for kind, text in (("grammar", LARK), ("regex", "a*" * 150))]
    for form in fine:
        assert form is not None and is_costly(form.whole) and await costly.why_not(form.whole) is None
    wrong = parse_structured_outputs({"grammar": 'start: "a" other'}, {})
    assert wrong is not None and "unknown name" in str(await costly.why_not(wrong.whole))


async def test_a_verdict_is_known_when_the_grammar_comes_again() -> None:
    costly = CostlyGrammars()
    form = parse_structured_outputs({"grammar": LARK}, {})
    assert form is not None and await costly.why_not(form.whole) is None
    running = costly._helper._running
    first = running[0]
    first.kill()
    first.wait()
    assert await costly.why_not(form.whole) is None and running == [first], "nothing was asked"
    assert await costly.why_not(f"{form.whole} ") is None and running != [first], "a dead process is replaced"


async def test_more_than_a_few_that_wait_are_refused_for_a_while() -> None:
    costly, goes_on = CostlyGrammars(), threading.Event()
    costly._helper._thread.submit(goes_on.wait)
    try:
        form = parse_structured_outputs({"grammar": LARK}, {})
        assert form is not None
        waiting = [asyncio.create_task(costly.why_not(form.whole)) for _ in range(MOST_WAITING + 1)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="too many grammars that are costly to compile wait") as refused:
            await costly.why_not(form.whole)
        assert refused.value.retry_after_seconds and refused.value.http_status == 429
    finally:
        goes_on.set()  # else the thread waits for ever
    assert await asyncio.gather(*waiting) == [None] * (MOST_WAITING + 1)
    assert await costly.why_not(form.whole) is None


async def test_a_client_that_leaves_does_not_leave_its_grammar_to_the_next_one() -> None:
    costly, goes_on = CostlyGrammars(), threading.Event()
    costly._helper._thread.submit(goes_on.wait)
    try:
        left = asyncio.create_task(costly.why_not("one"))
        other = asyncio.create_task(costly.why_not("two"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0.01)
        assert not left.done() and not other.done(), "the thread is not free yet"
    finally:
        goes_on.set()
    assert await other is not None, "two is no grammar"
    assert left.cancelled()


@pytest.mark.parametrize(
    ("kind", "value", "costly"),
    [
        ("regex", "[a-z]+@[a-z]{1,20}", False),
        ("json", {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}, False),
        ("choice", ["a", "b"], False),
        ("regex", "a?" * 101, True),
        ("regex", "a{1,2}" * 101, True),
        ("json", {"enum": [f"{'x' * 20}{at}" for at in range(1000)]}, True),
        ("grammar", LARK, True),
    ],
)
def test_only_what_may_take_long_goes_to_the_process(kind: str, value: object, costly: bool) -> None:
    form = parse_structured_outputs({kind: value}, {})
    assert form is not None and is_costly(form.whole) == costly


def test_only_what_the_grammar_itself_used_up_counts_against_it() -> None:
    for by_itself in (signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV):
        assert verdict(b"", by_itself) == {WHY_NOT: TOO_COSTLY}
    for by_the_machine in (signal.SIGKILL, signal.SIGALRM, signal.SIGTERM, 1 << 8):
        assert verdict(b"", by_the_machine) == {} == verdict(b'"half an an', by_the_machine)
    assert verdict(b"null", 0) == {WHY_NOT: None} and verdict(b'"wrong"', 0) == {WHY_NOT: "wrong"}


class Scripted:
    """A process that gives these answers."""

    def __init__(self, *answers: bytes) -> None:
        self.stdin, self.stdout = io.BytesIO(), io.BytesIO(b"".join(answers))

    def kill(self) -> None: ...

    def wait(self) -> None: ...


async def test_a_grammar_is_asked_again_after_the_machine_had_no_time_for_it() -> None:
    costly = CostlyGrammars()
    costly._helper._running.append(cast(Any, Scripted(b"2\n{}", b'17\n{"why_not": null}')))
    with pytest.raises(Unavailable, match="no time or memory"):
        await costly.why_not("a")
    assert await costly.why_not("a") is None and await costly.why_not("a") is None, "a verdict lasts"


async def test_a_machine_without_processes_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "no process left")

    monkeypatch.setattr("subprocess.Popen", none_left)
    with pytest.raises(Unavailable):
        await CostlyGrammars().why_not("a")
    monkeypatch.setattr("os.fork", none_left)
    answer = prepare()
    assert answer(b"a") == answer(b"ab") == b"{}"


async def test_files_of_the_working_directory_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that compile grammars, parse bodies and render templates start with the modules of this one."""
    for module in ("json", "msgspec"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert await CostlyGrammars().why_not(LARK) is None
    assert await ClientTemplates().render("{{ a }}", {"a": "b"}, longest=10) == "b"
    parser = BodyParser(DoorConfig(), lambda: 10)
    raw = json.dumps({"prompt": "x", "user": " " * LARGE_BYTES}).encode()
    assert (await parser.parse(raw, CompletionRequest, [])).prompt == "x"
    await parser.aclose()
    assert not (tmp_path / "ran").exists()


def test_the_reason_says_what_to_do() -> None:
    assert "write it with fewer repeats" in TOO_COSTLY and "memory" in TOO_COSTLY

"""SIGSTOP of the prefill worker in mid-push: it looks dead to the other processes, and it may still write.

The decode process stops the writer between two spans of a copy that nothing can interrupt. Where decode may not kill,
the writer is continued after two leases and finishes that copy late: its pages must still be in quarantine, not in use
by another request. Where decode may kill, it kills the writer and has the pages back."""

import asyncio
import signal
from dataclasses import dataclass

import pytest

from mesh.rules import RULES
from tests.harness.client import MeshClient, Seen
from tests.harness.mesh import process_mesh

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

PAUSE_SECONDS = 0.01  # per span: a push takes over a second
# Two leases; and the moment has passed at which decode would have killed the writer.
STOPPED_SECONDS = max(2 * RULES.lease_seconds, RULES.progress_seconds + RULES.lease_seconds + 5.0) + 2.0


@dataclass
class StopOutcome:
    retried: tuple[Seen, Seen]  # answers to the request whose writer stopped: received, expected
    later: tuple[Seen, Seen]  # answers to the request that ran when the writer went on: received, expected
    fenced: list[str]  # states of the stopped writer's pages before it went on
    late: list[int]  # its pages that changed afterwards
    shared: list[int]  # the stopped writer's pages that the later request got
    harmed: list[int]  # pages of the later request's prompt that changed
    writer_lived: bool
    lines: str  # last log lines of all processes
    held: list[dict]  # page states of the workers in the end


async def stop_and_go_on(settings, request_of, *, mutants=()):
    """Stop the writer in mid-push; its request goes on elsewhere and another one comes; then continue the writer."""
    loop = asyncio.get_running_loop()
    first, second = request_of(1, name="retried"), request_of(2, name="later", max_tokens=1500)
    mesh_settings = settings(worker__transports="shm", decode__may_kill="false")
    async with process_mesh(settings=mesh_settings, span_pause_seconds=PAUSE_SECONDS, mutants=mutants) as mesh:
        client, (decode,) = MeshClient(mesh.address), mesh.decodes
        expected = [await client.ask(first), await client.ask(second)]
        pids = {str(prefill.incarnation): prefill.pid for prefill in mesh.prefills}
        stop = asyncio.create_task(decode.ask("interrupt", landed=24, signal=signal.SIGSTOP, pids=pids))
        answer = asyncio.create_task(client.ask(first))
        report, stopped = await stop, loop.time()
        writer = next(prefill for prefill in mesh.prefills if prefill.incarnation == report["writer"])
        pid, pages = writer.pid, report["pages"]
        retried = await answer
        await asyncio.sleep(stopped + STOPPED_SECONDS - loop.time())

        later = asyncio.create_task(client.ask(second))
        prompt = await asyncio.wait_for(running(decode), 20)
        before, own = await decode.ask("sums", pages=pages), await decode.ask("sums", pages=prompt)
        writer.send_signal(signal.SIGCONT)
        went_on = [r["phase"] for r in (await decode.ask("look"))["requests"]] == ["running"]
        assert went_on, "the later request must still run when the writer goes on"
        answered = await later
        await asyncio.sleep(PAUSE_SECONDS * report["spans"])  # the late copy is complete
        after, own_after = await decode.ask("sums", pages=pages), await decode.ask("sums", pages=prompt)
        outcome = StopOutcome(
            retried=(retried, expected[0]),
            later=(answered, expected[1]),
            fenced=before["states"],
            late=changed(pages, before, after),
            shared=sorted(set(prompt) & set(pages)),
            harmed=changed(prompt, own, own_after),
            writer_lived=writer.alive and writer.pid == pid,
            lines=mesh.last_lines(),
            held=[await worker.quiet() for worker in mesh.workers],
        )
        await client.aclose()
    return outcome


async def running(decode):
    """Wait until the only request runs; the pages of its prompt."""
    while True:
        for request in (await decode.ask("look"))["requests"]:
            if request["phase"] == "running":
                pages: list[int] = request["pages"]
                return pages[: request["prompt"] // 16]
        await asyncio.sleep(0.01)


def changed(pages, before, after):
    pairs = zip(pages, before["sums"], after["sums"], strict=True)
    return [page for page, one, other in pairs if one != other]


async def test_a_stopped_writer_that_goes_on_writes_into_quarantine_and_nowhere_else(settings, request_of):
    outcome = await stop_and_go_on(settings, request_of)
    assert set(outcome.fenced) == {"quarantined"}, outcome.lines
    assert outcome.writer_lived and outcome.late, "the writer lived and its late write ran"
    assert "may not be killed" in outcome.lines
    assert not outcome.shared and not outcome.harmed
    assert outcome.retried[0] == outcome.retried[1] and not outcome.retried[0].error
    assert outcome.later[0] == outcome.later[1] and not outcome.later[0].error
    for pages in outcome.held:
        assert pages["agree"] and pages["states"] == {"free": pages["pool"]}, (pages, outcome.lines)


async def test_without_quarantine_the_late_write_harms_the_request_that_has_the_pages_now(settings, request_of):
    """Negative control: pages are free as soon as the landing ends, and a reused one changes under its request."""
    outcome = await stop_and_go_on(settings, request_of, mutants=("quarantine",))
    assert "quarantined" not in outcome.fenced
    assert outcome.writer_lived and outcome.shared
    assert outcome.harmed and set(outcome.harmed) <= set(outcome.shared)
    assert outcome.later[0] != outcome.later[1], "the text, or its logprobs, show the damage"


async def test_a_stopped_writer_that_may_be_killed_is_dead_in_the_end_and_its_pages_are_back(settings, request_of):
    mesh_settings = settings(worker__transports="shm")
    async with process_mesh(settings=mesh_settings, span_pause_seconds=PAUSE_SECONDS) as mesh:
        client, (decode,) = MeshClient(mesh.address), mesh.decodes
        expected = await client.ask(request_of(1))
        pids = {str(prefill.incarnation): prefill.pid for prefill in mesh.prefills}
        stop = asyncio.create_task(decode.ask("interrupt", landed=24, signal=signal.SIGSTOP, pids=pids))
        seen = await client.ask(request_of(1))
        report = await stop
        writer = next(prefill for prefill in mesh.prefills if prefill.incarnation == report["writer"])
        assert seen == expected and not seen.error
        assert writer.alive and set((await decode.ask("sums", pages=report["pages"]))["states"]) == {"quarantined"}
        assert await writer.ended(30.0) == -signal.SIGKILL
        held = await decode.quiet()  # decode logs the kill after it happened
        assert any("killed prefill process" in line for line in decode.lines), mesh.last_lines()
        assert held["agree"] and held["states"] == {"free": held["pool"]}, (held, mesh.last_lines())
        await client.aclose()

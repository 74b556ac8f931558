"""kill -9 of the prefill worker in mid-push: another worker takes over, and the client sees nothing of it.

The push is slowed down so that the kill can hit it anywhere: TCP by the product's own token bucket, shared memory by a
pause after every span in the copy kernel. The decode process itself sends the signal as soon as enough spans are valid,
so that it reports exactly the spans that had landed at the kill. On a busy machine the rest of a push may be in the
socket already, and decode then has the whole prompt although its writer is dead: such a round killed nothing in
mid-push, is counted apart and is repeated."""

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.harness.client import MeshClient, Seen
from tests.harness.mesh import process_mesh

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

KILLS = 50
SLOW = {"shm": {"span_pause_seconds": 0.002}, "tcp": {"bytes_per_second": 8e6}}


@dataclass
class Round:
    """One kill: the spans that decode had, and the answer that the client received."""

    landed: int
    spans: int
    # This request's landings that ended unadmitted, as (valid, all) spans. A busy machine may end one before the kill.
    fenced: list[tuple[int, int]]
    status: int  # exit status of the prefill worker
    seen: Seen
    unharmed: Seen

    @property
    def third(self) -> int:
        return 3 * self.landed // self.spans

    @property
    def too_late(self) -> bool:
        """The killed writer's push was complete: decode has admitted its landing, or lacked nothing but Commit."""
        return not self.seen.error and all(valid == spans for valid, spans in self.fenced)

    @property
    def wrong(self) -> list[str]:
        found = []
        if self.status != -signal.SIGKILL:
            found.append(f"the worker ended with {self.status}")
        if not 0 < self.landed < self.spans:
            found.append(f"{self.landed} of {self.spans} spans at the kill")
        # Spans under way at the kill still arrive; even with them the landing was not whole.
        if not any(self.landed <= valid < spans for valid, spans in self.fenced):
            found.append(f"no broken landing: {self.fenced} after {self.landed} spans at the kill")
        if self.seen.error:
            found.append(f"client error: {self.seen.error}")
        if self.seen.tokens != self.unharmed.tokens:
            found.append(f"other tokens: {self.seen.tokens} is not {self.unharmed.tokens}")
        elif self.seen.logprob_bits != self.unharmed.logprob_bits:
            found.append("other logprob bits")
        return found


async def kill_in_mid_push(transport, kills, landings, settings, request_of, *, resume=True):
    """Rounds over one mesh, their kills spread evenly over the push; and the page states of all workers afterwards."""
    mesh_settings = settings(worker__transports=transport)
    async with process_mesh(settings=mesh_settings, on_event=landings.take, resume=resume, **SLOW[transport]) as mesh:
        client, (decode,) = MeshClient(mesh.address), mesh.decodes
        unharmed = {number: await client.ask(request_of(number)) for number in range(6)}
        harmed = landings.by_request, {number: seen.error for number, seen in unharmed.items() if seen.error}
        assert not any(harmed), (harmed, mesh.last_lines())
        rounds: list[Round] = []
        too_late: list[Round] = []
        while (number := len(rounds)) < kills:
            target = 1 + (2 * number + 1) * 118 // (2 * kills)  # spans, out of 128; the last write has the last 8
            pids = {str(prefill.incarnation): prefill.pid for prefill in mesh.prefills}
            kill = asyncio.create_task(decode.ask("interrupt", landed=target, signal=signal.SIGKILL, pids=pids))
            seen = await client.ask(request_of(number % 6))
            report = await asyncio.wait_for(kill, 5)
            victim = next(prefill for prefill in mesh.prefills if prefill.incarnation == report["writer"])
            status = await victim.ended(5)
            await decode.ask("look")  # its answer comes behind all events until now
            fenced = landings.by_request.get(report["request"], [])
            each = Round(report["landed"], report["spans"], fenced, status, seen, unharmed[number % 6])
            if each.too_late:
                too_late.append(each)
                assert each.seen == each.unharmed, f"round {number}: other tokens or bits after a complete push"
                assert len(too_late) <= kills, f"{len(too_late)} of {len(rounds)} kills came too late"
            else:
                rounds.append(each)
                if each.wrong:
                    print(f"round {number}: {each.wrong}")
            await victim.start()
            await mesh.attached(2, 1)
        held = [await worker.quiet() for worker in mesh.workers]
        await client.aclose()
    return rounds, held


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_fifty_kills_in_mid_push_change_no_bit_and_reach_no_client(transport, landings, settings, request_of):
    rounds, held = await kill_in_mid_push(transport, KILLS, landings, settings, request_of)
    assert [wrong for each in rounds if (wrong := each.wrong)] == []
    thirds = Counter(each.third for each in rounds)
    print(f"{transport}: kills by third {dict(thirds)}, spans at the kill {[each.landed for each in rounds]}")
    assert all(thirds[third] >= 5 for third in range(3)), thirds
    for pages in held:
        assert pages["agree"] and pages["states"] == {"free": pages["pool"]}, pages


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_without_resume_every_kill_is_a_client_error(transport, landings, settings, request_of):
    """Negative control: a kill becomes an error at the client, which the test above counts as wrong."""
    rounds, _ = await kill_in_mid_push(transport, 3, landings, settings, request_of, resume=False)
    for each in rounds:
        assert any(wrong.startswith("client error") for wrong in each.wrong), each

"""A decode worker that does wrong on purpose: the negative control of `baton verify`, started by it and by nobody else.

It is the worker that serves, opened the same way; only what the fault file names is different: another product, or one
bit of a landed page that flips between prefill's checksum and decode's check."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.serve import Parent, Set, begin, run_service
from cli.verify.faults import Damage, Fault
from cli.verify.wrong_product import with_wrong_product
from decode_svc.handoff.sessions import Peer
from decode_svc.handoff.spans import Spans
from decode_svc.main import as_it_is, open_worker
from decode_svc.worker import DecodeWorker
from mesh.config import DecodeConfig
from mesh.messages import Message, Written
from mesh.serving import run_together
from mesh.settings import Settings
from mesh.telemetry import Telemetry


def main(fault: Annotated[Path, typer.Argument()], settings: Set = None, parent: Parent = None) -> None:
    config = begin(None, settings, parent, Settings.decode)
    run_service(config, functools.partial(_serve, fault=Fault.read(fault)))


async def _serve(config: DecodeConfig, telemetry: Telemetry, *, fault: Fault) -> None:
    spoil = with_wrong_product if fault.split_product else as_it_is
    if not fault.checks:
        Spans.check = _unchecked  # type: ignore[method-assign, assignment]
    async with open_worker(config, telemetry, spoil=spoil) as worker:
        _damage_landings(worker, {damage.prompt: damage for damage in fault.damages})
        await run_together(worker.run(), worker.attachments.register())


def _unchecked(spans: Spans, stated: Sequence[tuple[int, int]], first: int, layers: int) -> list[bool]:
    """In place of `Spans.check`: every span counts as valid."""
    return [True] * len(stated)


def _damage_landings(worker: DecodeWorker, damages: dict[tuple[int, ...], Damage]) -> None:
    """Flip each bit once, when its span has been written and before decode hears of it."""
    landings, tell = worker.landings, worker.landings.on_message

    def on_message(peer: Peer, message: Message) -> None:
        request = worker.requests.get(message.ticket.request) if isinstance(message, Written) else None
        if isinstance(message, Written) and request is not None and request.landing is not None:
            damage = damages.get(request.job.prompt)
            if damage is not None and message.first_layer == 0 and damage.page in message.pages:
                page = request.landing.pages[damage.page - request.landing.first_page]
                _flip(landings.pool, page * landings.pool.shape.page_bytes + damage.offset, damage.mask)
                del damages[request.job.prompt]
        tell(peer, message)

    landings.on_message = on_message  # type: ignore[method-assign]


def _flip(pool: Any, place: int, mask: int) -> None:
    """In the host's memory or a GPU's, whichever the pool has."""
    memory = pool.buffer
    memory[place] = int(memory[place]) ^ mask
    int(memory[place])  # read back: on a GPU that waits for the write, which other streams would not


if __name__ == "__main__":
    typer.run(main)

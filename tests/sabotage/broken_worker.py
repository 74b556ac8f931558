"""A decode worker that does one thing wrong on purpose: the negative control of `baton verify`, which alone starts it.

It is opened as the worker that serves is. Only what the fault file names differs: another product, or one bit of a
landed page that flips between prefill's checksum and decode's check, with that check on or off."""

import functools
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.local_mesh.serve import Alive, Parent, Set, begin, run_service
from decode_svc.handoff.sessions import Peer
from decode_svc.main import as_it_is, open_worker
from decode_svc.worker import DecodeWorker
from mesh.config.settings import Settings
from mesh.config.worker_config import DecodeConfig
from mesh.messages.kv_messages import Written
from mesh.messages.message import Message
from mesh.sessions.serving import run_together
from tests.sabotage.faults import Damage, Fault
from tests.sabotage.wrong_product import with_wrong_product, with_wrong_scale


def main(
    fault: Annotated[Path, typer.Argument()], settings: Set = None, parent: Parent = None, alive: Alive = None
) -> None:
    config = begin(None, settings, parent, Settings.decode)
    run_service(config, functools.partial(_serve, fault=Fault.read(fault)), alive)


async def _serve(config: DecodeConfig, *, fault: Fault) -> None:
    spoil = with_wrong_product if fault.split_product else with_wrong_scale if fault.wrong_scale else as_it_is
    if not fault.checks:
        importlib.import_module("tests.mutants.rules").apply("checksum", setattr)
    async with open_worker(config, spoil=spoil) as worker:
        _damage_landings(worker, {damage.prompt: damage for damage in fault.damages})
        await run_together(worker.run(), worker.attachments.register())


def _damage_landings(worker: DecodeWorker, damages: dict[tuple[int, ...], Damage]) -> None:
    """Flip each bit once, when its span has been written and before decode handles Written."""
    landings, handle = worker.landings, worker.landings.on_message

    def on_message(peer: Peer, message: Message) -> None:
        request = worker.requests.get(message.ticket.request) if isinstance(message, Written) else None
        if isinstance(message, Written) and request is not None and request.landing is not None:
            damage = damages.get(request.job.prompt)
            if damage is not None and message.first_layer == 0 and damage.page in message.pages:
                page = request.landing.pages[damage.page - request.landing.first_page]
                _flip(landings.pool, page * landings.pool.shape.page_bytes + damage.offset, damage.mask)
                del damages[request.job.prompt]
        handle(peer, message)

    landings.on_message = on_message  # type: ignore[method-assign]


def _flip(pool: Any, place: int, mask: int) -> None:
    """Flip the bit in the pool's memory, which is the host's or a GPU's."""
    memory = pool.buffer
    memory[place] = int(memory[place]) ^ mask
    int(memory[place])  # on a GPU reading back waits for the write; other streams do not


if __name__ == "__main__":
    typer.run(main)

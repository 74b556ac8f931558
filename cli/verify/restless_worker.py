"""A decode worker that drafts in every step: cells of `baton verify` with speculation run it.

It is opened as the worker that serves is, with other draft lengths: the worker that serves drafts when measured times
show that drafting pays, and a check must not depend on the speed of the machine. Here lengths go round from none to the
longest, differently for each request, so that every change of length occurs."""

from collections.abc import Sequence

import typer

from cli.local_mesh.serve import Alive, Parent, Set, begin, run_service
from decode_svc.main import open_worker
from decode_svc.speculation.draft_length import Candidate, DraftLengths
from mesh.config.settings import Settings
from mesh.config.worker_config import DecodeConfig
from mesh.sessions.serving import run_together


class Restless(DraftLengths):
    def __init__(self, longest: int) -> None:
        super().__init__(longest=longest, prior=1.0)
        self._longest_turn, self._turn = longest, 0

    def lengths(self, candidates: Sequence[Candidate]) -> list[int]:
        self._turn += 1
        return [
            min(candidate.most, (self._turn + index) % (self._longest_turn + 1))
            for index, candidate in enumerate(candidates)
        ]


def main(settings: Set = None, parent: Parent = None, alive: Alive = None) -> None:
    run_service(begin(None, settings, parent, Settings.decode), _serve, alive)


async def _serve(config: DecodeConfig) -> None:
    async with open_worker(config, draft_lengths=Restless(config.draft_tokens)) as worker:
        await run_together(worker.run(), worker.attachments.register())


if __name__ == "__main__":
    typer.run(main)

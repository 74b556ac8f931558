"""The holders of a prefill worker's pages, for its ledger."""

from collections.abc import Iterable, Iterator

from engine.pool.ledger import Holder
from prefill_svc.prompts import Prompt


def holders(prompts: Iterable[Prompt]) -> Iterator[Holder]:
    """The pages of each prompt."""
    for prompt in prompts:
        if pages := prompt.own.held:
            what, ticket, since = f"prompt, {prompt.phase.value}", prompt.ticket, prompt.landed_seconds
            yield Holder(what, pages, request=ticket.request, attempt=ticket.attempt, since_seconds=since)

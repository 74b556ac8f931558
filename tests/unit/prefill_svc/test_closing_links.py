"""A link that is closed ends, whatever comes at the same moment."""

import asyncio
from typing import Any, cast

from mesh.messages.message import Message
from mesh.network.interface import Channel
from mesh.rules import RULES
from prefill_svc.links import Links
from tests.sim.loop import virtual
from tests.unit.prefill_svc.test_links import MINE, THEIRS, LinkEvents, ManualTransport


class AnswerAtHand:
    """A network and its stream in one: the answer comes when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.peer = "decode"

    async def dial(self, address: str, channel: Channel) -> "AnswerAtHand":
        return self

    async def receive(self) -> Message:
        answer, self.answer = self.answer, asyncio.get_running_loop().create_future()
        return await answer

    def send(self, message: Message) -> None:
        pass

    def close(self) -> None:
        pass


@virtual
async def test_closing_ends_a_link_whose_answer_comes_at_the_same_moment() -> None:
    network = AnswerAtHand()
    answer = network.answer
    links = Links(
        LinkEvents(),
        cast(Any, network),
        hello=MINE,
        transports={"manual": cast(Any, ManualTransport())},
        pool=cast(Any, None),
        rules=RULES,
    )
    links.to("decode")
    for _ in range(5):
        await asyncio.sleep(0)
    answer.set_result(THEIRS)
    await asyncio.sleep(0)  # the answer is there, and its reader has not run yet
    closing = asyncio.ensure_future(links.aclose())
    assert (await asyncio.wait((closing,), timeout=1.0))[0], "the link goes on"

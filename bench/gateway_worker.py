"""A decode worker that emits at will, for bench/gateway.py: it speaks the real protocol and computes nothing.

It registers with the gateway as every worker does. A request gets its first token as soon as it is there, and one more
whenever `step` is called: all of them in one message, as an engine's step sends them."""

import asyncio
from dataclasses import dataclass
from random import Random

from mesh.config.model_config import BUILTIN_NAME
from mesh.messages.jobs import End, Ticket, Tier, Token
from mesh.messages.message import Message
from mesh.messages.orders import Cancel, ClockProbe, Open
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import ClockReading, Hello, Load, PrefixChange, Register, TokenOf, Tokens
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.interface import Channel, Listening, Stream
from mesh.rules import RULES
from mesh.sessions.session import Session

PAGES = 1 << 20
FIRST_WORD, WORDS = 300, 1000  # ids of ordinary words of the built-in vocabulary


@dataclass(slots=True)
class OpenRequest:
    ticket: Ticket
    raw: bytes  # the packed ticket
    position: int
    last: int  # position of the last token


class EmittingWorker:
    def __init__(self) -> None:
        self.open: dict[int, OpenRequest] = {}  # requests that get tokens, by id
        self._network = GrpcNetwork(setting="worker.address")
        self._incarnation = Random().getrandbits(63)
        self._session: Session | None = None
        self._listening: Listening | None = None

    async def start(self, gateway: str) -> None:
        """Return when the gateway has attached this worker."""
        self._listening = await self._network.listen("127.0.0.1:0", {Channel.ATTACH: self._accept})
        await self._network.register(gateway, Register(self._listening.address, Tier.DECODE, self._incarnation))
        while self._session is None:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
        if self._listening is not None:
            await self._listening.close()

    def step(self) -> None:
        """One token for every open request."""
        requests = list(self.open.values())
        if requests and self._session is not None:
            positions, ends = zip(*map(self._next, requests), strict=True)
            tokens = [FIRST_WORD + position % WORDS for position in positions]
            tickets = [request.raw for request in requests]
            self._session.send(PackedTokens(tickets, positions, tokens, [-0.5] * len(requests), ends))

    async def _accept(self, stream: Stream) -> None:
        assert self._listening is not None
        session, load = Session(stream, rules=RULES, name="gateway"), Load(free_pages=PAGES, total_pages=PAGES)
        session.send(
            Hello(
                Tier.DECODE,
                self._incarnation,
                self._listening.address,
                "bench",
                "none",
                BUILTIN_NAME,
                "0",
                page_tokens=32,
                context_tokens=1 << 20,
                load=load,
                prefix=PrefixChange(0),
                name="bench",
            )
        )
        self._session = session
        await session.run(lambda message: self._receive(session, message))
        self.open.clear()

    def _receive(self, session: Session, message: Message) -> None:
        if isinstance(message, Open):
            job = message.job
            request = OpenRequest(job.ticket, job.ticket.pack(), job.base, job.sampling.max_tokens - 1)
            self.open[job.ticket.request] = request
            first, end = self._next(request)
            session.send(Tokens((TokenOf(job.ticket, Token(first, FIRST_WORD + first % WORDS, -0.5, end=end)),)))
        elif isinstance(message, Cancel):
            known = self.open.get(message.request)
            if known is not None and known.ticket.attempt <= message.attempt:
                del self.open[message.request]
        elif isinstance(message, ClockProbe):
            session.send(ClockReading(message.number, asyncio.get_running_loop().time()))

    def _next(self, request: OpenRequest) -> tuple[int, End]:
        """The position of the request's next token; the last one closes the request."""
        position, request.position = request.position, request.position + 1
        if position < request.last:
            return position, End.NONE
        self.open.pop(request.ticket.request, None)
        return position, End.LENGTH

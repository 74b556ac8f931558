"""The beginning of a request over HTTP, the same in every dialect: its body is parsed and becomes a request of the
OpenAI API, its model is found, it is admitted, read and checked, and its choices are submitted.

Step 1 of a request's life over HTTP. What differs from one endpoint to the next is a `GeneratingKind`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.core.interface import Core, ModelFacts
from gateway.dialects.openai.large import BodyParser
from gateway.dialects.openai.reply import Reply
from gateway.dialects.openai.request import HttpCaller
from gateway.dialects.openai.types import CommonRequest, EmbeddingRequest
from gateway.dialects.translation.reading import Ignored
from gateway.fairness.loop_turns import Turns
from gateway.http.errors import shown_names
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.receipts.receipts import OpenReceipt, Receipts, begin_receipt
from gateway.validation.client_request import ClientRequest, validate_request_id
from gateway.validation.validate import ValidRequest, validate, validate_model
from mesh.config.door_config import DoorConfig
from mesh.telemetry import semconv

Body = TypeVar("Body", bound=msgspec.Struct)
Clock = Callable[[], float]  # seconds since 1970, for `created`


@dataclass(frozen=True, slots=True)
class Opened(Generic[Body]):
    """A request whose body is parsed and whose model is known."""

    body: Body  # as the client sent it
    plain: Any  # the same as a request of the OpenAI API
    asked: Any  # what the kind's translation has kept besides
    caller: HttpCaller
    assets: Assets
    facts: ModelFacts
    limits: DoorConfig

    @property
    def context(self) -> int:
        return self.facts.context(self.assets.context_tokens)


@dataclass(frozen=True, slots=True)
class BegunAnswers:
    """The requests of the core that one request became, and their answers, which are under way."""

    pairs: list[tuple[ClientRequest, Answer]]
    valid: list[ValidRequest]
    receipt: OpenReceipt | None
    clock: Clock

    @property
    def created(self) -> int:
        return int(self.clock())


class BodyKind(Protocol[Body]):
    """A body, and how it becomes a request of the OpenAI API."""

    body: type[Body]

    async def translate(self, body: Body, ignored: Ignored, caller: HttpCaller) -> tuple[Any, Any]:
        """The body as a request of the OpenAI API, and what `read` and `reply` need besides. `ignored` gets the names
        of fields without effect."""


class GeneratingKind(BodyKind[Body], Protocol[Body]):
    """The parts of the way that one endpoint which generates has of its own."""

    async def read(self, opened: Opened[Body]) -> Sequence[ClientRequest]:
        """The requests that the core gets: one for each prompt."""

    def reply(self, opened: Opened[Body], begun: BegunAnswers) -> Reply: ...


class Opening:
    def __init__(
        self,
        core: Core,
        models: ModelAssets,
        parser: BodyParser,
        *,
        receipts: Receipts | None,
        random: Random,
        clock: Clock,
        turns: Turns,
    ) -> None:
        self._core = core
        self._models = models
        self._parser = parser
        self._receipts = receipts
        self._random = random
        self._clock = clock
        self._turns = turns

    async def begin(self, kind: GeneratingKind[Body], raw: bytes, caller: HttpCaller) -> Reply:
        return await self.answer(kind, await self.open(kind, raw, caller))

    async def answer(self, kind: GeneratingKind[Body], opened: Opened[Body]) -> Reply:
        """The reply to an opened request, whose answers are under way then."""
        requests, valid = await self.check(kind, opened)
        receipt = await self._receipt(valid, opened)
        pairs = await self._answers(requests, valid, opened.assets)
        return kind.reply(opened, BegunAnswers(pairs, valid, receipt, self._clock))

    async def check(
        self, kind: GeneratingKind[Body], opened: Opened[Body]
    ) -> tuple[Sequence[ClientRequest], list[ValidRequest]]:
        """The requests that the core would get; raises where one is wrong, or has no room."""
        self._core.admit(opened.caller.trace.model, examined=opened.plain.max_tokens == 0)
        requests = await kind.read(opened)
        return requests, await self._validated(requests, opened.assets)

    async def open(self, kind: BodyKind[Body], raw: bytes, caller: HttpCaller) -> Opened[Body]:
        names = list[str]()
        body = await self._parser.parse(raw, kind.body, names)
        self._core.admit()  # before a long body is translated
        ignored = Ignored.fromkeys(names)
        plain, asked = await kind.translate(body, ignored, caller)
        _show(ignored, caller)
        caller, assets = self.known(caller, plain)
        return Opened(body, plain, asked, caller, assets, self._core.facts(assets.name), self._core.limits)

    async def parse(
        self, raw: bytes, kind: type[Body], caller: HttpCaller, *, without_effect: Sequence[str] = ()
    ) -> Body:
        """A body that is no request of the OpenAI API; the answer names its fields without effect: unknown ones, and of
        its own those in `without_effect`."""
        names = list[str]()
        body = await self._parser.parse(raw, kind, names)
        names += [name for name in without_effect if getattr(body, name) is not None]
        _show(Ignored.fromkeys(names), caller)
        return body

    def known(self, caller: HttpCaller, body: CommonRequest | EmbeddingRequest) -> tuple[HttpCaller, Assets]:
        """The caller, named by the body's request id where there is one, and the assets of the model; raises where the
        model is unknown."""
        trace = caller.trace
        if body.request_id is not None:
            trace.request_id = validate_request_id(body.request_id)
        trace.model = validate_model(self._core, body.model)
        trace.asked[semconv.REQUEST_STREAM] = isinstance(body, CommonRequest) and bool(body.stream)
        assets = self._models.of(trace.model)
        context = self._core.facts(trace.model).context(assets.context_tokens)
        most = self._core.limits.max_logprobs
        return replace(caller, request_id=trace.request_id, context_tokens=context, most_logprobs=most), assets

    async def _validated(self, requests: Sequence[ClientRequest], assets: Assets) -> list[ValidRequest]:
        valid = list[ValidRequest]()
        for request in requests:
            if valid:
                await self._turns.next()
            valid.append(validate(request, self._core, assets, self._random))
        return valid

    async def _receipt(self, valid: Sequence[ValidRequest], opened: Opened[Any]) -> OpenReceipt | None:
        """The receipt that the client wants; the head of the answer names it."""
        wanted, trace = opened.plain.receipt, opened.caller.trace
        owner = trace.admission.tenant
        receipt = await begin_receipt(self._receipts, wanted, valid, model=trace.model, owner=owner)
        if receipt is not None:
            opened.caller.headers.append(receipt.header)
        return receipt

    async def _answers(
        self, requests: Sequence[ClientRequest], valid: Sequence[ValidRequest], assets: Assets
    ) -> list[tuple[ClientRequest, Answer]]:
        """The answers of requests that come together."""
        answers: list[Answer] = []
        try:
            for each in valid:
                if answers:
                    await self._turns.next()
                answers.append(await Answer.begin(each, self._core, assets.tokenizer, self._turns))
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        return list(zip(requests, answers, strict=True))


def _show(ignored: Ignored, caller: HttpCaller) -> None:
    if ignored:
        caller.headers.append((b"x-baton-ignored", shown_names(list(ignored))))

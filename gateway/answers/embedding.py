"""Embeddings of prompts, for both front doors: validation, and a window of examinations in flight.

An embedding is made by an examination (gateway/sequencing/examining.py)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.answers.window import ChoiceWindow
from gateway.core.interface import ChoiceRequest, Core, ExaminationStream
from gateway.prompts.assets import Assets
from gateway.prompts.lengths import validate_length
from gateway.tracing.record import RequestRecord, unrecorded
from gateway.validation.fields import Fields
from gateway.validation.ranges import PRIORITIES
from gateway.validation.validate import check_adapter, validate_model
from mesh.errors import InvalidRequest
from mesh.messages.jobs import Sampling
from mesh.messages.orders import Examination

MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A client's request as any front door understands it; None: the client left the field out."""

    request_id: str
    inputs: tuple[tuple[int, ...], ...]  # token ids
    model: str | None = None
    dimensions: int | None = None
    salt: str = ""
    priority: int = 0
    deadline_seconds: float | None = None
    trace: RequestRecord = dataclasses.field(default_factory=unrecorded, compare=False)
    field: str = "input"  # name of the field with the inputs, as the front door spells it


def validate_embed(request: EmbedRequest, core: Core, assets: Assets) -> list[ChoiceRequest]:
    """One valid examination for each input, or an error that names the field."""
    facts, settings = core.facts(validate_model(core, request.model)), assets.embedding
    assert assets.name == facts.root, "these assets are of another model"
    check_adapter(facts)
    request.trace.root = facts.root
    if settings.why_not:
        raise InvalidRequest("model", f"model {facts.root!r} makes no embeddings here: {settings.why_not}")
    if not request.inputs:
        raise InvalidRequest(request.field, f"{request.field} is empty; it needs at least one text")
    check_count(request.field, len(request.inputs))
    fields = Fields({"salt": "cache_salt"})
    fields.salt(request.salt)
    fields.number("priority", PRIORITIES, request.priority)
    context = facts.context(assets.context_tokens)
    for index, ids in enumerate(request.inputs):
        name = f"{request.field}[{index}]" if len(request.inputs) > 1 else request.field
        if not ids:
            raise InvalidRequest(name, f"{name} is empty; it needs at least one token")
        validate_length(name, len(ids), context, answer=False)
        if not 0 <= min(ids) <= max(ids) < assets.vocabulary:
            what = f"{name} holds an unknown token id; the vocabulary has ids 0 to {assets.vocabulary - 1}"
            raise InvalidRequest(name, what)
    dimensions = validate_dimensions(request.dimensions, assets)
    admission = request.trace.admission
    priority, salt = admission.priority(request.priority, "priority"), admission.salt(request.salt)
    admission.adds(prompt_tokens=sum(map(len, request.inputs)), choices=1, max_tokens=0)  # a few run at a time
    return [
        ChoiceRequest(
            request_id=request.request_id,
            model=facts.root,
            adapter=facts.adapter,
            prompt=ids,
            emitted=(),
            sampling=Sampling(max_tokens=0),
            deadline_seconds=request.deadline_seconds,
            trace=request.trace,
            salt=salt,
            priority=priority,
            examination=Examination(pooling=settings.pooling, dimensions=dimensions),
            prompt_field=request.field,
        )
        for ids in request.inputs
    ]


def check_count(field: str, count: int) -> None:
    if count > MAX_INPUTS:
        raise InvalidRequest(field, f"{field} has {count} entries; at most {MAX_INPUTS} are allowed")


def validate_dimensions(wanted: int | None, assets: Assets) -> int:
    """How many values an embedding is cut to; 0: it stays whole."""
    settings = assets.embedding
    if wanted is None or wanted == settings.dimensions:
        return 0
    if wanted in settings.smaller or (settings.any_smaller and 0 < wanted < settings.dimensions):
        return wanted
    if settings.smaller:
        allowed = ", ".join(map(str, (*settings.smaller, settings.dimensions)))
    elif settings.any_smaller:
        allowed = f"1 to {settings.dimensions}"
    else:
        allowed = f"{settings.dimensions}: the model was not trained for fewer (is_matryoshka in its config.json)"
    raise InvalidRequest("dimensions", f"dimensions must be {allowed}; not {wanted}")


class Embeddings:
    """The embeddings of one valid request."""

    def __init__(self, core: Core, choices: Sequence[ChoiceRequest]) -> None:
        self._window = ChoiceWindow(choices, core.examine)
        self.numerics = ""  # numerics class of the last one
        self.cached_tokens = 0

    @property
    def prompt_tokens(self) -> int:
        return self._window.prompt_tokens

    async def values(self) -> list[bytes]:
        """Wait for all, in order: floats of 4 bytes, little endian. Raises mesh.errors only."""
        return await self._window.results(self._read)

    async def _read(self, _: ChoiceRequest, stream: ExaminationStream) -> bytes:
        values = await stream.embedding()
        self.numerics, self.cached_tokens = stream.numerics, self.cached_tokens + stream.cached_tokens
        return values

    def cancel(self) -> None:
        self._window.cancel()

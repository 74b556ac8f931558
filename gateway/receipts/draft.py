"""A draft collects the content of a receipt while the answer is generated: a token costs 4 bytes and no hash.

Step 8 of a request's life, for requests that want a receipt. The draft notes the events of each prompt's answer, in
front of what either front door makes of them."""

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from gateway.answers.events import Delta, Event, Finished
from gateway.receipts.canonical import FORMAT, Json
from gateway.receipts.hashes import MOST_MARKS, digest, id_bytes, token_hashes
from gateway.receipts.parameters import parameters_of
from gateway.validation.validate import ValidRequest
from mesh.errors import InvalidRequest
from mesh.messages.jobs import End

MAX_CLASS_CHARACTERS = 256
_FINGERPRINT = " fingerprint "


@dataclass(slots=True)
class DraftChoice:
    """The tokens of one choice, without those that the client brought along."""

    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    spans: list[tuple[int, str]] = field(default_factory=list)  # first token of a numerics class, and the class
    finish: str = ""

    def add(self, event: Delta) -> None:
        if event.tokens and (not self.spans or self.spans[-1][1] != event.numerics):
            self.spans.append((len(self.tokens), event.numerics))
        self.tokens.extend(token.token for token in event.tokens)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The part of a receipt that is known before the first token."""

    id: str
    request_id: str
    model: str
    created: int  # seconds since 1970
    version: str  # Baton's version
    owner: str = ""  # who may fetch the receipt besides knowing its id; not part of it


class ReceiptDraft:
    def __init__(self, head: DraftHead, valid: Sequence[ValidRequest]) -> None:
        """`valid`: one request for each prompt."""
        self.head, self._valid = head, valid
        self._choices: list[dict[int, DraftChoice]] = [{} for _ in valid]

    async def noting(self, number: int, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events of the answer to this prompt, as they come."""
        noted = self._choices[number]
        async with aclosing(events):
            async for event in events:
                choice = noted.setdefault(event.index, DraftChoice())
                if isinstance(event, Delta):
                    choice.add(event)
                else:
                    choice.finish = finish_name(event)
                yield event

    def record(self) -> Json:
        """The receipt without key and signature; takes milliseconds for long prompts, so call it in a thread."""
        classes: list[str] = []
        marks = max(1, MOST_MARKS // max(1, sum(map(len, self._choices))))
        prompts = [self._prompt(number, classes, marks) for number in range(len(self._valid))]
        head, spelled = self.head, [split_class(numerics) for numerics in classes]
        return {
            "format": FORMAT,
            "id": head.id,
            "request_id": head.request_id,
            "created": head.created,
            "baton": head.version,
            "model": head.model,
            "model_hash": model_hash(spelled[0][0]) if spelled else "",
            "numerics": [{"class": name, "fingerprint": fingerprint} for name, fingerprint in spelled],
            "parameters": parameters_of(next((each for each in self._valid if each.choices), self._valid[0])),
            "prompts": prompts,
        }

    def _prompt(self, number: int, classes: list[str], marks: int) -> Json:
        valid = self._valid[number]
        ids = id_bytes(valid.request.prompt)
        given = {choice.sampling.choice: choice.emitted for choice in valid.choices}
        given |= {choice.index: choice.emitted for choice in valid.complete}
        choices = list[Json]()
        for index, choice in sorted(self._choices[number].items()):
            brought = given.get(index, ()) if valid.request.emitted else ()
            hashes = token_hashes(ids, id_bytes(brought) + id_bytes(choice.tokens), marks)
            for _, numerics in choice.spans:
                if numerics not in classes:
                    classes.append(numerics)
            choices.append(
                {
                    "index": index,
                    "tokens": len(brought) + len(choice.tokens),
                    "given": len(brought),
                    "hash": hashes.whole,
                    "marks_every": hashes.every,
                    "marks": hashes.marks,
                    "finish_reason": choice.finish,
                    "spans": [[len(brought) + first, classes.index(numerics)] for first, numerics in choice.spans],
                }
            )
        prompt = {"tokens": len(valid.request.prompt), "hash": digest("prompt", ids)}
        return {**prompt, "seed": str(valid.seed), "choices": choices}


def finish_name(event: Finished) -> str:
    return "length" if event.reason is End.LENGTH else "tool_calls" if event.called else "stop"


def spelled_class(name: str, fingerprint: str) -> str:
    """A numerics class as TokenStream.numerics spells it; a client has named it."""
    for part, value in (("numerics_class.name", name), ("numerics_class.fingerprint", fingerprint)):
        if not 0 < len(value) <= MAX_CLASS_CHARACTERS:
            raise InvalidRequest(part, f"{part} must have 1 to {MAX_CLASS_CHARACTERS} characters")
    return f"{name}{_FINGERPRINT}{fingerprint}"


def split_class(numerics: str) -> tuple[str, str]:
    """Name and fingerprint of the numerics class."""
    name, _, fingerprint = numerics.rpartition(_FINGERPRINT)
    return name, fingerprint


def model_hash(name: str) -> str:
    """The hash of the weights in the name of a numerics class; empty where it has none."""
    return next((word.removeprefix("model=") for word in name.split() if word.startswith("model=")), "")

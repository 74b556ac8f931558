"""Which tokens the grammar of a request allows in each row of a step, computed beside the step.

Steps 5 and 7 of a request's life. A mask depends on the grammar and on the emitted tokens alone, so it is the same at
every worker and after any fail-over. It is computed in a thread of its own while the model computes the row that it
belongs to. The runner applies it before it samples and never waits for it (engine/step/masks.py), so a slow grammar
delays its own request only.

Where the grammar leaves one text only, the tokens of that text are the request's next drafts. They are verified as any
draft is, so a run of them takes one step and changes nothing else."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.step.masks import NONE
from engine.step.piece_masks import Ints, Masks, StepMasks
from mesh.config.small_files import TOKENIZER_BYTES, read_small
from mesh.messages.grammar import GrammarFault, Grammars, check
from mesh.messages.jobs import Sampling

THREADS = 4  # a slow mask keeps one of them; masks of other requests take the others
NO_MASKS = "structured output is not supported by this worker: it computes on a GPU; use CPU workers"
MOST_FORCED = 32  # forced tokens that one step verifies


class Masker:
    """Computes masks for all requests of a worker."""

    def __init__(self, grammars: Grammars, *, vocabulary: int, executor: Executor | None = None) -> None:
        """`vocabulary`: logits of a row. Simulations hand their own executor in."""
        self.grammars, self.vocabulary = grammars, vocabulary
        self.executor = executor or ThreadPoolExecutor(THREADS, "grammar")

    def constraint(self, sampling: Sampling) -> "Constraint | None":
        """The request's grammar; None where the answer is free."""
        return Constraint(self, sampling) if sampling.grammar else None

    def open(self) -> None:
        """Read the tokenizer now, before the worker serves: it takes seconds for a large vocabulary, and holds up
        everything else in the process meanwhile. Where it cannot be read, requests with a grammar learn why."""
        with suppress(GrammarFault):
            _ = self.grammars.tokenizer

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


def open_masker(folder: Path, vocabulary: int) -> Masker:
    """For the model in this folder."""

    def definition() -> str:
        return read_small(folder / "tokenizer.json", TOKENIZER_BYTES).decode()

    return Masker(Grammars(definition, vocabulary), vocabulary=vocabulary)


class Constraint:
    """Follows one request's text. The event loop calls `masks`; the masker's threads compute them."""

    def __init__(self, masker: Masker, sampling: Sampling) -> None:
        self._masker, self._sampling = masker, sampling
        self._text: list[int] = []  # the emitted tokens; only the event loop appends
        self._latest: StepMasks | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # around the matcher and what it has consumed
        self._matcher: LLMatcher | None = None
        self._consumed = 0

    def masks(self, emitted: Sequence[int], drafts: tuple[int, ...] = (), *, certain: bool = False) -> StepMasks:
        """The masks of the rows behind this text: one for the text, and one for each draft behind it. A plan that comes
        again, because its masks were late, gets the masks that it waited for."""
        latest = self._latest
        if latest is not None and latest.emitted == len(emitted) and latest.drafts[: len(drafts)] == drafts:
            return latest
        self._text.extend(emitted[len(self._text) :])
        result = self._masker.executor.submit(self._compute, len(emitted), drafts)
        self._latest = StepMasks(len(emitted), drafts, result, certain)
        return self._latest

    @property
    def waits(self) -> bool:
        """True: the request sits out until its masks are there."""
        return self._latest is not None and self._latest.late

    def drafts(self, emitted: Sequence[int]) -> tuple[int, ...]:
        """The drafts to verify behind this text: those of masks that were late, else the tokens that are forced."""
        latest = self._latest
        if latest is None:
            return ()
        if latest.emitted == len(emitted):
            return latest.drafts
        masks, known = latest.take(), latest.emitted
        if masks is None or tuple(emitted[known:-1]) != latest.drafts or masks.forced[:1] != tuple(emitted[-1:]):
            return ()
        return masks.forced[1:]

    def when_ready(self, wake: Callable[[], None]) -> None:
        """Calls `wake` on the event loop once the latest masks are there."""

        def ready(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(wake)

        if self._latest is not None:
            self._latest.result.add_done_callback(ready)

    # ---- in a thread of the masker

    def _compute(self, emitted: int, drafts: tuple[int, ...]) -> Masks:
        with self._lock:
            matcher, tried = self._follow(emitted), 0
            banned = [self._banned(matcher)]
            for draft in drafts:
                if draft in self._sampling.stop_ids or draft in banned[-1] or not matcher.consume_token(draft):
                    break  # the row before cannot sample it or ends there, so the rows behind it do not count
                tried += 1
                banned.append(self._banned(matcher))
            whole = tried == len(drafts) and not matcher.is_stopped()
            forced = self._forced(matcher) if whole else ()
            if tried:
                matcher.rollback(tried)
            check(matcher)
        return Masks((*banned, *[NONE] * (len(drafts) - tried)), forced)

    def _follow(self, emitted: int) -> LLMatcher:
        """The matcher behind so many tokens of the text."""
        if self._matcher is None:
            self._matcher = self._masker.grammars.matcher(self._sampling.grammar)
        if emitted < self._consumed:
            raise GrammarFault("these masks belong to a step that is over")
        new = self._text[self._consumed : emitted]
        if (taken := self._matcher.try_consume_tokens(new)) != len(new):
            check(self._matcher)
            raise GrammarFault(f"token {self._consumed + taken} of the answer does not follow the grammar")
        self._consumed = emitted
        return self._matcher

    def _banned(self, matcher: LLMatcher) -> Ints:
        """The ids that the next row may not sample. Stop ids end the answer: they are allowed where the text may end,
        and they are all that is allowed where nothing can follow."""
        check(matcher)
        allowed = np.zeros(self._masker.vocabulary, bool)
        if not matcher.is_stopped():
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            check(matcher)
            allowed[: len(bits)] = bits[: len(allowed)]
            found = np.flatnonzero(allowed)
            if len(found) == 1 and not matcher.validate_tokens(found.tolist()):
                allowed[found] = False
                allowed[_spelled(matcher, self._masker.grammars.tokenizer)] = True
            ends = self._masker.grammars.tokenizer.eos_tokens  # by its own guess; stop ids decide
            allowed[[token for token in ends if token < len(allowed)]] = False
        if matcher.is_accepting():
            allowed[[token for token in self._sampling.stop_ids if token < len(allowed)]] = True
        if not allowed.any():
            raise GrammarFault("the grammar allows no token here")
        return np.flatnonzero(~allowed).astype(np.int32)

    def _forced(self, matcher: LLMatcher) -> tuple[int, ...]:
        tokens = matcher.compute_ff_tokens()[:MOST_FORCED]
        return tuple(tokens[: matcher.validate_tokens(tokens)]) if tokens else ()


def _spelled(matcher: LLMatcher, tokenizer: LLTokenizer) -> list[int]:
    """The token that begins the forced text. llguidance forces an added token such as <tool_call> where a text spells
    its name, and then refuses it; the name can be spelled with ordinary tokens."""
    text = matcher.compute_ff_bytes().decode(errors="ignore")
    for length in range(len(text), 0, -1):
        first = tokenizer.greedy_tokenize(text[:length])[:1]
        if first and matcher.validate_tokens(first):
            return first
    return []

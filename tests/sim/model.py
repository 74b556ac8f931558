"""A model for simulations whose tokens depend on every byte of every page they should depend on.

KV of a slot and layer is a mix of the token and of the slot before; a sampled token is a mix over all slots and layers
read back from the pages. A page that is wrong, torn or another request's changes the text. The draft model, where there
is one, foresees a share of the tokens, but only while its own layer is right in every slot."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from itertools import accumulate
from struct import pack

from engine.drafts.acceptance import accepted
from engine.pool.bands import ONE_BAND, LayerBands
from engine.step.following import FollowedTokens
from engine.step.plan import OnLayers, Piece, Plan, Result, RowsReport, Sampled
from kvtransfer.memory import MemoryPool
from mesh.messages.jobs import Sampling

_MASK = (1 << 64) - 1
VOCABULARY = 997


def mix(a: int, b: int) -> int:
    x = (a * 0xBF58476D1CE4E5B9 + b * 0x94D049BB133111EB + 0x9E3779B97F4A7C15) & _MASK
    return (x ^ x >> 31) * 0xD6E8FEB86659FD93 & _MASK


def choose(
    state: int, sampling: Sampling, position: int, vocabulary: int = VOCABULARY, banned: Collection[int] = ()
) -> int:
    noise = mix(sampling.seed, position * 64 + sampling.choice) if sampling.temperature else 0
    if not len(banned):
        return mix(state, noise) % vocabulary
    allowed = sorted(set(range(vocabulary)).difference(banned))
    return allowed[mix(state, noise) % len(allowed)]


def logprob(state: int, token: int) -> float:
    return -float(mix(state, token) % 1000)


def reference_states(prompt: tuple[int, ...], layers: int) -> list[int]:
    """The states that the rows of a prompt read from correct pages."""
    kv, state, states = [0] * layers, 0, list[int]()
    for slot, token in enumerate(prompt):
        kv = [mix(kv[layer], mix(token, layer)) for layer in range(layers)]
        for layer in range(layers):
            state = (state + mix(kv[layer], slot)) & _MASK
        states.append(state)
    return states


def reference_logprobs(prompt: tuple[int, ...], layers: int, accent: int = 0) -> list[float]:
    states = reference_states(prompt, layers)
    return [logprob(state + accent, token) for state, token in zip(states, prompt[1:], strict=False)]


def reference(
    prompt: tuple[int, ...],
    sampling: Sampling,
    layers: int,
    accent: int = 0,
    vocabulary: int = VOCABULARY,
    bans: Callable[[Sampling, list[int]], Collection[int]] = lambda sampling, text: (),  # what a grammar forbids next
    window: int = 0,  # slots that a row reads, its own the last; 0: all
    full_layers: int = 0,  # the last layers, of which it reads all slots
) -> list[int]:
    """The text that one process without pages would produce."""
    kv, seen, text, state = [0] * layers, list[int](), list[int](), 0  # `seen`: what is hidden of a slot later

    def read(slot: int, token: int) -> int:
        kv[:] = [mix(kv[layer], mix(token, layer)) for layer in range(layers)]
        read = [mix(kv[layer], slot) for layer in range(layers)]
        seen.append(sum(read[: layers - full_layers]))
        hidden = seen[slot - window] if window and slot >= window else 0
        return (state + sum(read) - hidden) & _MASK

    for slot, token in enumerate(prompt):
        state = read(slot, token)
    while True:
        token = choose(state + accent, sampling, len(text), vocabulary, bans(sampling, text))
        text.append(token)
        if sampling.end(len(text) - 1, token).value != "none":
            return text
        state = read(len(prompt) + len(text) - 1, token)


class SimRunner:
    """Takes virtual time and runs inline; writes layer by layer, so that pages are pushed while it still computes."""

    def __init__(
        self,
        pool: MemoryPool,
        page_tokens: int,
        *,
        step_seconds: float = 0.002,
        row_seconds: float = 0.0002,
        accent: int = 0,  # another numerics class says other things
        draft_layers: int = 0,  # the last layers of a page are the draft's
        foresight: float = 0.0,  # share of tokens that the draft gets right
        vocabulary: int = VOCABULARY,  # a small one repeats itself
        on_write: Callable[[int], None] = lambda page: None,  # called with every page before its rows are written
        ahead: bool = False,
        bands: LayerBands = ONE_BAND,
        on_plan: Callable[[Plan], None] = lambda plan: None,  # called when half of a step is computed; may raise
    ) -> None:
        self.computing = False  # a step is under way
        self.slowness = 1.0  # a step takes so many times as long
        self.hangs: asyncio.Event | None = None  # until it is set, no step goes on
        self._on_plan = on_plan
        self.ahead, self._following, self._turn = ahead, FollowedTokens(), asyncio.Lock()
        self._on_write = on_write
        self._accent, self._vocabulary = accent, vocabulary
        self.layers, self._bands = pool.shape.layers, bands
        self._model_layers = (self.layers - draft_layers) * bands.count
        self._foresight, self._window = foresight, bands.window
        self._pool, self._page_tokens = pool, page_tokens
        self._all_words, self._page_words = memoryview(pool.memory).cast("Q"), pool.shape.page_bytes // 8
        places = [pool.shape.place(layer, 1) for layer in range(self.layers)]
        self._places = [(begin // 8, size // 8) for begin, size in places]  # each layer's begin and size, in words
        self._step_seconds, self._row_seconds = step_seconds, row_seconds
        self.before: Callable[[Plan], Awaitable[object]] | None = None  # a test delays, hangs or ends steps here

    async def run(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        async with self._turn:
            if self.before is not None:
                await self.before(plan)
            plan, self.computing = self._following.fill_in(plan), True
            try:
                result = await self._run(plan, on_layers)
            finally:
                self.computing = False
            self._following.remember(plan.pieces, result.sampled)
            return result

    async def _run(self, plan: Plan, on_layers: OnLayers | None) -> Result:
        for source, target in plan.copies:
            self._pool.view(target, 0, self.layers)[:] = self._pool.view(source, 0, self.layers)
        count = self._bands.count
        for piece in plan.pieces:
            first, last = piece.start // self._page_tokens, (piece.stop - 1) // self._page_tokens
            for page in piece.pages[first * count : (last + 1) * count]:
                self._on_write(page)
        work_seconds = (self._step_seconds + plan.rows * self._row_seconds) * self.slowness
        done_seconds = (
            asyncio.get_running_loop().time() + work_seconds
        )  # a thread computes though the loop stands still
        for layer in range(self._model_layers):
            await asyncio.sleep(work_seconds / self._model_layers)
            if self.hangs is not None:
                await self.hangs.wait()
            for piece in plan.pieces:
                self._write(piece, layer)
            if layer == self._model_layers // 2:
                self._on_plan(plan)
            if on_layers is not None:
                on_layers(layer, 1)
        sampled = tuple(self._sample(piece) for piece in plan.pieces)
        drafting_since = asyncio.get_running_loop().time()
        proposed = await self._draft(plan, sampled)
        done_seconds += asyncio.get_running_loop().time() - drafting_since
        for layer in range(self._model_layers, self.layers * count) if on_layers is not None else ():
            on_layers(layer, 1)
        reports = tuple(self._report(piece) for piece in plan.pieces) if any(p.wanted for p in plan.pieces) else ()
        return Result(sampled, proposed, done_seconds, reports)

    async def _draft(self, plan: Plan, sampled: tuple[tuple[Sampled, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Reads and proposes; a pass of the draft takes a tenth of a step."""
        if self._model_layers == self.layers * self._bands.count:
            return ()
        passes = max((piece.drafting.propose for piece in plan.pieces if piece.drafting), default=0)
        await asyncio.sleep(passes * self._step_seconds / 10)
        return tuple(self._propose(piece, one) for piece, one in zip(plan.pieces, sampled, strict=True))

    def _propose(self, piece: Piece, sampled: tuple[Sampled, ...]) -> tuple[int, ...]:
        drafting, size = piece.drafting, self._page_tokens
        if drafting is None:
            return ()
        right = accepted(piece, sampled)
        end = piece.stop - max(0, piece.sampled - 1) + right  # slot behind the accepted text
        text = dict(enumerate(drafting.unread, drafting.start))
        text |= {slot: token for slot, token in enumerate(piece.tokens, piece.start) if slot < end}
        mine, *_ = words = [self._words(piece, layer) for layer in (self._model_layers, *range(self._model_layers))]
        for slot in range(min(drafting.start, end), end):
            before = mine[(slot - 1) // size][(slot - 1) % size] if slot else 0
            mine[slot // size][slot % size] = mix(before, mix(text[slot], 0))
        if not drafting.propose or not sampled or piece.sampling is None:
            return ()
        knows = all(mine[slot // size][slot % size] == words[1][slot // size][slot % size] for slot in range(end))
        kv = [each[(end - 1) // size][(end - 1) % size] for each in words[1:]]
        state = sum(mix(each[slot // size][slot % size], slot) for each in words[1:] for slot in range(end))
        token, proposed = sampled[right].token, list[int]()
        for slot in range(end, end + drafting.propose):
            mine[slot // size][slot % size] = mix(mine[(slot - 1) // size][(slot - 1) % size], mix(token, 0))
            kv = [mix(value, mix(token, layer)) for layer, value in enumerate(kv)]
            state = (state + sum(mix(value, slot) for value in kv)) & _MASK
            position = piece.position + right + 1 + len(proposed)
            token = choose(state + self._accent, piece.sampling, position, self._vocabulary)
            if not knows or mix(piece.sampling.seed, position) % 1000 >= 1000 * self._foresight:
                token = (token + 1) % self._vocabulary
            proposed.append(token)
        return tuple(proposed)

    def _report(self, piece: Piece) -> RowsReport | None:
        """A logprob depends on every slot up to its row, an embedding on all that were read."""
        if piece.wanted is None:
            return None
        states, size = [0] * len(piece.tokens), self._page_tokens
        for layer in range(self._model_layers):
            words = self._words(piece, layer)
            for slot in range(piece.stop):
                for row in range(max(0, slot - piece.start), len(states)):
                    states[row] = (states[row] + mix(words[slot // size][slot % size], slot)) & _MASK
        if piece.wanted.pooling is not None:  # the mean is the last row, which no cut into chunks changes
            return RowsReport(pooled=pack("<2f", float(states[-1] % 997), 1.0))
        values = [
            logprob(state + self._accent, token) for state, token in zip(states, piece.wanted.following, strict=False)
        ]
        return RowsReport(pack(f"<{len(values)}f", *values), pack(f"<{len(values)}I", *[1] * len(values)))

    def _words(self, piece: Piece, layer: int) -> list[memoryview]:
        """One layer of the pages of a piece, a word for each slot."""
        band, place = self._bands.place(layer)
        words, (begin, size) = self._all_words, self._places[place]
        begins = [page * self._page_words + begin for page in piece.pages[band :: self._bands.count]]
        return [words[begin : begin + size] if begin >= 0 else words[:0] for begin in begins]  # no one reads GONE

    def _write(self, piece: Piece, layer: int) -> None:
        words, size = self._words(piece, layer), self._page_tokens
        before = words[(piece.start - 1) // size][(piece.start - 1) % size] if piece.start else 0
        for slot, token in enumerate(piece.tokens, piece.start):
            before = words[slot // size][slot % size] = mix(before, mix(token, layer))

    def _sample(self, piece: Piece) -> tuple[Sampled, ...]:
        masks = piece.masks.take() if piece.masks is not None else None
        if not piece.sampling or not piece.sampled or (piece.masks is not None and masks is None):
            return ()
        banned = [()] * piece.sampled if masks is None else masks.banned
        windowed, full = [0] * piece.stop, [0] * piece.stop  # sums over layers with and without windows, for each slot
        for layer in range(self._model_layers):
            values = full if self._bands.place(layer)[0] >= self._bands.count - self._bands.full else windowed
            for index, words in enumerate(self._words(piece, layer)):
                first = index * self._page_tokens
                for slot, word in enumerate(words[: max(0, piece.stop - first)], first):
                    x = (word * 0xBF58476D1CE4E5B9 + slot * 0x94D049BB133111EB + 0x9E3779B97F4A7C15) & _MASK  # mix
                    values[slot] += (x ^ x >> 31) * 0xD6E8FEB86659FD93
        first = piece.stop - piece.sampled + 1  # a row reads every slot up to its own
        if self._window:
            ends = range(first, piece.stop + 1)
            states = iter([sum(windowed[max(0, end - self._window) : end]) + sum(full[:end]) for end in ends])
        else:
            states = accumulate(windowed[first:], initial=sum(windowed[:first]))
        return tuple(
            Sampled(
                choose(state + self._accent, piece.sampling, piece.position + row, self._vocabulary, banned[row]), 0.0
            )
            for row, state in enumerate(states)
        )

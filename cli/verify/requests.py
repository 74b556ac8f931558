"""What a cell asks: prompts of many lengths, some with a common beginning, greedy and seeded, drawn from a seed.

Everything that the answer depends on is in `Ask`; the reference computes it from the value that the mesh is sent."""

import struct
from dataclasses import dataclass
from random import Random

from baton.inference.v1 import inference_pb2 as pb
from cli.verify.cells import Cell
from mesh.messages import Sampling

LONGEST = 2000  # tokens of a prompt
TOKENS = {1: (8, 24), 8: (8, 32), 64: (16, 64)}  # of an answer, by the cell's batch: a full one needs long answers
REPEATING = {  # tokens of an answer in which lookup shall find drafts, by device and batch
    "cpu": {1: 64, 8: 64, 64: 64},
    "cuda": {1: 128, 8: 64, 64: 64},
}
MOST_TOKENS = max(most for of_device in REPEATING.values() for most in of_device.values())
TOP_LOGPROBS = 3
PROMPTS = {  # in a cell, by its device and batch
    "cpu": {1: 14, 8: 24, 64: 72},
    "cuda": {1: 14, 8: 24, 64: 64},  # the same in all cells of a batch, see asks_of
}
_VOCABULARY = 256  # the byte tokens of the random model


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: tuple[int, ...]
    sampling: Sampling

    def request(self, name: str) -> pb.GenerateRequest:
        """As a client sends it; every field that matters is set."""
        wish = self.sampling
        return pb.GenerateRequest(
            request_id=name,
            token_ids=pb.TokenIds(ids=self.prompt),
            sampling=pb.SamplingOptions(
                temperature=wish.temperature, top_p=wish.top_p, top_k=wish.top_k, min_p=wish.min_p, seed=wish.seed
            ),
            stop=pb.StopOptions(max_tokens=wish.max_tokens, ignore_eos=True),
            logprobs=pb.LogprobOptions(top=wish.top_logprobs),
        )


def asks_of(cell: Cell, seed: int) -> tuple[Ask, ...]:
    """On a GPU cells of one batch ask the same, so that the reference, which computes row by row, does it once."""
    random = Random(f"{seed} {cell}" if cell.device == "cpu" else f"{seed} {cell.device} {cell.batch}")
    start = _tokens(random, 320)  # a beginning that some prompts of the cell share
    asks: list[Ask] = [Ask(_tokens(random, LONGEST - random.choice((0, 0, 1, 700))), _sampling(random, cell))]
    while len(asks) < PROMPTS[cell.device][cell.batch]:
        kind = random.random()
        if kind < 0.1:  # a prompt that was there before, asked otherwise
            prompt = random.choice(asks[1:] or asks).prompt
        elif kind < 0.2:  # whole pages of the common beginning and nothing else
            prompt = start[: random.choice((64, 128, 320))]
        elif kind < 0.4:
            prompt = start[: random.randrange(1, len(start))] + _tokens(random, random.randrange(1, 60))
        else:
            prompt = _tokens(random, _length(random))
        asks.append(Ask(prompt, _sampling(random, cell)))
    random.shuffle(asks)
    return tuple(asks)


def _length(random: Random) -> int:
    kind = random.random()
    if kind < 0.75:
        return random.randrange(1, 80)
    return random.randrange(80, 400) if kind < 0.95 else random.randrange(400, 1200)


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(_VOCABULARY) for _ in range(count))


def _sampling(random: Random, cell: Cell) -> Sampling:
    """Half of them greedy. Reals are what the wire's 32 bits make of them. Lookup finds drafts only in a text that
    repeats itself: long answers do, and greedy ones more."""
    lookup = cell.speculation == "lookup" or cell.device == "cuda"
    greedy = random.random() < (0.8 if lookup else 0.5)
    return Sampling(
        temperature=0.0 if greedy else single(random.choice((0.4, 0.8, 1.0, 1.3))),
        top_k=0 if greedy else random.choice((0, 0, 5, 40)),
        top_p=1.0 if greedy else single(random.choice((1.0, 0.95, 0.7))),
        min_p=0.0 if greedy else single(random.choice((0.0, 0.0, 0.05))),
        seed=random.getrandbits(64),
        max_tokens=REPEATING[cell.device][cell.batch] if lookup else random.randint(*TOKENS[cell.batch]),
        top_logprobs=TOP_LOGPROBS,
    )


def single(value: float) -> float:
    """Rounded to fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded

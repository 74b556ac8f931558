"""The requests of a cell: prompts of many lengths, some with a common beginning, greedy and seeded, drawn from a seed.

A `VerifyRequest` holds everything that its answer depends on: the mesh and the reference compute from the same
value."""

import struct
from dataclasses import dataclass
from random import Random

from baton.inference.v1 import inference_pb2 as pb
from cli.verify.cells import Cell
from mesh.messages.jobs import Sampling

LONGEST = 2000  # tokens of the longest prompt
TOKENS = {
    1: (8, 24),
    8: (8, 32),
    64: (16, 64),
}  # least and most tokens of an answer, by the cell's batch: a full batch needs long answers
REPEATING = {  # tokens of an answer long enough that lookup finds drafts in it, by device and batch
    "cpu": {1: 64, 8: 64, 64: 64},
    "cuda": {1: 128, 8: 64, 64: 64},
}
MOST_TOKENS = max(most for of_device in REPEATING.values() for most in of_device.values())
TOP_LOGPROBS = 3
PROMPTS = {  # prompts of a cell, by its device and batch
    "cpu": {1: 14, 8: 24, 64: 72},
    "cuda": {1: 14, 8: 24, 64: 64},  # the same in all cells of one batch, see requests_of
}
_VOCABULARY = 256  # the byte tokens of the random model


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    prompt: tuple[int, ...]
    sampling: Sampling

    def message(self, name: str) -> pb.GenerateRequest:
        """The message that a client sends; every field that matters is set."""
        sampling = self.sampling
        return pb.GenerateRequest(
            request_id=name,
            token_ids=pb.TokenIds(ids=self.prompt),
            sampling=pb.SamplingOptions(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                seed=sampling.seed,
            ),
            stop=pb.StopOptions(max_tokens=sampling.max_tokens, ignore_eos=True),
            logprobs=pb.LogprobOptions(top=sampling.top_logprobs),
        )


def requests_of(cell: Cell, seed: int) -> tuple[VerifyRequest, ...]:
    """On a GPU all cells of one batch send the same requests, so that the reference, which computes row by row, answers
    them once."""
    random = Random(f"{seed} {cell}" if cell.device == "cpu" else f"{seed} {cell.device} {cell.batch}")
    start = _tokens(random, 320)  # a beginning that some prompts of the cell share
    requests: list[VerifyRequest] = [
        VerifyRequest(_tokens(random, LONGEST - random.choice((0, 0, 1, 700))), _sampling(random, cell))
    ]
    while len(requests) < PROMPTS[cell.device][cell.batch]:
        kind = random.random()
        if kind < 0.1:  # a prompt that occurred before, with other sampling parameters
            prompt = random.choice(requests[1:] or requests).prompt
        elif kind < 0.2:  # whole pages of the common beginning and nothing else
            prompt = start[: random.choice((64, 128, 320))]
        elif kind < 0.4:
            prompt = start[: random.randrange(1, len(start))] + _tokens(random, random.randrange(1, 60))
        else:
            prompt = _tokens(random, _length(random))
        requests.append(VerifyRequest(prompt, _sampling(random, cell)))
    random.shuffle(requests)
    return tuple(requests)


def _length(random: Random) -> int:
    kind = random.random()
    if kind < 0.75:
        return random.randrange(1, 80)
    return random.randrange(80, 400) if kind < 0.95 else random.randrange(400, 1200)


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(_VOCABULARY) for _ in range(count))


def _sampling(random: Random, cell: Cell) -> Sampling:
    """Half of the requests are greedy. Real numbers are rounded to the 32 bits of the message. Lookup finds drafts only
    in a text that repeats itself: long answers do, greedy ones more than others."""
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

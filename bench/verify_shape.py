"""`python -m bench.verify_shape`: exactness on a real model's shape, where products are wide and prompts long.

24 prompts, one of 6,000 tokens, on random weights of Qwen2.5-0.5B's shape: once alone (batch 1, the whole prompt in one
chunk), once all together through a real mesh of one prefill and one decode worker. Tokens and logprob bits must be
equal. Status 1 when they differ, 2 when the comparison could not be made."""

import asyncio
import json
import sys
import traceback
from pathlib import Path
from random import Random
from typing import Any

from bench.command import parser_of, say
from bench.models import make_once
from cli.errors import MeshFailed
from cli.verify.answers import compare
from cli.verify.outcomes import run_cell
from cli.verify.reference import PAGE_TOKENS as REFERENCE_PAGE_TOKENS
from cli.verify.reference import on_cpu
from cli.verify.requests import VerifyRequest, single
from engine.loading.loaded import load_model
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling

LONG_TOKENS = 6000
PROMPTS = 24  # all of them under way at once
CHUNK_TOKENS = 500  # divides the long prompt: the short ones are computed in one step behind it, and land together
SHORT_TOKENS = (16, 26)
LONG_ANSWER, SHORT_ANSWER = 96, 24  # tokens: the long prompt's answer must still run when the others join it
PAGE_TOKENS = 32
PATH = "pairs"
SEED = 7
ANSWER_SECONDS = 900.0


def main() -> None:
    parser = parser_of("verify_shape", __doc__)
    parser.add_argument("--threads", type=int, default=2, help="threads of the engine alone, and of each worker")
    arguments = parser.parse_args()
    try:
        report = asyncio.run(verify_shape(arguments.threads))
    except MeshFailed as error:
        say(f"bench.verify_shape: {error}")
        sys.exit(2)
    except Exception:
        traceback.print_exc()
        sys.exit(2)
    good = not (report["token_mismatches"] or report["logprob_mismatches"]) and report["remote_share"] == 1.0
    print(json.dumps(report) if arguments.json else "\n".join(f"{name}: {value}" for name, value in report.items()))
    sys.exit(0 if good else 1)


async def verify_shape(threads: int) -> dict[str, Any]:
    loop, cache = asyncio.get_running_loop(), default_cache_folder()
    say(f"threads: the engine alone {threads}, prefill worker {threads}, decode worker {threads}")
    folder: Path = await asyncio.to_thread(make_once, cache)
    model = load_model(folder, cache, product_path=PATH, page_tokens=REFERENCE_PAGE_TOKENS)
    reference = on_cpu(model, most_slots=LONG_TOKENS + LONG_ANSWER, threads=threads)
    requests = requests_of(model.weights.config.vocab)
    began = loop.time()
    expected = []
    for request in requests:
        expected.append(await asyncio.to_thread(reference.answer, request))
        say(f"alone: prompt of {len(request.prompt)} tokens, {loop.time() - began:.0f} s")
    reference.close()
    alone_seconds, began = loop.time() - began, loop.time()
    outcome = await run_cell(
        settings(threads), requests, batch=PROMPTS, folder=folder, answer_seconds=ANSWER_SECONDS, head_start_seconds=2.0
    )
    together_seconds, identity = loop.time() - began, reference.identity
    say(f"together: batches up to {outcome.decode['largest_batch']}, {together_seconds:.0f} s")
    if outcome.numerics != (identity.numerics, identity.fingerprint):
        raise MeshFailed(f"the mesh computes in class {outcome.numerics}, this process in {identity}")
    if outcome.decode["largest_batch"] < PROMPTS:
        raise MeshFailed(f"decode's largest batch was {outcome.decode['largest_batch']}, not {PROMPTS}: run it again")
    differences = [compare(*pair) for pair in zip(expected, outcome.answers, strict=True)]
    return {
        "prompts": len(requests),
        "longest": max(len(request.prompt) for request in requests),
        "threads": threads,
        "token_mismatches": sum(each.token is not None for each in differences),
        "logprob_mismatches": sum(each.logprob is not None for each in differences),
        "remote_share": outcome.remote / len(requests),
        "largest_batch": outcome.decode["largest_batch"],
        "bytes_moved": outcome.bytes_moved,
        "bytes_expected": outcome.bytes_expected,
        "numerics": {"path": PATH, "class": identity.numerics, "fingerprint": identity.fingerprint},
        "alone_seconds": round(alone_seconds, 1),
        "together_seconds": round(together_seconds, 1),
    }


def requests_of(vocabulary: int) -> list[VerifyRequest]:
    """The long prompt comes first: the others are prefilled behind it and join its decode."""
    random = Random(SEED)
    lengths = [LONG_TOKENS, *(random.randint(*SHORT_TOKENS) for _ in range(PROMPTS - 1))]
    assert sum(lengths[1:]) <= CHUNK_TOKENS and LONG_TOKENS % CHUNK_TOKENS == 0
    return [
        VerifyRequest(
            tuple(random.randrange(vocabulary) for _ in range(length)),
            Sampling(
                temperature=single(number % 2 * 0.8),
                seed=number,
                max_tokens=LONG_ANSWER if length == LONG_TOKENS else SHORT_ANSWER,
                top_logprobs=3,
            ),
        )
        for number, length in enumerate(lengths)
    ]


def settings(threads: int) -> dict[str, str]:
    return {
        "mesh.prefill_workers": "1",
        "mesh.decode_workers": "1",
        "worker.threads": str(threads),
        "worker.product_path": PATH,
        "worker.transports": "shm",
        "worker.chunk_tokens": str(CHUNK_TOKENS),
        "prefill.step_tokens": str(CHUNK_TOKENS),
        "worker.page_tokens": str(PAGE_TOKENS),
        "worker.pool_pages": str(2 * LONG_TOKENS // PAGE_TOKENS),
        "worker.prefix_cache": "false",
        "decode.max_batch": str(PROMPTS),
    }


if __name__ == "__main__":
    main()

"""`python -m bench.gpu.transformers_peer`: transformers' continuous batching answers the prompts that stdin names.

The section `mesh` starts this process when our workers have stopped. It prints one JSON line, or an error: when an
answer failed or is short there is no figure, although transformers itself returns the other answers without an
error."""

import inspect
import json
import os
import sys
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


def main() -> None:
    order = json.load(sys.stdin)
    prompts, count = order["prompts"], order["count"]
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.bfloat16).to(order["device"]).eval()
    settings = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # If this release can, it keeps its manager between the two calls: the first call captures the graphs.
    can_stay = "persistent_manager" in inspect.signature(model.generate_batch).parameters
    stay = {"persistent_manager": True} if can_stay else {}
    model.generate_batch(inputs=[one[::-1] for one in prompts], generation_config=settings, **stay)
    began = perf_counter()
    answers = model.generate_batch(inputs=prompts, generation_config=settings, **stay)
    seconds = perf_counter() - began
    tokens = sum(len(one.generated_tokens) for one in answers.values())
    status = 0
    if tokens == len(prompts) * count:
        said = {"tokens_per_second": tokens / seconds, "attention": model.config._attn_implementation}
        print(json.dumps(said), flush=True)
    else:
        errors = {str(one.error) for one in answers.values() if one.error}
        print(f"{tokens} tokens came, not {len(prompts) * count}: {errors or 'no error'}", file=sys.stderr, flush=True)
        status = 1
    os._exit(status)  # the manager's thread may not end


if __name__ == "__main__":
    main()

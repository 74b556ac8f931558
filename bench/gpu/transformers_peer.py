"""`python -m bench.gpu.transformers_peer`: transformers' continuous batching of the prompts that stdin names.

A process of its own, started by the section `mesh` once our workers are gone. Says one JSON line."""

import inspect
import json
import os
import sys
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


def main() -> None:
    order = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.bfloat16).to(order["device"]).eval()
    wishes = GenerationConfig(max_new_tokens=order["count"], do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Kept between the two calls where this release can: its graphs are captured in the first one.
    can_stay = "persistent_manager" in inspect.signature(model.generate_batch).parameters
    stay = {"persistent_manager": True} if can_stay else {}
    model.generate_batch(inputs=[one[::-1] for one in order["prompts"]], generation_config=wishes, **stay)
    began = perf_counter()
    answers = model.generate_batch(inputs=order["prompts"], generation_config=wishes, **stay)
    seconds = perf_counter() - began
    tokens = sum(len(one.generated_tokens) for one in answers.values())
    print(json.dumps({"tokens": tokens, "tokens_per_second": tokens / seconds}), flush=True)
    os._exit(0)  # its manager's thread may stay


if __name__ == "__main__":
    main()

"""vLLM on the CPU computes points: run by bench.peers with the Python of its own environment.

Argument: the Hugging Face folder. A folder in compressed-tensors' format is served as it says."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from asked import serve


def main() -> None:
    model = Path(sys.argv[1])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    out, sys.stdout = sys.stdout, sys.stderr  # it writes bars and notes
    import vllm

    engine = vllm.LLM(
        str(model),
        dtype="bfloat16",
        max_model_len=4096,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        max_num_seqs=64,
    )
    sys.stdout = out

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> int:
        wanted = vllm.SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return sum(len(made.outputs[0].token_ids) for made in engine.generate(given, wanted, use_tqdm=False))

    vocab = int(json.loads((model / "config.json").read_text())["vocab_size"])
    serve({"engine": "vLLM", "version": vllm.__version__}, generate, vocab)


if __name__ == "__main__":
    main()

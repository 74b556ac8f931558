"""OpenVINO GenAI computes points: run by bench.peers with the Python of its own environment.

Arguments: the Hugging Face folder; where the converted model lies, or is written; bf16, int8 or int4; threads."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from asked import serve


def convert(model: Path, target: Path, precision: str) -> None:
    import openvino_tokenizers
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    wanted = {
        "bf16": {"load_in_8bit": False},
        "int8": {"quantization_config": OVWeightQuantizationConfig(bits=8)},
        "int4": {"quantization_config": OVWeightQuantizationConfig(bits=4, sym=True, group_size=64, ratio=1.0)},
    }
    OVModelForCausalLM.from_pretrained(model, export=True, compile=False, **wanted[precision]).save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(model)
    for part, name in zip(
        openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True),
        ("tokenizer", "detokenizer"),
        strict=True,
    ):
        openvino.save_model(part, target / f"openvino_{name}.xml")
    (target / "whole").touch()


def main() -> None:
    model, target, precision, threads = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if not (target / "whole").exists():
        convert(model, target, precision)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.enable_prefix_caching = 2, 4096, False
    pipeline = openvino_genai.LLMPipeline(
        target, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT="bf16"
    )

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> int:
        ids = np.array(prompts, np.int64)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return sum(len(made) for made in pipeline.generate(given, config).tokens)

    serve({"engine": "OpenVINO GenAI", "version": openvino_genai.__version__}, generate, vocab_of(model))


def vocab_of(model: Path) -> int:
    import json

    return int(json.loads((model / "config.json").read_text())["vocab_size"])


if __name__ == "__main__":
    main()

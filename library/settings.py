"""Keyword arguments of `LLM` become settings of a mesh: names of vLLM's, and those of docs/configuration.md."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from library.adapters import adapters_setting
from mesh.config.setting_value import TOP
from mesh.config.settings import FAMILIAR, SECTIONS

# Arguments of vLLM that set nothing here, by the values that they may have.
IDLE: dict[str, tuple[Any, ...]] = {
    "dtype": ("auto",),
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "quantization": (),
    "tokenizer": (),
    "tokenizer_mode": ("auto",),
    "skip_tokenizer_init": (False,),
    "load_format": ("auto",),
    "generation_config": ("auto",),
    "cpu_offload_gb": (0,),
    "fully_sharded_loras": (False,),
    "lora_dtype": ("auto",),
    "lora_extra_vocab_size": (0,),
    "runner": ("auto", "generate", "pooling"),
    "task": ("auto", "generate", "embed", "score"),
}
WITHOUT_EFFECT = (
    "enforce_eager",
    "trust_remote_code",
    "disable_log_stats",
    "swap_space",
    "enable_chunked_prefill",
    "distributed_executor_backend",
    "limit_mm_per_prompt",
    "max_cpu_loras",  # adapters are in main memory anyway, at most `max_loras`
)
REFUSED = {
    "download_dir": "models lie in the cache of Hugging Face's tools: set HF_HOME",
    "revision": "write it behind the model's name, as in ORG/NAME@REVISION",
}
RENAMED = {
    "enable_lora": "gateway.load_adapters",
    "enable_prefix_caching": "worker.prefix_cache",
    "block_size": "worker.page_tokens",
    "max_logprobs": "gateway.max_logprobs",
}


def overrides_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Settings as the command line spells them. ValueError for an argument that nothing reads."""
    found = dict[str, str]()
    for name, value in arguments.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        if name in REFUSED:
            raise ValueError(f"{name} is not supported: {REFUSED[name]}")
        if name in IDLE:
            if value not in IDLE[name]:
                allowed = " or ".join(map(repr, IDLE[name])) or "the model's own"
                raise ValueError(f"{name} is {value!r}: Baton has {allowed} only; leave it out")
            continue
        found[RENAMED.get(name) or key_of(name)] = adapters_setting(value) if name == "adapters" else spelled(value)
    return found


def key_of(name: str) -> str:
    """The setting `section.key` that a keyword argument stands for; `section__key` names the section too."""
    if name in FAMILIAR or name in SECTIONS[TOP]:
        return name
    section, separator, key = name.partition("__")
    if separator and key in SECTIONS.get(section, ()):
        return f"{section}.{key}"
    sections = [each for each in ("worker", "decode", "prefill", "mesh") if name in SECTIONS[each]]
    if not sections:
        known = {*FAMILIAR, *SECTIONS[TOP], *SECTIONS["worker"], *SECTIONS["decode"], *RENAMED, *IDLE}
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{name} is no argument of LLM and no setting of a worker{hint} (docs/configuration.md)")
    return f"{sections[0]}.{name}"


def spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)

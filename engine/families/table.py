"""The families that are served: a row of what differs from Llama for each of them.

A new dense family is a row here."""

from engine.families.family import Family, LinearBiases, Norms, Windows

_ROWS = (
    Family("llama", "LlamaForCausalLM", biases=LinearBiases(qkv="attention_bias", output="attention_bias")),
    Family("mistral", "MistralForCausalLM", default_window=4096, kv_heads=8),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        biases=LinearBiases(qkv=True),
        windows=Windows.SWITCHED,
        default_window=4096,
        kv_heads=32,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        norms=Norms(queries="head"),
        biases=LinearBiases(qkv="attention_bias", output="attention_bias"),
        windows=Windows.SWITCHED,
        default_window=4096,
        kv_heads=32,
        head_dim=128,
    ),
)
FAMILIES = {family.model_type: family for family in _ROWS}
ARCHITECTURES = {family.architecture: family for family in _ROWS}

"""Settings under the names of other servers, and those that they brought: a context limit and a share of the memory."""

from pathlib import Path

import pytest

from mesh.config.config_checks import ConfigError
from mesh.config.settings import read_settings
from mesh.config.worker_config import DecodeConfig


def test_familiar_names_set_our_settings(tmp_path: Path) -> None:
    file = tmp_path / "baton.toml"
    file.write_text("max-model-len = 4096\nmax_num_seqs = 16\n[decode]\nchunk_tokens = 32\n")
    environment = {"BATON_GPU_MEMORY_UTILIZATION": "0.5"}
    settings = read_settings(file, environment, {"max-num-batched-tokens": "64", "max-model-len": "128"})
    gateway, prefill, decode = settings.gateway(), settings.prefill(), settings.decode()
    assert gateway.context_tokens == prefill.context_tokens == decode.context_tokens == 128
    assert (prefill.step_tokens, prefill.chunk_tokens, decode.chunk_tokens) == (64, 64, 64)
    assert decode.max_batch == 16 and prefill.memory_share == decode.memory_share == 0.5
    assert read_settings(overrides={"memory-utilization": "0.25"}).decode().memory_share == 0.25


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"max-model-len": "long"}, "command line, max-model-len: expected a whole number"),
        ({"max-model-len": "-1"}, "command line, max-model-len: -1 is not between"),
        ({"max-num-seqs": "0"}, "command line, max-num-seqs: 0 is not between"),
        ({"gpu-memory-utilization": "1.5"}, r"command line, gpu-memory-utilization: 1\.5 is not between 0 and 1"),
        ({"max-model-len": "5", "context_tokens": "6"}, "command line, max-model-len sets the same"),
        ({"max-model-length": "5"}, "unknown key 'max-model-length'"),
        ({"decode.max-num-seqs": "5"}, "unknown key 'max-num-seqs'"),
        ({"memory-utilization": "0.5", "worker.pool_pages": "5"}, "command line, memory-utilization: pool_pages sets"),
    ],
)
def test_a_wrong_value_is_an_error_under_the_name_that_was_given(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(overrides=overrides).mesh()


def test_a_share_of_the_memory_is_what_the_weights_leave() -> None:
    both = {"memory_bytes": 10_000, "weights_bytes": 1000}
    assert DecodeConfig(memory_share=0.5).pages(100, **both) == 40
    assert DecodeConfig(memory_share=0.5, workers_on_host=4).pages(100, **both) == 10
    assert DecodeConfig(memory_share=0.5, workers_on_host=4, device="cuda").pages(100, **both) == 40
    with pytest.raises(ConfigError, match="memory_share: the pool's 0 bytes hold no page of 100 bytes"):
        DecodeConfig(memory_share=0.05).pages(100, **both)

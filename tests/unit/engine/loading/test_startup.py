"""How a worker starts: a pool that cannot fit is refused before anything is allocated."""

import re
from pathlib import Path

import pytest

from engine.cuda.device import find_gpu
from engine.loading.startup import load_configured, memory_bytes, pool_pages
from mesh.config.config_checks import ConfigError
from mesh.config.host import memory_bytes as host_memory_bytes
from mesh.config.worker_config import DecodeConfig

PAGE = 1 << 20


@pytest.mark.parametrize(
    ("settings", "name"), [({"pool_bytes": 65 * PAGE}, "pool_bytes"), ({"pool_pages": 65}, "pool_pages")]
)
def test_a_pool_larger_than_the_memory_is_refused_by_the_settings_name(settings: dict[str, int], name: str) -> None:
    config = DecodeConfig(**settings)
    with pytest.raises(ConfigError, match=f"^{name}: 65 pages .* this host has {64 * PAGE}; lower {name}$"):
        pool_pages(config, PAGE, memory_bytes=64 * PAGE)
    assert pool_pages(config, PAGE, memory_bytes=65 * PAGE) == 65


def test_on_a_gpu_its_own_memory_counts() -> None:
    with pytest.raises(ConfigError, match="the GPU has"):
        pool_pages(DecodeConfig(device="cuda", pool_pages=2), PAGE, memory_bytes=PAGE)
    gpu = find_gpu().gpu
    assert memory_bytes("cuda") == (gpu.memory_bytes if gpu else host_memory_bytes())


def test_the_hosts_memory_is_what_the_kernel_says_or_less() -> None:
    found = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None and 0 < memory_bytes("cpu") == host_memory_bytes() <= int(found[1]) * 1024


async def test_without_a_model_the_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^model:"):
        await load_configured(DecodeConfig())

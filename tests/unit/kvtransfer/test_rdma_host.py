"""Each thing that RDMA needs of a host is missed by name, with what to do."""

import resource

import pytest

from kvtransfer import rdma_host
from kvtransfer.rdma_host import active_ports, missing_device, missing_package, missing_pinned_memory, provider


@pytest.fixture
def host(tmp_path):
    """A host with one RDMA device whose port is active."""
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (tmp_path / "drivers/mlx5_core").mkdir(parents=True)
    (tmp_path / "infiniband/mlx5_0/device").mkdir()
    (tmp_path / "infiniband/mlx5_0/device/driver").symlink_to(tmp_path / "drivers/mlx5_core")
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/uverbs0").touch()
    return tmp_path


def test_a_host_with_an_active_port_misses_nothing(host):
    assert missing_device(host / "infiniband", host / "nodes") == ""
    assert active_ports(host / "infiniband") == ["mlx5_0:1"]
    assert provider("mlx5_0", host / "infiniband") == "mlx5_core"


def test_a_host_without_a_device_misses_it(tmp_path):
    assert "no RDMA device" in missing_device(tmp_path / "infiniband", tmp_path)


def test_a_port_that_is_down_is_named(host):
    (host / "infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    assert "mlx5_0" in missing_device(host / "infiniband", host / "nodes")


def test_a_container_without_the_device_files_misses_them(host):
    (host / "nodes/uverbs0").unlink()
    assert "/dev/infiniband/uverbs" in missing_device(host / "infiniband", host / "nodes")


def test_software_devices_have_a_provider_too(tmp_path):
    (tmp_path / "rxe0").mkdir()
    (tmp_path / "rxe0/parent").write_text("eth0\n")
    assert provider("rxe0", tmp_path) == "rdma_rxe"


@pytest.mark.parametrize(
    ("limit", "capabilities", "missing"),
    [
        (8 << 20, "00000000a80425fb", True),
        (8 << 20, "00000000a80465fb", False),  # CAP_IPC_LOCK
        (64 << 30, "0000000000000000", False),
        (resource.RLIM_INFINITY, "0000000000000000", False),
    ],
)
def test_a_small_memlock_limit_is_named_unless_the_process_may_ignore_it(
    tmp_path, monkeypatch, limit, capabilities, missing
):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    found = missing_pinned_memory(status)
    assert ("memlock" in found) is missing and ("8192 KiB" in found) is missing


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(rdma_host, "PACKAGES", ("baton_no_such_package",))
    assert "pip install --no-deps nixl-cu12" in missing_package()

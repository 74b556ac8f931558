"""Which transport two workers get, and that the reason says why."""

import os
from dataclasses import replace

import pytest

from kvtransfer.choose import host_identity
from mesh.kv_messages import KvHello
from mesh.pairing import choose

BOTH = KvHello(1, "class", "pairs-32-64-v1", 4096, "host a", 1000, 1, ("shm", "tcp"))


def test_gpus_of_two_hosts_or_users_use_nccl_and_those_of_one_map_each_other() -> None:
    gpu = replace(BOTH, transports=("cuda_ipc", "nccl"))
    assert choose(gpu, gpu).transport == "cuda_ipc"
    for other in (replace(gpu, host="host b"), replace(gpu, uid=5)):
        assert choose(gpu, other).transport == "nccl" and "cuda_ipc: another" in choose(gpu, other).why


def test_one_host_and_one_user_share_memory():
    choice = choose(BOTH, BOTH)
    assert choice.transport == "shm" and "same host" in choice.why


@pytest.mark.parametrize(
    ("change", "word"), [({"host": "host b"}, "host"), ({"host": ""}, "host"), ({"uid": 1001}, "1001")]
)
def test_another_host_or_user_gets_tcp_and_the_reason(change, word):
    for writer, receiver in [(BOTH, replace(BOTH, **change)), (replace(BOTH, **change), BOTH)]:
        choice = choose(writer, receiver)
        assert choice.transport == "tcp" and word in choice.why


def test_two_hosts_use_rdma_where_both_offer_it():
    both = replace(BOTH, transports=("shm", "rdma", "tcp"))
    assert choose(both, both).transport == "shm"
    elsewhere = replace(both, host="host b")
    assert choose(both, elsewhere).transport == "rdma" and "shm: another host" in choose(both, elsewhere).why
    assert choose(both, replace(elsewhere, transports=("shm", "tcp"))).transport == "tcp"
    assert choose(replace(both, transports=("shm", "tcp")), elsewhere).transport == "tcp"


def test_two_unknown_hosts_are_not_one_host():
    nowhere = replace(BOTH, host="")
    assert choose(nowhere, nowhere).transport == "tcp"


def test_prefills_order_decides_among_what_decode_offers():
    assert choose(replace(BOTH, transports=("tcp", "shm")), BOTH).transport == "tcp"
    choice = choose(BOTH, replace(BOTH, transports=("tcp",)))
    assert choice.transport == "tcp" and "does not offer" in choice.why


def test_nothing_in_common_is_refused_with_every_reason():
    choice = choose(replace(BOTH, transports=("shm",)), replace(BOTH, uid=5))
    assert choice.transport == "" and "uid" in choice.why
    assert choose(replace(BOTH, transports=()), BOTH).why == "no transport in common: prefill offers none"


@pytest.mark.parametrize("change", [{"layout": "fp32-32-64-v1"}, {"page_bytes": 8192}])
def test_pages_of_another_kind_are_refused_naming_both(change):
    choice = choose(BOTH, replace(BOTH, **change))
    assert choice.transport == ""
    assert str(next(iter(change.values()))) in choice.why


@pytest.mark.parametrize("other", ["", "+fp32-32-16-v1-b0b"])
def test_another_draft_is_refused_naming_the_setting(other):
    drafted = replace(BOTH, layout=BOTH.layout + "+pairs-32-64-v1-abe")
    choice = choose(replace(BOTH, layout=BOTH.layout + other), drafted)
    assert choice.transport == "" and "`draft`" in choice.why and "abe" in choice.why


def fake_proc(folder, boot="b00t", **spaces):
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(boot + "\n")
    (folder / "self/ns").mkdir(parents=True)
    for name in ("mnt", "pid", "user", "net"):
        os.symlink(f"{name}:[{spaces.get(name, 1)}]", folder / "self/ns" / name)
    return folder


def test_the_identity_of_a_host_is_its_boot_files_processes_and_users(tmp_path):
    here = host_identity(fake_proc(tmp_path / "here"))
    assert here == host_identity(fake_proc(tmp_path / "same"))
    assert here == host_identity(fake_proc(tmp_path / "other network", net=2))
    for number, change in enumerate([{"boot": "again"}, {"mnt": 2}, {"pid": 2}, {"user": 2}]):
        assert here != host_identity(fake_proc(tmp_path / str(number), **change))


def test_an_unreadable_proc_gives_no_identity(tmp_path):
    assert host_identity(tmp_path) == ""


def test_this_host_has_an_identity_that_stays():
    assert host_identity() == host_identity() != ""

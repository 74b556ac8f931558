"""Which transport two workers get, and that the reason says why."""

import os
from dataclasses import replace

import pytest

from kvtransfer.choose import host_identity
from mesh.messages.hello_pairs import choose
from mesh.messages.kv_messages import KvHello
from mesh.messages.page_shape import KV, PageSegment, PageShape

MODEL = PageSegment(KV, "a model", 4, 1024, "pairs-v1", "bf16", heads=2, first_head=0, shard_heads=2, head_dim=16)
SHAPE = PageShape(8, (MODEL,))
BOTH = KvHello(1, "class", SHAPE, "host a", 1000, 1, ("shm", "tcp"))


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


def of_size(page_tokens: int, segment: PageSegment = MODEL) -> PageShape:
    return PageShape(page_tokens, (replace(segment, layer_bytes=segment.layer_bytes // 8 * page_tokens),))


CONVERTED = {
    "twice the tokens": of_size(16),
    "half the tokens": of_size(4),
    "another order of a head": PageShape(8, (replace(MODEL, tiles="gpu-v1"),)),
    "one of its two heads": PageShape(8, (replace(MODEL, layer_bytes=512, first_head=1, shard_heads=1),)),
}
REFUSED = {
    "dtype: prefill has 'bf16', decode 'fp32'": PageShape(8, (replace(MODEL, tiles="fp32-v1", dtype="fp32"),)),
    "layers: prefill has 4, decode 5": PageShape(8, (replace(MODEL, layers=5),)),
    "content: prefill has 'a model', decode 'b'": PageShape(8, (replace(MODEL, content="b"),)),
    "kind: prefill has 'kv', decode 'rows'": PageShape(8, (replace(MODEL, kind="rows"),)),
    "head_dim: prefill has 16, decode 32": PageShape(8, (replace(MODEL, head_dim=32),)),
    "heads: prefill has 2, decode 4": PageShape(8, (replace(MODEL, heads=4),)),
    "tiles: 'fp8-v9' of 'bf16'": PageShape(8, (replace(MODEL, tiles="fp8-v9"),)),
    "odd sizes are not converted": of_size(7),
    "of kind 'window' are not known to this version": PageShape(8, (replace(MODEL, kind="window"),)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_pages_that_can_be_converted_go_over_transports_that_convert(name):
    assert choose(BOTH, replace(BOTH, shape=CONVERTED[name])).transport == "shm"
    gpu = replace(BOTH, transports=("cuda_ipc", "nccl"))
    choice = choose(gpu, replace(gpu, shape=CONVERTED[name]))
    assert choice.transport == "" and choice.why.count("moves pages only as they are") == 2


@pytest.mark.parametrize("why", REFUSED)
def test_pages_that_cannot_be_converted_are_refused_by_name(why):
    choice = choose(BOTH, replace(BOTH, shape=REFUSED[why]))
    assert choice.transport == "" and why in choice.why


def test_a_writer_with_some_of_the_heads_cannot_fill_a_page_of_all():
    choice = choose(replace(BOTH, shape=CONVERTED["one of its two heads"]), BOTH)
    assert choice.transport == "" and "heads: prefill's pages hold 1 to 2 and decode's 0 to 2" in choice.why


def test_opaque_segments_move_between_equal_pages_only():
    def opaque(page_tokens):
        return replace(BOTH, shape=PageShape(page_tokens, (MODEL, PageSegment("opaque", "state", 1, 64))))

    assert choose(opaque(8), opaque(8)).transport == "shm"
    odd = replace(opaque(8), shape=PageShape(8, (*opaque(8).shape.segments[:1], PageSegment("opaque", "state", 1, 96))))
    assert "segment 1: layer_bytes: prefill has 64, decode 96" in choose(opaque(8), odd).why
    named = replace(BOTH, shape=PageShape(8, (MODEL, PageSegment("opaque", "state", 1, 64, tiles="other"))))
    assert "segment 1: tiles: prefill has '', decode 'other'" in choose(opaque(8), named).why
    wide = replace(BOTH, shape=PageShape(16, (*of_size(16).segments, PageSegment("opaque", "state", 1, 64))))
    assert "segment 1: page_tokens" in choose(opaque(8), wide).why


def test_heads_of_an_odd_size_are_not_converted():
    odd = replace(MODEL, tiles="gpu-v1", head_dim=15, layer_bytes=960)
    choice = choose(replace(BOTH, shape=PageShape(8, (odd,))), replace(BOTH, shape=of_size(16, odd)))
    assert choice.transport == "" and "heads with 15 elements; odd sizes are not converted" in choice.why


def test_a_kind_that_is_not_known_is_refused_by_name_even_between_equal_pages():
    strange = replace(BOTH, shape=PageShape(8, (replace(MODEL, kind="window"),)))
    assert "'window'" in choose(strange, strange).why


@pytest.mark.parametrize("drafts", [(), (replace(MODEL, content="b0b"),)])
def test_another_draft_is_refused_naming_the_setting(drafts):
    drafted = replace(BOTH, shape=PageShape(8, (MODEL, replace(MODEL, content="abe"))))
    choice = choose(replace(BOTH, shape=PageShape(8, (MODEL, *drafts))), drafted)
    assert choice.transport == "" and "`draft`" in choice.why and "abe" in choice.why


def test_an_older_worker_that_does_not_describe_its_pages_pairs_only_with_another():
    older = replace(BOTH, shape=None)
    assert "prefill does not describe its pages" in choose(older, BOTH).why
    assert "decode does not describe its pages" in choose(BOTH, older).why
    assert choose(older, older).transport == "shm"


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

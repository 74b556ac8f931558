"""docs/architecture.md lists the files that one streaming chat really runs through."""

from tests.sim.way import PAGE, ROOT, block, described, files_of_one_chat


def test_the_page_lists_the_files_that_ran() -> None:
    files = files_of_one_chat()
    assert block((ROOT / PAGE).read_text()) == described(files), "python -m tests.sim.way --write"
    assert files[0] == "gateway/http/in_process.py" and "gateway/http/connection.py" in files[:3]
    for room in (
        "gateway/sequencing/relay.py",
        "prefill_svc/worker.py",
        "decode_svc/worker.py",
        "kvtransfer/memory.py",
    ):
        assert room in files, room


def test_the_block_is_what_stands_between_the_marks() -> None:
    assert block("a <!-- way: begin -->\nb\n<!-- way: end --> c") == "b"

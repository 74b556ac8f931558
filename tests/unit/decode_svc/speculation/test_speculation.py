"""What a step verifies, proposes and has the draft model read, and what of it counts afterwards."""

from typing import Any, cast

import pytest

from decode_svc.emission import extend
from decode_svc.main import source_of
from decode_svc.request.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.draft_length import FIRST_WAIT, Candidate, DraftLengths
from decode_svc.speculation.speculation import DraftSource, Speculation
from engine.step.batch import Chunk, decode_piece
from engine.step.plan import Drafting, Piece, Sampled
from mesh.config.worker_config import DecodeConfig
from mesh.messages.jobs import End, Job, Sampling, Ticket

PAGE = 4


class Always(DraftLengths):
    def __init__(self) -> None:
        super().__init__(longest=4, prior=1.0)

    def lengths(self, candidates: Any) -> list[int]:
        self.asked: list[Candidate] = list(candidates)
        return [4] * len(candidates)


def speculation(
    source: DraftSource = DraftSource.DRAFT,
    *,
    chunk: int = 16,
    context: int = 100,
    draft_lengths: Any = None,
    **more: Any,
) -> Speculation:
    tokens = {"draft_tokens": 4, "chunk_tokens": chunk, "page_tokens": PAGE, "context_tokens": context}
    return Speculation(source, **tokens, draft_lengths=draft_lengths or Always(), **more)


def request(prompt: int = 8, emitted: int = 1, *, max_tokens: int = 50, **more: Any) -> DecodeRequest:
    """A request in decode: every token but the last is filled, and the draft model has read it."""
    job = Job(Ticket(1, 1, bytes(16)), tuple(range(prompt)), (), Sampling(max_tokens=max_tokens, **more))
    one = DecodeRequest(job, cast(Any, None), 0.0, 0.0, [*job.tokens, *range(100, 100 + emitted)], None)
    one.enter(DecodePhase.RUNNING)
    one.pages, one.filled = list(range(40)), prompt + emitted - 1
    one.drafts.read = one.filled
    return one


def piece_of(one: DecodeRequest, drafts: tuple[int, ...], drafting: Drafting | None = None) -> Piece:
    tokens = (one.tokens[-1], *drafts)
    return decode_piece(
        1,
        tokens,
        one.filled,
        one.pages,
        page_tokens=PAGE,
        sampling=one.job.sampling,
        position=one.next_position,
        drafting=drafting,
    )


def says(*tokens: int) -> tuple[Sampled, ...]:
    return tuple(Sampled(token, -1.0) for token in tokens)


def take(
    what: Speculation, one: DecodeRequest, piece: Piece, sampled: tuple[Sampled, ...], proposed: Any = ()
) -> list[int]:
    tokens = extend(one, piece, what.verified(piece, sampled))
    what.settle(one, piece, len(tokens), proposed)
    return [token.token for token in tokens]


def test_accepted_drafts_and_the_token_behind_them_are_the_text() -> None:
    one, what = request(), speculation()
    piece = piece_of(one, (7, 8, 9), what.drafting(one, 4))
    assert take(what, one, piece, says(7, 8, 5, 6), (1, 2, 3, 4)) == [7, 8, 5]
    assert one.tokens[-3:] == [7, 8, 5] and one.filled == 8 + 3 and one.pending == 1
    assert one.drafts.next == (1, 2, 3, 4) and one.drafts.read == one.filled + 4
    assert (one.drafts.drafted, one.drafts.accepted, *what.counts().values()) == (3, 2, 3, 2)


def test_a_row_behind_an_accepted_draft_whose_numbers_overflow_counts_for_nothing() -> None:
    one, what = request(), speculation()
    piece = piece_of(one, (7, 8, 9), what.drafting(one, 4))
    sampled = (*says(7, 8), Sampled(0, float("nan")), *says(10))
    assert take(what, one, piece, sampled, ()) == [7, 8], "the next step has the third row as its first, and fails"


def test_tokens_say_which_of_them_were_drafts() -> None:
    one, what = request(), speculation()
    piece = piece_of(one, (7, 8))
    tokens = extend(one, piece, what.verified(piece, says(7, 8, 9)))
    assert [(token.drafted, token.accepted) for token in tokens] == [(2, False), (0, True), (0, True)]
    assert [token.position for token in tokens] == [1, 2, 3]


def test_a_stop_id_inside_a_run_is_the_last_token_and_nothing_behind_it_is_filled() -> None:
    one, what = request(stop_ids=(8,)), speculation()
    piece = piece_of(one, (7, 8, 9))
    tokens = extend(one, piece, what.verified(piece, says(7, 8, 9, 10)))
    assert [token.end for token in tokens] == [End.NONE, End.STOP] and one.filled == 8 + 2


def test_a_stop_id_before_min_tokens_does_not_end_a_run() -> None:
    one, what = request(stop_ids=(8,), min_tokens=3), speculation()
    assert take(what, one, piece_of(one, (7, 8, 9)), says(7, 8, 9, 10)) == [7, 8, 9, 10]


def test_what_a_new_attempt_brought_along_during_the_step_wins_over_drafts() -> None:
    one, what = request(), speculation()
    piece = piece_of(one, (7, 8), what.drafting(one, 4))
    one.tokens += [7, 70, 71]  # law
    assert take(what, one, piece, says(7, 8, 9), (1, 2, 3, 4)) == []
    assert one.filled == 8 + 1 and one.drafts.next == () and one.drafts.read == one.filled


@pytest.mark.parametrize("left", range(1, 8))
def test_no_more_is_verified_or_proposed_than_may_still_be_emitted(left: int) -> None:
    one, what = request(emitted=10, max_tokens=10 + left), speculation()
    one.drafts.next = (1, 2, 3, 4)
    drafts = what.drafts(one, 4)
    assert len(drafts) == min(4, left - 1)
    propose = what.proposals(one, 4, len(drafts))
    last_slot = one.filled + len(drafts) + propose  # that a step may write
    assert last_slot < len(one.job.prompt) + one.job.sampling.max_tokens
    assert propose <= max(0, left - 2)


def test_drafts_end_at_the_end_of_the_context() -> None:
    one, what = request(prompt=8, emitted=10), speculation(context=20)
    assert one.filled + 0 + what.proposals(one, 4, 0) <= 19
    assert what.proposals(one, 4, 2) == 0


def test_a_draft_that_lagged_behind_reads_what_it_has_not_read() -> None:
    one, what = request(emitted=6), speculation()
    one.drafts.read = 10
    assert what.drafting(one, 3) == Drafting(10, (102, 103, 104), 3)
    assert what.drafting(one, 0) is None


def test_catching_up_is_bounded_over_the_whole_step() -> None:
    what, three = speculation(chunk=16), [request(emitted=20) for _ in range(3)]
    for one in three:
        one.drafts.read = one.filled - 10
    assert what.lengths(three) == [4, 0, 0], "two times ten rows are more than a chunk"
    three[0].drafts.read = three[0].filled
    assert what.lengths(three) == [4, 4, 0]


def test_a_step_without_the_draft_leaves_its_row_unread() -> None:
    one, what = request(), speculation()
    one.drafts.next, one.drafts.read = (1, 2, 3, 4), one.filled + 4  # its own proposals
    assert take(what, one, piece_of(one, ()), says(5)) == [5]
    assert one.drafts.next == () and one.drafts.read == 8


def test_a_page_that_was_published_unread_is_read_again_by_who_finds_it() -> None:
    writer, reader, what = request(prompt=9), request(prompt=9), speculation()
    writer.drafts.read, writer.filled = 4, 9
    what.published(writer, range(2))
    reader.hashes = [b"1", b"2"]
    what.admitted(reader)
    assert reader.drafts.read == 4
    take(what, reader, piece_of(reader, (), what.drafting(reader, 4)), says(5), (1, 2, 3, 4))
    another = request(prompt=9)
    another.hashes = [b"1", b"2"]
    what.admitted(another)
    assert another.drafts.read == another.filled, "it has been read meanwhile"


def test_a_fresh_page_is_not_taken_for_one_that_was_published_unread() -> None:
    """Page ids come again: only pages found in the cache may be bare."""
    old, new, what = request(prompt=9), request(prompt=9), speculation()
    old.drafts.read = 0
    what.published(old, range(2))
    what.admitted(new)
    assert new.drafts.read == new.filled


def test_a_prompt_that_is_computed_here_is_read_by_the_draft_too() -> None:
    one = request(prompt=12)
    one.filled = one.drafts.read = 4
    assert speculation().reading(one, Chunk(1, 4, 8, False)) == Drafting(4)
    one.drafts.read = 2
    assert speculation().reading(one, Chunk(1, 4, 8, False)) == Drafting(2, (2, 3))
    assert speculation(chunk=1).reading(one, Chunk(1, 4, 8, False)) is None
    assert speculation(DraftSource.LOOKUP).reading(one, Chunk(1, 4, 8, False)) is None


def test_off_is_off() -> None:
    one, what = request(), speculation(DraftSource.OFF)
    one.drafts.next = (1, 2)
    assert what.lengths([one]) == [0]


def test_drafts_come_from_the_draft_if_there_is_one_unless_something_else_was_named(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")

    def source(speculation: str, draft: Any) -> DraftSource:
        return source_of(DecodeConfig(speculation=speculation, draft=draft))

    assert [source(setting, tmp_path) for setting in ("auto", "draft", "lookup", "off")] == [
        DraftSource.DRAFT,
        DraftSource.DRAFT,
        DraftSource.LOOKUP,
        DraftSource.OFF,
    ]
    assert [source(setting, None) for setting in ("auto", "lookup", "off")] == [
        DraftSource.LOOKUP,
        DraftSource.LOOKUP,
        DraftSource.OFF,
    ]


def test_steps_are_planned_ahead_only_while_no_request_drafts_and_drafts_are_tried_again() -> None:
    class Never(Always):
        def lengths(self, candidates: Any) -> list[int]:
            return [0] * len(candidates)

    off, drafting, idle = (
        speculation(DraftSource.OFF),
        speculation(DraftSource.LOOKUP),
        speculation(DraftSource.LOOKUP, draft_lengths=Never()),
    )
    for one in (off, drafting, idle):
        one.lengths([request()])
    assert off.allows_step_ahead and not drafting.allows_step_ahead
    for _ in range(FIRST_WAIT - 1):
        assert idle.allows_step_ahead and idle.allows_step_ahead, "a question changes nothing"
        idle.count_step_ahead()
    assert not idle.allows_step_ahead, "drafts are tried again"
    idle.lengths([request()])
    assert idle.allows_step_ahead

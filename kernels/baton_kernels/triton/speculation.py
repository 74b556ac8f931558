"""Verification of drafts: how many drafts each sequence keeps, and the token that follows them.

The target has sampled a token at every row (its own noise, keyed by the position): a draft stays if it equals
that token and all drafts before it stay. So the tokens are those of a run without speculation, greedy or seeded."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.triton.launch import Launch, architecture, check, check_rank, power_of_2, run

SHAPES = ((1, 0), (1, 1), (5, 3), (9, 7))  # sequences, most drafts


def verify(
    sampled: torch.Tensor,  # int32 [rows], token that the target model sampled at each row
    drafts: torch.Tensor,  # int32 [sequences, most_drafts]; drafts[s, i] is the input of the row after first_row[s] + i
    draft_counts: torch.Tensor,  # int32 [sequences]; -1 for an empty place in the batch
    first_row: torch.Tensor,  # int32 [sequences]
    *,
    accepted: torch.Tensor,  # int32 [sequences], number of drafts kept; 0 in empty places
    following: torch.Tensor,  # int32 [sequences], the target's token after them: sampled[first_row + accepted]
) -> None:
    architecture(sampled)
    run(list(launches(sampled, drafts, draft_counts, first_row, accepted, following)))


def reference(
    sampled: torch.Tensor, drafts: torch.Tensor, draft_counts: torch.Tensor, first_row: torch.Tensor
) -> tuple[list[int], list[int]]:
    accepted, following = [], []
    for row, count, first in zip(drafts.tolist(), draft_counts.tolist(), first_row.tolist(), strict=True):
        kept = 0
        while kept < count and row[kept] == int(sampled[first + kept]):
            kept += 1
        accepted.append(kept)
        following.append(int(sampled[first + kept]) if count >= 0 else -1)
    return accepted, following


@triton.jit(do_not_specialize=["most"])
def _verify(sampled, drafts, draft_counts, first_row, accepted, following, most, DRAFTS: tl.constexpr):
    sequence = tl.program_id(0)
    count = tl.load(draft_counts + sequence)
    first = tl.load(first_row + sequence)
    at = tl.arange(0, DRAFTS)
    inside = at < count
    draft = tl.load(drafts + sequence * most + at, mask=inside, other=0)
    drawn = tl.load(sampled + first + at, mask=inside, other=0)
    wrong = tl.where(inside & (draft == drawn), DRAFTS, at)  # the first index that does not stay
    kept = tl.maximum(tl.minimum(tl.min(wrong, 0), count), 0)
    tl.store(accepted + sequence, kept)
    tl.store(following + sequence, tl.load(sampled + first + kept, mask=count >= 0, other=-1))


def launches(
    sampled: torch.Tensor,
    drafts: torch.Tensor,
    draft_counts: torch.Tensor,
    first_row: torch.Tensor,
    accepted: torch.Tensor,
    following: torch.Tensor,
) -> Iterator[Launch]:
    (rows,) = check_rank("sampled", sampled, 1)
    sequences, most = check_rank("drafts", drafts, 2)
    check("sampled", sampled, torch.int32, (rows,))
    check("drafts", drafts, torch.int32, (sequences, most))
    for name, tensor in (
        ("draft_counts", draft_counts),
        ("first_row", first_row),
        ("accepted", accepted),
        ("following", following),
    ):
        check(name, tensor, torch.int32, (sequences,))
    yield Launch(
        name=f"verify {most}",
        kernel=_verify,
        grid=(sequences, 1, 1),
        arguments={
            "sampled": sampled, "drafts": drafts, "draft_counts": draft_counts, "first_row": first_row,
            "accepted": accepted, "following": following, "most": most,
        },
        constants={"DRAFTS": power_of_2(most + 1)},
        warps=1,
    )  # fmt: skip

"""The RDMA transport without rule [key]. No simulated transport has keys, so the scenarios of the simulation leave it
out; `tests/rdma` and `tests/unit/kvtransfer/test_rdma.py` break it."""

from kvtransfer import rdma
from tests.mutants.kvtransfer import Mutant, Patch


def without_key(patch: Patch) -> None:
    """A writer counts as silent because its session has ended; its key stays."""
    patch(rdma, "withdraw", lambda gates: None)
    patch(rdma, "key_is_gone", lambda gates: True)


MUTANTS: dict[str, Mutant] = {"key": without_key}

"""A TCP writer sends frames in batches that leave room for others in the send buffer."""

from kvtransfer.tcp_writer import batch_bytes, batches


def test_a_batch_leaves_room_for_others_in_the_send_buffer() -> None:
    """With room for one only, the two sides take turns."""
    assert batch_bytes(4 << 20) == 1 << 20 and batch_bytes(2 << 20) == 512 << 10
    assert batch_bytes(16 << 10) == batch_bytes(1 << 20) == 256 << 10
    lengths = [100_000] * 10
    assert list(batches(lengths, 256 << 10)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert list(batches(lengths, 1 << 20)) == [(0, 10)]

"""A receiver lets only sound bytes into its pages, with every transport whose receiver writes them itself."""

from kvtransfer.transfer import Span

TICKET = bytes(range(32))


def whole(index, source, target, layers=6):
    return Span(index, source, target, 0, layers)


async def test_frames_of_a_ticket_that_is_not_open_leave_no_byte(two_sided_pair):
    pair = two_sided_pair
    await pair.writer.write(TICKET, [whole(index, index, index) for index in range(8)], 0)
    other = b"o" * 32
    pair.open(other, [whole(9, 9, 9)])
    await pair.writer.write(other, [whole(9, 9, 9)], 0)
    await pair.until(lambda: len(pair.arrived) == 1 and pair.receiver.landings.discarded_bytes == 8 * 6 * 4096)
    pair.target.view(9, 0, 6)[:] = bytes(6 * 4096)
    assert not any(pair.target.buffer)


async def test_frames_of_pages_that_the_landing_has_not_leave_no_byte(two_sided_pair):
    pair = two_sided_pair
    pair.open(TICKET, [whole(1, 1, 1)])
    await pair.writer.write(TICKET, [whole(0, 0, 0), whole(1, 1, 1), whole(2, 2, 2)], 0)
    await pair.until(lambda: len(pair.arrived) == 1 and pair.receiver.landings.discarded_bytes == 2 * 6 * 4096)
    assert not any(pair.target.view(0, 0, 6)) and not any(pair.target.view(2, 0, 6))


async def test_arrivals_tell_ticket_place_round_and_checksum(two_sided_pair):
    pair = two_sided_pair
    spans = [Span(7, 1, 2, 1, 4)]
    pair.open(TICKET, spans)
    sums = await pair.writer.write(TICKET, spans, 3)
    await pair.landed(1)
    told = pair.arrived[0]
    assert (told.ticket, told.page, told.first_layer, told.layers, told.round) == (TICKET, 7, 1, 4, 3)
    assert (told.checksum,) == sums


async def test_a_callback_that_ends_its_landing_gets_no_second_call(two_sided_pair):
    pair = two_sided_pair
    calls = []

    def arrived(frame):
        calls.append(frame)
        pair.receiver.close(frame.ticket)

    pair.receiver.open(TICKET, {index: index for index in range(32)}, arrived)
    await pair.writer.write(TICKET, [whole(index, index, index) for index in range(32)], 0)
    await pair.until(lambda: pair.receiver.landings.discarded_bytes >= 31 * 6 * 4096 - len(calls))
    assert len(calls) == 1

"""The frames between a leader and its followers, as RocketMQ sends them."""

from __future__ import annotations

import pytest

from kerolox.errors import ProtocolError
from kerolox.protocol.ha import RANGE_BYTES_MAX, RangeReader, ReportReader, pack_head, pack_report

FIVE_AT_1000 = bytes.fromhex("00000000000003e8 00000005") + b"abcde"
HEARTBEAT_AT_1005 = bytes.fromhex("00000000000003ed 00000000")


def joined(pieces: list[tuple[int, memoryview]]) -> tuple[dict[int, int], list[int]]:
    """Bytes by their place, and heartbeats."""
    found = {offset + at: byte for offset, piece in pieces for at, byte in enumerate(piece)}
    return found, [offset for offset, piece in pieces if not len(piece)]


def test_as_rocketmq_writes_them() -> None:
    assert pack_report(1234) == bytes.fromhex("00000000000004d2")
    assert pack_head(1000, 5) + b"abcde" == FIVE_AT_1000
    assert pack_head(1005, 0) == HEARTBEAT_AT_1005


def test_of_reports_the_last_whole_one_counts() -> None:
    data = pack_report(7) + pack_report(300) + pack_report(1234)[:5]
    reader = ReportReader()
    assert reader.feed(data) == 300
    assert reader.feed(b"\0") is None
    assert reader.feed(pack_report(1234)[6:]) == 1234
    for cut in range(len(data)):
        reader = ReportReader()
        told = [reader.feed(data[:cut]), reader.feed(data[cut:])]
        assert [number for number in told if number is not None][-1] == 300


def test_reports_that_cannot_be() -> None:
    with pytest.raises(ProtocolError, match=r"log end of -1 .at byte 8"):
        ReportReader().feed(pack_report(1) + pack_report(-1))
    hello = bytes.fromhex("00000001 0000 0001 0000000000000002")
    with pytest.raises(ProtocolError, match="follower 2 speaks the protocol of groups with a controller"):
        ReportReader().feed(hello)
    # The same number as a report is one of a log of four gigabytes.
    reader = ReportReader()
    assert reader.feed(hello[:8]) == (1 << 32) + 1
    assert reader.feed(pack_report(1 << 33)) == 1 << 33


def test_ranges_cut_anywhere() -> None:
    data = FIVE_AT_1000 + HEARTBEAT_AT_1005 + pack_head(1005, 3) + b"xyz"
    whole = joined(RangeReader().feed(data))
    assert bytes(whole[0][offset] for offset in range(1000, 1008)) == b"abcdexyz"
    assert whole[1] == [1005]
    for first in range(len(data)):
        for second in range(first, len(data)):
            reader = RangeReader()
            pieces = reader.feed(data[:first]) + reader.feed(data[first:second]) + reader.feed(data[second:])
            assert joined(pieces) == whole


@pytest.mark.parametrize(("offset", "length"), [(5, -1), (-5, 1), (0, RANGE_BYTES_MAX + 1), (0, -(1 << 31))])
def test_ranges_that_cannot_be(offset: int, length: int) -> None:
    reader = RangeReader()
    reader.feed(FIVE_AT_1000)
    with pytest.raises(ProtocolError, match=r"a range of .* port for followers.*at byte 17"):
        reader.feed(pack_head(offset, length))


def test_the_longest_range() -> None:
    (found,) = RangeReader().feed(pack_head(0, RANGE_BYTES_MAX) + b"x" * RANGE_BYTES_MAX)
    assert len(found[1]) == RANGE_BYTES_MAX

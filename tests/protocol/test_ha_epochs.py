"""The frames between a leader and its followers in a group with a controller, as RocketMQ sends them."""

from __future__ import annotations

import pytest

from kerolox.errors import ProtocolError
from kerolox.protocol.ha_epochs import (
    EPOCH_RANGE_BYTES_MAX,
    EPOCHS_MAX,
    NO_EPOCH,
    Epoch,
    EpochPiece,
    FollowerFrames,
    Hello,
    LeaderFrames,
    ProcessNumber,
    Welcome,
    pack_epoch_head,
    pack_epoch_report,
    pack_hello,
    pack_welcome,
)

HELLO = bytes.fromhex("00000001 0000 0000 0000000000000002")
WELCOME = bytes.fromhex("00000001 0000000c 00000000000003e8 00000001 00000001 0000000000000000")
REPORT = bytes.fromhex("00000002 00000000000003e8")
FIVE_AT_1000 = (
    bytes.fromhex("00000002 00000005 00000000000003e8 00000001 0000000000000000 00000000000003e8") + b"abcde"
)
FIRST = Epoch(1, 0)


def told(frames: list[Welcome | EpochPiece]) -> list[object]:
    """The same however it was cut: bytes one by one, heartbeats, welcomes."""
    found: list[object] = []
    for frame in frames:
        if isinstance(frame, Welcome):
            found.append(frame)
        else:
            said = (frame.epoch, frame.confirmed)
            found += [(frame.offset + at, byte, *said) for at, byte in enumerate(frame.data)] or [
                (frame.offset, None, *said)
            ]
    return found


def test_as_rocketmq_writes_them() -> None:
    assert pack_hello(Hello(2)) == HELLO
    assert pack_hello(Hello(2, from_last_file=True, is_learner=True))[4:8] == bytes.fromhex("00010001")
    assert pack_welcome(1000, [FIRST]) == WELCOME
    assert pack_welcome(0, []) == bytes.fromhex("00000001 00000000 0000000000000000 ffffffff")
    assert pack_epoch_report(1000) == REPORT
    assert pack_epoch_head(1000, 5, FIRST, 1000) + b"abcde" == FIVE_AT_1000


def test_of_a_follower_cut_anywhere() -> None:
    data = HELLO + HELLO + REPORT + pack_epoch_report(1005) + pack_hello(Hello(7, is_learner=True), 99)
    whole = [Hello(2), Hello(2), 1000, 1005, ProcessNumber(99), Hello(7, is_learner=True)]
    assert FollowerFrames().feed(data) == whole
    for first in range(len(data)):
        for second in range(first, len(data)):
            reader = FollowerFrames()
            parts = data[:first], data[first:second], data[second:]
            assert [frame for part in parts for frame in reader.feed(part)] == whole


def test_of_a_leader_cut_anywhere() -> None:
    two = [FIRST, Epoch(3, 4567)]
    data = (
        WELCOME
        + pack_epoch_head(-1, 0, FIRST, 0)
        + FIVE_AT_1000
        + pack_welcome(5000, two)
        + pack_epoch_head(1005, 0, two[1], 1003)
    )
    whole = told(LeaderFrames().feed(data))
    assert whole[0] == Welcome(1000, (FIRST,))
    assert whole[1] == (-1, None, FIRST, 0)  # of a leader without a log
    assert whole[2:7] == [(1000 + at, byte, FIRST, 1000) for at, byte in enumerate(b"abcde")]
    assert whole[7:] == [Welcome(5000, tuple(two)), (1005, None, two[1], 1003)]
    for first in range(len(data)):
        for second in range(first, len(data)):
            reader = LeaderFrames()
            parts = data[:first], data[first:second], data[second:]
            assert told([frame for part in parts for frame in reader.feed(part)]) == whole


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (REPORT + pack_epoch_report(-1), r"log end of -1 .at byte 12"),
        (HELLO + bytes.fromhex("00000000 000003e8"), r"kind 0 .*without a controller.*at byte 16"),
        (bytes.fromhex("00000001 0002 0000 0000000000000002"), "settings 2, 0"),
        (bytes.fromhex("00000001 0000 0000 ffffffffffffffff"), "id -1"),
    ],
)
def test_of_a_follower_that_cannot_be(data: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        FollowerFrames().feed(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (pack_epoch_head(-1, 1, FIRST, 0), "1 bytes at -1"),
        (pack_epoch_head(-2, 0, FIRST, 0), "0 bytes at -2"),
        (pack_epoch_head(0, EPOCH_RANGE_BYTES_MAX + 1, FIRST, 0), "expected 0 to"),
        (pack_epoch_head(0, -1, FIRST, 0), "-1 bytes"),
        (bytes.fromhex("00000003"), "kind 3 .*haListenPort"),
        (bytes.fromhex("00000001 0000000b 0000000000000000 00000001"), "11 bytes of epochs"),
        (bytes.fromhex("00000001 7ffffff8 0000000000000000 00000001"), "2147483640 bytes of epochs"),
        (pack_welcome(-1, []), "ends at -1"),
        (pack_welcome(9, [Epoch(2, 0), Epoch(2, 5)]), "epoch 2 from 5 after epoch 2 from 0"),
        (pack_welcome(9, [Epoch(2, 5), Epoch(3, 5)]), "epoch 3 from 5 after epoch 2 from 5"),
        (pack_welcome(9, [Epoch(-1, 5)]), "epoch -1"),
        (WELCOME[:16] + bytes.fromhex("00000009") + WELCOME[20:], "last epoch 9"),
    ],
)
def test_of_a_leader_that_cannot_be(data: bytes, match: str) -> None:
    reader = LeaderFrames()
    reader.feed(FIVE_AT_1000)
    with pytest.raises(ProtocolError, match=f"{match}.*at byte 41"):
        reader.feed(data)


def test_the_most_there_can_be() -> None:
    epochs = [Epoch(number, number * 10) for number in range(EPOCHS_MAX)]
    (found,) = LeaderFrames().feed(pack_welcome(1, epochs))
    assert found == Welcome(1, tuple(epochs))
    with pytest.raises(ProtocolError, match="1001 epochs"):
        pack_welcome(1, [*epochs, Epoch(EPOCHS_MAX, EPOCHS_MAX * 10)])
    head = pack_epoch_head(0, EPOCH_RANGE_BYTES_MAX, Epoch(NO_EPOCH, 0), 0)
    (piece,) = LeaderFrames().feed(head + bytes(EPOCH_RANGE_BYTES_MAX))
    assert isinstance(piece, EpochPiece)
    assert len(piece.data) == EPOCH_RANGE_BYTES_MAX

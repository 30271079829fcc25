"""The two files of a broker under a controller, as RocketMQ's brokers write them."""

from __future__ import annotations

import pytest

from kerolox.errors import ProtocolError
from kerolox.protocol.broker_identity import (
    BrokerIdentity,
    address_of_check_code,
    decode_identity,
    encode_identity,
    register_check_code,
)
from kerolox.protocol.epoch_file import decode_epochs, encode_epochs
from kerolox.protocol.ha_epochs import Epoch

# Written by Apache's EpochFileCache (5.5.0).
TWO = b"2\n1726488240\n1-0\n3-4567\n"
ONE = b"1\n1725254278\n1-0\n"


def test_epochs_as_rocketmq_writes_them() -> None:
    assert encode_epochs([Epoch(1, 0), Epoch(3, 4567)]) == TWO
    assert encode_epochs([Epoch(1, 0)]) == ONE
    assert decode_epochs(TWO) == (Epoch(1, 0), Epoch(3, 4567))
    assert decode_epochs(encode_epochs([])) == ()


def test_epochs_with_the_line_ends_of_windows() -> None:
    assert decode_epochs(b"2\r\n0\r\n1-0\r\n3-4567\r\n") == (Epoch(1, 0), Epoch(3, 4567))


def test_every_flipped_bit_and_every_cut_of_the_file_is_found() -> None:
    for cut in range(len(TWO)):
        with pytest.raises(ProtocolError, match="epochFileCheckpoint"):
            decode_epochs(TWO[:cut])
    for at in range(len(TWO)):
        for bit in range(8):
            flipped = bytearray(TWO)
            flipped[at] ^= 1 << bit
            with pytest.raises(ProtocolError):
                decode_epochs(bytes(flipped))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "expected a count and a CRC"),
        (b"2\n0\n1-0\n", "1 epochs, it says 2"),
        (b"1\n0\n1:0\n", "expected number-start"),
        (b"2\n0\n3-0\n1-5\n", "epoch 1 from 5 after epoch 3 from 0"),
        (b"1\n0\n2147483648-0\n", "numbers of 32"),
        (b"1\n0\n1-9223372036854775808\n", "numbers of 32"),
    ],
)
def test_epochs_that_cannot_be(data: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        decode_epochs(data)


def test_epochs_that_do_not_rise_are_not_written() -> None:
    with pytest.raises(ProtocolError, match="both numbers must increase"):
        encode_epochs([Epoch(1, 0), Epoch(2, 0)])


def test_identities_as_rocketmq_writes_them() -> None:
    code = register_check_code("10.0.0.1:10911", 1700000000000)
    assert code == "10.0.0.1:10911;1700000000000"
    assert address_of_check_code(code) == "10.0.0.1:10911"
    final = BrokerIdentity("DefaultCluster", "broker-a", 2)
    asked = final._replace(check_code=code)
    assert encode_identity(final) == b"DefaultCluster#broker-a#2"
    assert encode_identity(asked) == b"DefaultCluster#broker-a#2#10.0.0.1:10911;1700000000000"
    assert decode_identity(b"DefaultCluster#broker-a#2") == final
    assert decode_identity(encode_identity(asked)) == asked


@pytest.mark.parametrize(
    "data", [b"", b"c#b", b"c#b#", b"c##1", b"c#b#x", b"c#b#-1", b"c#b#0", b"c#b#1#2#3", b"\xff#b#1"]
)
def test_identities_that_cannot_be(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="brokerIdentity"):
        decode_identity(data)


def test_names_that_could_not_be_read_back_are_not_written() -> None:
    with pytest.raises(ProtocolError, match="without #"):
        encode_identity(BrokerIdentity("a#b", "c", 1))

"""The fuzz targets on a few thousand quick inputs; ``make fuzz`` runs them for long."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kerolox.protocol.grpc.messages import make
from kerolox.protocol.http2.frames import rst_stream, window_update
from tests.protocol.http2.wire import Wire, frame

from .targets import TARGETS

MESSAGE = make("Message", user_properties={"a": "b"}, body=b"x")
SEEDS = [
    b"",
    b"\x00" * 64,
    bytes.fromhex("00000010000000 0c".replace(" ", "")) + b'{"code":1}',
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"opaque":1,"version":479}',
    b'{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":1}}',
    bytes.fromhex(
        "0000007edaa320a73610a686000000020000000000000000000000070000000000000400000000000000018bcfe568000a000009"
        "000015b30000018bcfe568010a00000100002a9f0000000000000000000000000000000568656c6c6f09546f7069635465737400"
        "15544147530154616741024b455953016b31206b3202"
    ),
    bytes.fromhex(
        "0000002f0000000000000000000000000000000568656c6c6f00145741495401747275650254414753015461674102"
    ),
    b"0A00000100002A9F0000000000000400",
    b"listenPort=9876\n# comment\nkey\\\n  continued=value\\u00e9\n",
    bytes.fromhex(
        "000000010000000c00000000000003e8000000010000000100000000000000000000000200000005"
        "00000000000003e80000000100000000000000000000000000000003e8"
    )
    + b"abcde",
    bytes.fromhex("0000000100000000000000000000000200000002 00000000000003e8"),
    b'\x00{"commitIndex":9,"entry":{"body":"aGVsbG8=","index":10,"pos":1000,"size":53,"term":3},"group":"g",'
    b'"leaderId":"n0","remoteId":"n1","term":3,"type":"APPEND"}',
    b"2\n1726488240\n1-0\n3-4567\n",
    b"DefaultCluster#broker-a#2#10.0.0.1:10911;1700000000000",
    b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
    Wire().headers(1, 0) + frame(0, 1, 1, b"\0\0\0\0\x03abc") + window_update(0, 100) + rst_stream(1, 8),
    make("SendMessageRequest", messages=[MESSAGE]).SerializeToString(),
    b"120 1794771855026 60000 3 0 broker-a 2 123 40960",
]


def mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                changed[at:at] = bytes([chance.randrange(256)])
            case 1 if changed:
                changed[at % len(changed)] = chance.randrange(256)
            case 2:
                del changed[at : at + chance.randrange(1, 9)]
            case _:
                other = chance.choice(SEEDS)
                changed[at:at] = other[: chance.randrange(1, 40)]
    return bytes(changed)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_mutated_bytes_are_read_or_refused(target: Callable[[bytes], None]) -> None:
    chance = random.Random(1)
    for seed in SEEDS:
        target(seed)
        for _ in range(150):
            target(mutate(seed, chance))

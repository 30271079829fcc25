"""Records of the revive topic. The texts are those of RocketMQ 5.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.pop.revive_records import (
    AckRecord,
    BatchAckRecord,
    CheckpointRecord,
    ReviveRecord,
    checkpoint_of,
    read_record,
    tag_of,
)

CK = (
    b'{"bm":0,"bn":"broker-a","c":"CG","d":[0,3,4],"it":60000,"n":3,"pt":1794771855026,"q":2,'
    b'"reviveTime":1794771915026,"ro":0,"so":120,"t":"TopicTest"}'
)
ACK = b'{"ao":123,"bn":"broker-a","c":"CG","pt":1794771855026,"q":2,"so":120,"t":"TopicTest"}'
BATCH = (
    b'{"ao":-1,"aol":[120,123],"bn":"broker-a","c":"CG","pt":1794771855026,"q":2,"so":120,"t":"TopicTest"}'
)
OF_POP = {
    "topic": "TopicTest", "group": "CG", "queue_id": 2, "start_offset": 120, "pop_time": 1794771855026,
    "broker_name": "broker-a",
}  # fmt: skip


def test_records_of_rocketmq_are_read_and_written_byte_for_byte() -> None:
    ck = checkpoint_of("TopicTest", "CG", 2, 120, [120, 123, 124], 1794771855026, 60000, "broker-a")
    ack = AckRecord(**OF_POP, offset=123)  # type: ignore[arg-type]
    batch = BatchAckRecord(**OF_POP, acked=(120, 123))  # type: ignore[arg-type]
    records: list[tuple[str, ReviveRecord, bytes]] = [
        ("ck", ck, CK),
        ("ack", ack, ACK),
        ("bAck", batch, BATCH),
    ]
    for tag, record, text in records:
        assert tag_of(record) == tag
        assert record.encode() == text
        assert read_record(tag, text) == record
    assert ck.unique_key == "TopicTest@2@120@CG@1794771855026@broker-a@ck"
    assert ack.unique_key == "TopicTest@2@123@CG@1794771855026@broker-a@ack"
    assert batch.unique_key == "TopicTest@2@[120, 123]@CG@1794771855026@broker-a@bAck"
    assert ck.key("") == ack.key("") == batch.key("")
    assert (ck.due_ms, ck.deliver_ms) == (1794771915026, 1794771914026)


def test_a_checkpoint_put_again_counts_its_tries() -> None:
    again = checkpoint_of("T", "G", 0, 5, [5], 1, 2, "b", tries=3)
    assert b'"rp":"3"' in again.encode()
    assert read_record("ck", again.encode()) == again


@pytest.mark.parametrize("broker", [None, "", "  "])
def test_an_acknowledgement_without_a_broker_belongs_to_its_reader(broker: str | None) -> None:
    record = BatchAckRecord(topic="T", group="G", broker_name=broker)
    assert record.key("own") == ("T", "G", 0, 0, 0, "own")


@pytest.mark.parametrize("distances", [b"", b',"d":[]', b',"d":null'])
def test_a_checkpoint_without_distances_has_neighbours(distances: bytes) -> None:
    record = read_record("ck", b'{"so":7,"n":3%b}' % distances)
    assert isinstance(record, CheckpointRecord)
    assert record.offsets == [7, 8, 9]


@given(
    st.integers(0, 2**40),
    st.sets(st.integers(0, 1 << 20), min_size=1, max_size=32),
    st.integers(0, 2**42),
    st.integers(0, 259_200_000),
)
def test_every_checkpoint_is_read_as_it_was_written(
    start: int, distances: set[int], pop_time: int, invisible: int
) -> None:
    offsets = [start + distance for distance in sorted(distances)]
    record = checkpoint_of("T", "G", 3, start, offsets, pop_time, invisible, "b")
    found = read_record("ck", record.encode())
    assert found == record
    assert found.offsets == offsets


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("other", b"{}"),
        ("ck", b"[]"),
        ("ck", b'{"so":-1,"n":1}'),
        ("ck", b'{"so":1,"n":33}'),
        ("ck", b'{"so":1,"n":-1}'),
        ("ck", b'{"so":1,"n":2,"d":[0]}'),
        ("ck", b'{"so":1,"n":1,"d":[-1]}'),
        ("ack", b'{"q":-1}'),
        ("bAck", b'{"aol":[' + b"1," * 5000 + b"1]}"),
    ],
)
def test_a_record_that_cannot_be_is_rejected(tag: str, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_record(tag, body)

"""Records of ordered pops. The text is RocketMQ's."""

from __future__ import annotations

from kerolox.protocol.json_dialect import loads
from kerolox.protocol.pop.order_record import OrderRecord, OrderTable

TEXT = (
    b'{"table":{"T@CG":{0:{"a":"attempt","cm":5,"i":60000,"l":1794771855026,"o":[120,1,2],"oc":{121:1},'
    b'"ot":{121:1794771999000},"popTime":1794771855026}}}}'
)
RECORD = OrderRecord(
    attempt="attempt", acked=5, invisible_ms=60000, saved_ms=1794771855026, distances=(120, 1, 2),
    counts={121: 1}, visible_ms={121: 1794771999000}, pop_time=1794771855026,
)  # fmt: skip


def test_the_table_of_rocketmq_is_read_and_written() -> None:
    table = OrderTable.decode(TEXT)
    assert table.table == {"T@CG": {0: RECORD}}
    assert table.encode(quote_integer_keys=False) == TEXT
    assert loads(table.encode()) == loads(TEXT)
    assert OrderTable.decode(table.encode()) == table


def test_distances_are_from_the_first_offset() -> None:
    assert RECORD.offsets == [120, 121, 122]


def test_only_messages_that_are_not_acknowledged_block() -> None:
    assert RECORD.is_blocked(1794771998999, None, 0)
    assert not RECORD.is_blocked(1794771999000, None, 0)
    assert not RECORD.is_blocked(1794771855026, "attempt", 0)
    assert RECORD.free_ms() == 1794771999000
    done = OrderRecord(distances=(120, 1), acked=3, pop_time=5, invisible_ms=60000)
    assert not done.is_blocked(6, None, 60000)
    assert done.free_ms() == 0


def test_a_record_without_an_invisible_time_takes_that_of_the_request() -> None:
    record = OrderRecord(distances=(7,), pop_time=100)
    assert record.is_blocked(120, None, 30)
    assert not record.is_blocked(130, None, 30)

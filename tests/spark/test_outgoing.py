from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kerolox.client.errors import InvalidMessage
from kerolox.client.messages import Queue
from kerolox.client.sockets.lines import Parcel
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.protocol import properties as names
from kerolox.protocol.batch import split_batch
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.java import java_hash
from kerolox.protocol.message_id import read_unique_key
from kerolox.spark.sink.effectively_once import Beginning
from kerolox.spark.sink.options import read_settings
from kerolox.spark.sink.outgoing import Encoder, java_hashes
from kerolox.spark.sink.requests import Packer
from kerolox.spark.sink.row_ids import RowIds
from kerolox.spark.sink.sink import write_rows
from kerolox.testing.threads import broker_in_thread

MAP = pa.map_(pa.string(), pa.string())
QUEUES = [Queue("t", broker, number) for broker in ("a", "b") for number in range(4)]
STARTED_MS = 1_794_800_000_000


def table(**columns: Any) -> pa.RecordBatch:
    arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def encoder(topic: str | None = "t", **more: Any) -> Encoder:
    return Encoder(RowIds("query/7", 3, STARTED_MS), topic=topic, **more)


class Sink:
    """Requests as they would be sent."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[tuple[Parcel, Queue | None]] = []
        self.packer = Packer(lambda parcel, queue: self.sent.append((parcel, queue)), **options)

    def messages(self) -> list[tuple[str, Queue | None, int, bytes, dict[str, str]]]:
        found = []
        for parcel, queue in self.sent:
            if parcel.code == RequestCode.SEND_BATCH_MESSAGE:
                items = split_batch(parcel.join())
                assert len(items) == parcel.count
            else:
                items = [(parcel.flag, parcel.body, parcel.properties.encode())]
            found += [(parcel.topic, queue, flag, body, names.unpack(packed)) for flag, body, packed in items]
        return found


def sent(batch: pa.RecordBatch, made: Encoder | None = None, **options: Any) -> Sink:
    sink = Sink(**options)
    for group in (made or encoder()).groups(
        batch, lambda topic: [each._replace(topic=topic) for each in QUEUES]
    ):
        sink.packer.add(*group)
    sink.packer.finish()
    return sink


def test_random_tables_come_out_as_what_they_say() -> None:
    rng = random.Random(7)
    words = ["", "a", "größe", "键", "x" * 60, None]
    for count in (1, 2, 50, 400):
        bodies = [rng.randbytes(rng.choice((1, 3, 200))) for _ in range(count)]
        tags = [rng.choice(words) for _ in range(count)]
        keys = [rng.choice([None, [], ["one"], ["one", "two"], ["one", None, "two"]]) for _ in range(count)]
        own = [
            rng.choice([None, [], [("a", "1")], [("a", "1"), ("ü", "2"), ("none", None), ("empty", "")]])
            for _ in range(count)
        ]
        flags = [rng.choice([None, 0, 5, -5]) for _ in range(count)]
        order = [rng.choice(words) for _ in range(count)]
        batch = table(
            body=pa.array(bodies, pa.binary()),
            tags=pa.array(tags, pa.string()),
            keys=pa.array(keys, pa.list_(pa.string())),
            properties=pa.array(own, MAP),
            flag=pa.array(flags, pa.int32()),
            ordering_key=pa.array(order, pa.string()),
        )
        for piece in (batch, batch.slice(count // 3, count // 2 + 1)):
            start = count // 3 if piece is not batch else 0
            made = sent(piece, batch_bytes=2_000).messages()
            assert len(made) == piece.num_rows
            for topic, queue, flag, body, properties in made:
                row = start + int(properties["UNIQ_KEY"][12:20], 16)
                wanted = {name: value for name, value in own[row] or [] if value}
                if tags[row]:
                    wanted["TAGS"] = tags[row]
                if keys[row]:
                    wanted["KEYS"] = " ".join(each for each in keys[row] or [] if each)
                if order[row]:
                    wanted["__SHARDINGKEY"] = order[row]
                    assert queue == QUEUES[abs(java_hash(order[row] or "")) % len(QUEUES)]
                else:
                    assert queue is None
                del properties["UNIQ_KEY"], properties["WAIT"]
                assert (topic, flag, body, properties) == ("t", flags[row] or 0, bodies[row], wanted)


def test_a_packed_text_is_as_good_as_a_map() -> None:
    pairs = [[("a", "1"), ("b", "zwei")], [], None]
    packed = ["a\x011\x02b\x01zwei\x02", "", None]
    by_map = sent(table(body=["x", "y", "z"], properties=pa.array(pairs, MAP))).messages()
    by_text = sent(table(body=["x", "y", "z"], properties=packed)).messages()
    assert by_map == by_text


NOT_NULL = {
    "list": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "map": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
}


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"])
@pytest.mark.parametrize("number", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_every_form_of_a_column_gives_the_same_messages(text: Any, number: pa.DataType, unit: str) -> None:
    """What Spark hands over depends on expressions and settings; what is sent does not."""

    def texts(*values: str | None) -> pa.Array:
        made = pa.array(values, pa.string())
        return made.dictionary_encode() if text == "dictionary" else made.cast(text)

    plain = text if isinstance(text, pa.DataType) else pa.string()
    due_ms = [1_700_000_000_000, None]
    batch = table(
        body=texts("x", "y"),
        tags=texts("t", None),
        ordering_key=texts("k", None),
        keys=pa.array([["a", "b"], None], pa.list_(plain)),
        properties=pa.array([[("p", "1")], None], pa.map_(plain, plain)),
        flag=pa.array([7, None], number),
        deliver_at=pa.array(due_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp(unit, "Europe/Berlin")),
    )
    first, second = sent(batch).messages()
    del first[4]["UNIQ_KEY"]
    assert first[2:4] == (7, b"x")
    assert first[4] == {
        "p": "1", "__SHARDINGKEY": "k", "KEYS": "a b", "TAGS": "t", "TIMER_DELIVER_MS": "1700000000000",
        "WAIT": "true",
    }  # fmt: skip
    assert second[2:4] == (0, b"y")
    assert set(second[4]) == {"UNIQ_KEY", "WAIT"}


def test_an_id_and_a_delay_among_the_properties_count() -> None:
    own = pa.array([[("UNIQ_KEY", "mine")], [("DELAY", "3"), ("p", "1")], None, [("p", "2")]], MAP)
    sink = sent(table(body=["a", "b", "c", "d"], properties=own))
    found = {body: properties for _, _, _, body, properties in sink.messages()}
    assert found[b"a"] == {"UNIQ_KEY": "mine", "WAIT": "true"}
    assert (found[b"b"]["DELAY"], found[b"b"]["p"]) == ("3", "1")
    assert {len(found[body]["UNIQ_KEY"]) for body in (b"b", b"c", b"d")} == {32}
    # A delayed message does not travel in a batch.
    assert sorted(parcel.count for parcel, _ in sink.sent) == [1, 3]
    for column, value in (("delay_level", 2), ("deliver_at", pa.scalar(5, pa.timestamp("us", "UTC")))):
        with pytest.raises(InvalidMessage, match="row 1 has a property DELAY, and a delay in a column"):
            sent(table(body=["a", "b", "c", "d"], properties=own, **{column: pa.array([value] * 4)}))
    none = table(body=["b"], properties=own.slice(1, 1), delay_level=pa.nulls(1, pa.int32()))
    assert sent(none).messages()[0][4]["DELAY"] == "3"


def test_where_every_message_is_sent_once_a_delay_is_refused_and_ids_are_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = pa.array([[("UNIQ_KEY", "mine")], [("DELAY", "3")]], MAP)
    with pytest.raises(InvalidMessage, match=r"row 1 has a property DELAY: .*Write it at-least-once"):
        sent(table(body=["a", "b"], properties=own), encoder(once=True))
    caplog.clear()
    (made,) = sent(table(body=["a"], properties=own.slice(0, 1)), encoder(once=True)).messages()
    assert made[4]["UNIQ_KEY"] != "mine"
    assert "message_ids_replaced property=UNIQ_KEY" in caplog.text


def test_the_longest_body_is_what_the_brokers_take() -> None:
    with pytest.raises(InvalidMessage, match=r"row 1 has a body of 101 bytes; at most 100 .*maxMessageSize"):
        sent(table(body=["x" * 100, "y" * 101]), encoder(message_bytes_max=100))
    large = encoder(message_bytes_max=6 << 20)
    assert [len(body) for _, _, _, body, _ in sent(table(body=["x" * (5 << 20)]), large).messages()] == [
        5 << 20
    ]


def test_what_is_never_null_and_what_always_is() -> None:
    batch = table(
        body=["x"],
        keys=pa.array([["a", "b"]], NOT_NULL["list"]),
        properties=pa.array([[("p", "1")]], NOT_NULL["map"]),
    )
    (made,) = sent(batch).messages()
    assert (made[4]["KEYS"], made[4]["p"]) == ("a b", "1")
    nothing = table(
        body=["x"],
        keys=pa.array([[]], pa.list_(pa.null())),
        **{
            name: pa.nulls(1)
            for name in ("tags", "properties", "ordering_key", "queue_id", "broker", "deliver_at", "flag")
        },
    )
    (made,) = sent(nothing).messages()
    assert set(made[4]) == {"UNIQ_KEY", "WAIT"}


def test_names_of_the_system_are_left_out_of_properties() -> None:
    own = [[("KEYS", "k"), ("TAGS", "t"), ("CLUSTER", "c"), ("TIMER_DELAY_SEC", "3"), ("mine", "1")]]
    (kept,) = sent(table(body=["x"], properties=pa.array(own, MAP))).messages()
    assert {name: value for name, value in kept[4].items() if name != "UNIQ_KEY"} == {
        "KEYS": "k", "TAGS": "t", "mine": "1", "WAIT": "true",
    }  # fmt: skip
    (column,) = sent(table(body=["x"], tags=["column"], properties=pa.array(own, MAP))).messages()
    assert column[4]["TAGS"] == "column"


def test_ids_are_unique_keys_that_say_when() -> None:
    made = [each[4]["UNIQ_KEY"] for each in sent(table(body=["x"] * 300)).messages()]
    assert len(set(made)) == 300
    assert read_unique_key(made[0]).made_at_ms(STARTED_MS + 60_000) == STARTED_MS
    assert made == [each[4]["UNIQ_KEY"] for each in sent(table(body=["x"] * 300)).messages()]
    ids = RowIds("query/7", 3, STARTED_MS)
    assert all(ids.has(key.encode()) for key in made)
    assert [ids.row(key.encode()) for key in made] == list(range(300))
    assert not RowIds("query/8", 3, STARTED_MS).has(made[0].encode())
    assert not RowIds("query/7", 4, STARTED_MS).has(made[0].encode())


def test_requests_are_filled_over_tables_and_cut_by_bytes_and_count() -> None:
    sink, made = Sink(batch_bytes=10_000, batch_count=60), encoder()
    for _ in range(5):
        for group in made.groups(table(body=["x" * 100] * 30), lambda topic: QUEUES):
            sink.packer.add(*group)
    sink.packer.finish()
    assert [parcel.count for parcel, _ in sink.sent] == [57, 57, 36]
    assert all(parcel.size_bytes <= 10_000 for parcel, _ in sink.sent)
    big = sent(table(body=["x" * 50_000, "y", "z" * 50_000]), batch_bytes=10_000)
    assert [parcel.count for parcel, _ in big.sent] == [1, 1, 1]


def test_rows_that_wait_for_more_keep_no_others_in_memory() -> None:
    sink, made = Sink(batch_bytes=10_000), encoder()
    batch = table(body=["x" * 100] * 100)
    rows = next(iter(made.groups(batch, lambda topic: QUEUES)))[2]
    sink.packer.add("t", None, rows)
    sink.packer.finish()
    *full, (last, _) = sink.sent
    assert all(piece.obj is rows.data.obj for parcel, _ in full for piece in parcel.pieces)
    assert [type(piece) for piece in last.pieces] == [bytes]


def test_what_cannot_travel_together_goes_alone_and_in_order() -> None:
    at = pa.array([None, 1_700_000_000_000_999, None, None], pa.timestamp("us", "UTC"))
    batch = table(
        body=["a", "b", "c", "d" * 5_000],
        deliver_at=at,
        delay_level=[0, None, 3, None],
        ordering_key=["k"] * 4,
    )
    sink = sent(batch, encoder(compress_from=4_096), compress_from=4_096)
    codes = [parcel.code for parcel, _ in sink.sent]
    assert codes == [RequestCode.SEND_BATCH_MESSAGE] + [RequestCode.SEND_MESSAGE_V2] * 3
    _, timed, level, large = sink.messages()
    assert timed[4]["TIMER_DELIVER_MS"] == "1700000000000"
    assert level[4]["DELAY"] == "3"
    assert len(large[3]) < 5_000
    assert sink.sent[3][0].sys_flag & 1
    retried = sent(table(body=["a", "b"]), encoder(topic="%RETRY%group"))
    assert [parcel.code for parcel, _ in retried.sent] == [RequestCode.SEND_MESSAGE_V2] * 2


def test_rows_go_to_the_topics_and_queues_they_name() -> None:
    batch = table(
        body=["1", "2", "3", "4", "5"],
        topic=["t", "other", "t", "t", "other"],
        queue_id=pa.array([1, None, 3, 1, 0], pa.int32()),
        broker=["a", None, "b", "a", "b"],
    )
    found = {
        body.decode(): (topic, queue) for topic, queue, _, body, _ in sent(batch, encoder(None)).messages()
    }
    assert found == {
        "1": ("t", Queue("t", "a", 1)),
        "2": ("other", None),
        "3": ("t", Queue("t", "b", 3)),
        "4": ("t", Queue("t", "a", 1)),
        "5": ("other", Queue("other", "b", 0)),
    }
    in_space = sent(table(body=["x"]), encoder(namespace="shop"))
    ((topic, _, _, _, properties),) = in_space.messages()
    assert (topic, properties["INSTANCE_ID"]) == ("shop%t", "shop")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["x", None]}, "1 of 2 rows have no body, row 1 the first"),
        ({"body": ["x", ""]}, "row 1 has an empty body"),
        ({"body": ["x" * (4 * 1024 * 1024 + 1)]}, "at most 4194304"),
        ({"body": ["x"], "tags": ["a\x02b"]}, "column tags holds"),
        ({"body": ["x"], "keys": ["a\x02b"]}, "column keys holds"),
        ({"body": ["x"], "properties": pa.array([[("a", "\x02")]], MAP)}, "column properties holds"),
        ({"body": ["x"], "properties": pa.array([[("a\x01", "b")]], MAP)}, "property name"),
        ({"body": ["x"], "properties": pa.array([[("a", "b" * 33_000)]], MAP)}, "at most 32767"),
        ({"body": ["x"], "queue_id": [7], "broker": ["a"]}, "no queue 7 at broker 'a' that can be written"),
        ({"body": ["x"], "queue_id": [1]}, "is there on several brokers"),
        ({"body": ["x"], "queue_id": [-1]}, "row 0: queue_id -1; expected 0 to 2147483647"),
        ({"body": ["x"], "delay_level": [-1]}, "row 0: delay_level -1; expected 0 to 2147483647"),
        ({"body": ["x", "y"], "flag": [1, 1 << 32]}, "row 1: flag 4294967296; expected -2147483648 to"),
        ({"body": ["x"], "queue_id": [(1 << 32) + 1]}, "row 0: queue_id 4294967297"),
        ({"body": ["x"], "delay_level": [1 << 40]}, "row 0: delay_level 1099511627776"),
        (
            {"body": ["x"], "delay_level": [1], "deliver_at": pa.array([1], pa.timestamp("us", "UTC"))},
            "row 0 has a delay_level and a deliver_at",
        ),
        ({"body": ["x"], "topic": ["bad topic"]}, "only letters"),
        ({"body": ["x"], "topic": pa.array([None], pa.string())}, "1 rows have no topic"),
    ],
)
def test_what_no_broker_takes_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidMessage) as told:
        sent(table(**columns), encoder(None if "topic" in columns else "t"))
    assert said in str(told.value)


def test_hashes_are_javas() -> None:
    rng = random.Random(3)
    ascii_texts = [
        "",
        "a",
        "polygenelubricants",
        *("".join(rng.choices("abcXYZ019-_", k=k)) for k in range(99)),
    ]
    for texts in (ascii_texts, ["größe", "", "键" * 40, "𝄞", *ascii_texts]):
        column = pa.array(texts).cast(pa.binary())
        assert java_hashes(column).tolist() == [java_hash(text) for text in texts]
        assert java_hashes(column.slice(2, 5)).tolist() == [java_hash(text) for text in texts[2:7]]
    spread = Counter((np.abs(java_hashes(pa.array([f"c-{n}" for n in range(999)]))) % 4).tolist())
    assert len(spread) == 4


def test_an_error_names_the_partition_and_how_to_find_the_row() -> None:
    settings = read_settings({"nameserver": "127.0.0.1:1", "topic": "t"})
    task: Any = SimpleNamespace(partitionId=lambda: 3)
    said = r"partition 3 of what is written: row 1 has an empty body.*of the first is 25769803776"
    with pytest.raises(InvalidMessage, match=said):
        write_rows(iter([table(body=["c", ""])]), settings, Beginning("q/1", 0), task, again=False)


def test_batches_fit_into_what_the_brokers_take() -> None:
    """Brokers with a smaller maxMessageSize refuse a batch whose records are longer together."""
    longest = 64 << 10
    task: Any = SimpleNamespace(partitionId=lambda: 0)
    with broker_in_thread(body_bytes_max=longest) as broker:
        broker.create_topic("small", queues=1)
        given = {"nameserver": broker.nameserver_address, "topic": "small", "maxMessageSize": str(longest)}
        rows = table(body=[f"{number}" for number in range(5000)] + ["x" * 60_000])
        sent = write_rows(iter([rows]), read_settings(given), Beginning("q/1", 0), task, again=False)
        assert sent.rows == 5001
        with SocketCluster(broker.nameserver_address) as cluster:
            assert cluster.max_offset(Queue("small", "broker-a", 0)) == 5001

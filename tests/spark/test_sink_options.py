from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kerolox.errors import OptionError

pytest.importorskip("pyspark")

from pyspark.sql import types as kinds

from kerolox.spark.sink.options import WrongColumns, check_columns, read_settings
from kerolox.spark.sink.row_columns import COLUMNS
from kerolox.spark.sink.sink import BatchSink, StreamSink, check_attempts

CLUSTER = {"nameserver": "127.0.0.1:9"}
TEXT, NUMBER, TIME, NOTHING = (
    kinds.StringType(),
    kinds.IntegerType(),
    kinds.TimestampType(),
    kinds.NullType(),
)
BODY = kinds.StructType([kinds.StructField("body", TEXT)])


def schema(**columns: kinds.DataType) -> kinds.StructType:
    return kinds.StructType([kinds.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            {"body": TEXT, "price": NUMBER},
            {},
            "price is not one of a message: body (binary or string)",
        ),
        ({"text": TEXT}, {}, "no column body"),
        ({"body": NUMBER}, {}, "column body is int; it has to be binary or string"),
        ({"body": TEXT, "deliver_at": NUMBER}, {}, "column deliver_at is int; it has to be timestamp"),
        ({"body": TEXT, "keys": kinds.ArrayType(NUMBER)}, {}, "it has to be string or array<string>"),
        ({"body": NOTHING}, {}, "column body is void; it has to be binary or string. Nothing was sent"),
        (
            {"body": TEXT, "deliver_at": kinds.TimestampNTZType()},
            {},
            "is timestamp_ntz; it has to be timestamp",
        ),
        ({"body": TEXT, "deliver_at": kinds.TimestampNTZType()}, {}, "cast(deliver_at as timestamp)"),
        (
            {"body": TEXT, "flag": kinds.DecimalType(3, 0)},
            {},
            "column flag is decimal(3,0); it has to be int",
        ),
        (
            {"body": TEXT, "properties": kinds.MapType(TEXT, NUMBER)},
            {},
            "column properties is map<string,int>; it has to be map<string,string>",
        ),
        ({"body": TEXT}, {"topic": ""}, "no topic: give the option topic"),
        ({"body": TEXT, "broker": TEXT}, {}, "give that column too"),
        ({"body": TEXT, "delay_level": NUMBER}, {"deliveryGuarantee": "effectively-once"}, "before its time"),
    ],
)
def test_columns_that_do_not_fit(
    columns: dict[str, kinds.DataType], options: dict[str, str], said: str
) -> None:
    given = {name: value for name, value in {**CLUSTER, "topic": "t", **options}.items() if value}
    with pytest.raises(WrongColumns) as told:
        check_columns(schema(**columns), read_settings(given))
    assert said in str(told.value)
    for name in COLUMNS if "not one of" in said else ():
        assert name in str(told.value)


def test_columns_that_fit_may_be_null_or_not() -> None:
    settings = read_settings({**CLUSTER, "topic": "t"})
    for null in (True, False):
        columns = {
            "body": (TEXT, kinds.BinaryType()),
            "keys": (TEXT, NOTHING, kinds.ArrayType(TEXT, null), kinds.ArrayType(NOTHING, null)),
            "properties": (TEXT, NOTHING, kinds.MapType(TEXT, TEXT, null), kinds.MapType(NOTHING, NOTHING)),
            "queue_id": (NOTHING, kinds.ByteType(), kinds.ShortType(), NUMBER, kinds.LongType()),
            "deliver_at": (NOTHING, TIME),
        }
        for name, fitting in columns.items():
            for kind in fitting:
                fields = [kinds.StructField(name, kind, null)]
                if name != "body":
                    fields.append(kinds.StructField("body", TEXT, null))
                check_columns(kinds.StructType(fields), settings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topik": "t"}, "topic, perhaps"),
        ({"kafka.bootstrap.servers": "x"}, "nameserver, the name of this option in the rocketmq sink"),
        ({"deliveryGuarantee": "exactly-once"}, "at-least-once or effectively-once"),
        ({"batchBytes": "8m"}, "at most 1048576"),
        ({"settleMs": "5"}, "effectively-once as well"),
        ({"topic": "a b"}, "only letters"),
        ({"group": "DEFAULT_PRODUCER"}, "a name of your own"),
        ({"path": "orders"}, "topic, the name of this option in the rocketmq sink"),
        ({"startingOffsets": "latest"}, "the options of the rocketmq sink are"),
        ({"accessKey": "me"}, "secretKey"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as told:
        read_settings({**CLUSTER, **options})
    assert said in str(told.value)


def test_nothing_is_replaced() -> None:
    with pytest.raises(OptionError, match="messages in a topic cannot be replaced"):
        BatchSink({**CLUSTER, "topic": "t"}, BODY, True)
    with pytest.raises(OptionError, match="messages in a topic cannot be replaced"):
        StreamSink({**CLUSTER, "topic": "t"}, BODY, True)


def test_notes_need_a_checkpoint() -> None:
    options = {**CLUSTER, "topic": "t", "deliveryGuarantee": "effectively-once"}
    with pytest.raises(OptionError, match=r"not told of spark\.sql\.streaming\.checkpointLocation"):
        StreamSink(options, BODY, False)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, ""),
        ({"spark.master": "local[2,2]", "spark.speculation": "false"}, ""),
        ({"spark.master": "yarn", "spark.stage.maxConsecutiveAttempts": "1"}, ""),
        ({"spark.speculation": "true"}, "spark.speculation = false"),
        ({"spark.master": "spark://host:7077"}, "spark.stage.maxConsecutiveAttempts = 1 on a cluster"),
        ({"spark.master": "local-cluster[2,1,1024]"}, "spark.stage.maxConsecutiveAttempts = 1 on a cluster"),
    ],
)
def test_every_row_once_has_conditions(conf: dict[str, str], said: str) -> None:
    task: Any = SimpleNamespace(getLocalProperty=conf.get)
    if not said:
        check_attempts(task)
        return
    with pytest.raises(OptionError) as told:
        check_attempts(task)
    assert said in str(told.value)

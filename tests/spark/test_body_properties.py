"""Bodies of any content: what was encoded is decoded, and bytes that were damaged have a reason or fit."""

from __future__ import annotations

import datetime
import json
import math
import os
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.spark.bodies.avro_bodies import AvroBodies
from kerolox.spark.bodies.format import BodyFormat, SchemaText
from kerolox.spark.bodies.json_bodies import JsonBodies
from kerolox.spark.bodies.protobuf_bodies import ProtobufBodies
from kerolox.spark.bodies.protobuf_files import compiled
from kerolox.spark.bodies.shapes import REASON_CHARS
from kerolox.spark.bodies.text_bodies import TextBodies
from tests.spark.test_bodies import ORDER_AVSC, ORDER_DDL, ORDER_PROTO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A row has many values, so that few rows try much; more of them are for `make fuzz`.
EXAMPLES = 200 if os.environ.get("KEROLOX_EXAMPLES") == "random" else 12
FORMATS = ("json", "avro", "protobuf", "text")


@cache
def form_of(name: str) -> BodyFormat:
    match name:
        case "json":
            return JsonBodies(ORDER_DDL)
        case "avro":
            return AvroBodies(SchemaText(json.dumps(ORDER_AVSC)))
        case "protobuf":
            return ProtobufBodies(compiled("shop.proto", {"shop.proto": ORDER_PROTO}), "Order")
    return TextBodies()


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Anything a column of this type holds, but for what is no number."""
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: maybe(field.type) for field in kind})
    if pa.types.is_map(kind):
        return st.dictionaries(values(kind.key_type), values(kind.item_type), max_size=3).map(
            lambda found: list(found.items())
        )
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-kind.scale))
    if pa.types.is_timestamp(kind):
        zone = st.just(datetime.UTC) if kind.tz else st.none()
        # Avro's millis: finer times are refused, which test_bodies tells.
        moments = st.datetimes(min_value=datetime.datetime(1, 1, 2), timezones=zone)
        return moments.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
    if pa.types.is_date(kind):
        return st.dates()
    if pa.types.is_duration(kind):
        return st.integers(-(10**15), 10**15).map(lambda n: datetime.timedelta(microseconds=n))
    if pa.types.is_boolean(kind):
        return st.booleans()
    return st.binary(max_size=8) if pa.types.is_binary(kind) else st.text(max_size=8)


def maybe(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | values(kind)


@st.composite
def orders(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A row that the schema takes: enums have their names, what must be there is there."""
    form = form_of(name)
    row = {
        field.name: draw((values if field.needed else maybe)(field.shape.type)) for field in form.shape.fields
    }
    states = st.sampled_from(["OPEN", "PAID"])
    if name == "json" and row["place"] is not None:
        row["place"]["city"] = draw(st.text(max_size=4))
    if name == "avro":
        row |= {"state": draw(states), "mark": draw(st.binary(min_size=2, max_size=2))}
        for item in [*row["items"], row["last"]]:
            if item is not None:
                item["sku"] = draw(st.text(max_size=4))
    if name == "protobuf":
        row |= {
            "state": draw(states), "states": draw(st.lists(states, max_size=3)),
            "big": abs(row["big"]) % 2**64, "whole": abs(row["whole"]) % 2**32, "nothing": None,
        }  # fmt: skip
        row[draw(st.sampled_from(["card", "cash"]))] = None
        for field in ("items", "prices", "by_number"):
            row[field] = row[field] or []  # without a value is empty
        for item in [*row["items"], *(value for _, value in row["by_number"])]:
            item["sku"] = draw(st.text(max_size=4))
    return row


def rows_of(form: BodyFormat, bodies: pa.Array) -> tuple[list[Any], dict[int, str]]:
    decoded = form.decode(bodies)
    table = pa.RecordBatch.from_arrays(decoded.columns, schema=form.schema)
    return table.to_pylist(maps_as_pydicts="strict"), decoded.reasons


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=EXAMPLES)
@given(data=st.data())
def test_what_was_encoded_is_decoded(name: str, data: st.DataObject) -> None:
    form = form_of(name)
    table = pa.array(data.draw(st.lists(orders(name), max_size=3)), pa.struct(list(form.schema)))
    bodies, reasons = form.encode(table)
    assert not reasons
    assert rows_of(form, bodies) == (table.to_pylist(maps_as_pydicts="strict"), {})


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=EXAMPLES)
@given(data=st.data())
def test_damaged_bodies_have_a_reason_or_fit(name: str, data: st.DataObject) -> None:
    form = form_of(name)
    table = pa.array([data.draw(orders(name))], pa.struct(list(form.schema)))
    (body,) = form.encode(table)[0].to_pylist()
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(at, min(len(damaged), at + 4)))
        damaged[at:end] = data.draw(st.binary(max_size=4))
    check_damaged(form, body, bytes(damaged))


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=EXAMPLES)
@given(noise=st.binary(max_size=64))
def test_noise_has_a_reason_or_fits(name: str, noise: bytes) -> None:
    form = form_of(name)
    check_damaged(form, form.encode(pa.array([], pa.struct(list(form.schema))))[0], noise)


def check_damaged(form: BodyFormat, good: Any, damaged: bytes) -> None:
    """The bodies beside it come through, and what fits can be written and read again as the same."""
    beside = [good] if isinstance(good, bytes) else []
    rows, reasons = rows_of(form, pa.array([*beside, damaged, *beside], pa.binary()))
    place = len(beside)
    assert set(reasons) <= {place}
    if reasons:
        assert 0 < len(reasons[place]) <= REASON_CHARS
        assert all(value is None for value in rows[place].values())
        return
    again, unfit = form.encode(pa.array([rows[place]], pa.struct(list(form.schema))))
    if not unfit:  # NaN is read, and JSON cannot write it
        assert told(rows_of(form, again)) == told(([rows[place]], {}))


def told(value: Any) -> str:
    """NaN is like NaN, and a map of Protobuf has no order."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{key!r}: {told(each)}" for key, each in value.items())) + "}"
    return f"[{', '.join(map(told, value))}]" if isinstance(value, list | tuple) else repr(value)


@pytest.mark.long
def test_spark_reads_the_same_json(spark: SparkSession) -> None:
    """Where ours has a row, Spark's from_json has the same; where ours has a reason, Spark's may guess."""
    import random

    rng = random.Random(17)
    schema = (
        "id BIGINT, name STRING, amount DECIMAL(10,2), n INT, x DOUBLE, paid BOOLEAN, day DATE, l ARRAY<INT>,"
        " m MAP<STRING, BIGINT>, s STRUCT<a: STRING, b: INT>"
    )
    form = JsonBodies(schema)
    choices: dict[str, list[Any]] = {
        "id": [0, -1, 2**63 - 1, -(2**63), 2**63, 1.5, "1", None],
        "name": ["", "größe", "\0x", "\n\"", "键" * 9, 1, None],
        "amount": [0, 1.25, -99999999.99, 100000000, 0.001, "x", None],
        "n": [0, 2**31 - 1, -(2**31), 2**31, None],
        "x": [0.0, -1.5, 1e300, 5e-324, 0.1, 12345678901234567890, 1, None],
        "paid": [True, False, "yes", None],
        "day": ["2026-01-31", "0001-01-01", "9999-12-31", "2026-02-30", None],
        "l": [[], [1, 2], [None], ["x"], None],
        "m": [{}, {"a": 1}, {"": -1, "b": 2}, {"a": "x"}, None],
        "s": [{}, {"a": "x", "b": 1}, {"a": None}, {"b": "x"}, None],
    }  # fmt: skip
    bodies = [
        json.dumps(
            {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.6},
            ensure_ascii=rng.random() < 0.5,
        ).encode()
        for _ in range(20_000)
    ]
    decoded = form.decode(pa.array(bodies, pa.binary()))
    ours = pa.RecordBatch.from_arrays(decoded.columns, schema=form.schema).to_pylist(maps_as_pydicts="strict")
    frame = spark.createDataFrame([(n, body) for n, body in enumerate(bodies)], "n INT, body BINARY")
    found = frame.selectExpr("n", f"from_json(CAST(body AS STRING), '{schema}') AS v").collect()
    theirs = {row.n: row.v.asDict(recursive=True) for row in found}
    fitting = [n for n in range(len(bodies)) if n not in decoded.reasons]
    assert 1000 < len(fitting) < 19_000
    for n in fitting:
        assert same(ours[n], theirs[n]), (bodies[n], ours[n], theirs[n])


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=0, abs_tol=0)
    return bool(ours == theirs)

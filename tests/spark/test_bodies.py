"""Bodies to columns and back, format by format: what fits comes back as it was, the rest has a reason."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kerolox.spark.bodies.avro_bodies import AvroBodies
from kerolox.spark.bodies.format import BodyFormat, SchemaError, SchemaText
from kerolox.spark.bodies.json_bodies import JsonBodies
from kerolox.spark.bodies.protobuf_bodies import ProtobufBodies
from kerolox.spark.bodies.protobuf_files import compiled
from kerolox.spark.bodies.text_bodies import TextBodies

ORDER_DDL = """
    id BIGINT NOT NULL, customer STRING NOT NULL, amount DECIMAL(10,2), count INT, share FLOAT, paid BOOLEAN,
    at TIMESTAMP, day DATE, local TIMESTAMP_NTZ, raw BINARY, items ARRAY<STRUCT<sku: STRING, n: INT>>,
    prices MAP<STRING, DOUBLE>, place STRUCT<city: STRING NOT NULL, zip: STRING>
"""
ORDER_SCHEMA = {
    "type": "object",
    "required": ["id", "state"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "state": {"enum": ["open", "paid"]},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "code": {"type": "string", "pattern": "^[A-Z]+$"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "n": {"type": "integer", "format": "int32"}},
            "additionalProperties": False,
        }
    },
}
ORDER_AVSC = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
            "default": None,
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": ["null", "int"]}],
                },
            },
        },
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "last", "type": ["null", "Item"]},
    ],
}
ORDER_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum State { OPEN = 0; PAID = 1; }
message Item { string sku = 1; optional int32 n = 2; }
message Nothing {}
message Order {
  int64 id = 1;
  string customer = 2;
  optional double amount = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  repeated Item items = 6;
  map<string, double> prices = 7;
  map<int32, Item> by_number = 8;
  uint64 big = 9;
  google.protobuf.Duration took = 10;
  google.protobuf.StringValue note = 11;
  bytes raw = 12;
  oneof paid_by { string card = 13; int32 cash = 14; Nothing nothing = 15; }
  repeated State states = 16;
  uint32 whole = 17;
  float share = 18;
}
"""
MOMENT = datetime.datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def shop() -> bytes:
    return compiled("shop.proto", {"shop.proto": ORDER_PROTO})


def rows_of(form: BodyFormat, *bodies: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    decoded = form.decode(pa.array(bodies, pa.binary()))
    assert all(column.type == field.type for column, field in zip(decoded.columns, form.schema, strict=True))
    table = pa.RecordBatch.from_arrays(decoded.columns, schema=form.schema)
    return table.to_pylist(maps_as_pydicts="strict"), decoded.reasons


def reason_of(form: BodyFormat, body: bytes | None) -> str:
    """The reason of a body that does not fit. Its row is null everywhere."""
    rows, reasons = rows_of(form, body)
    assert list(reasons) == [0], rows
    assert all(value is None for value in rows[0].values())
    return reasons[0]


def there_and_back(form: BodyFormat, *rows: dict[str, Any]) -> list[bytes]:
    table = pa.array(rows, pa.struct(list(form.schema)))
    bodies, reasons = form.encode(table)
    assert not reasons
    decoded = form.decode(bodies)
    assert not decoded.reasons
    assert (
        pa.StructArray.from_arrays(decoded.columns, fields=list(form.schema)).to_pylist() == table.to_pylist()
    )
    return [body for body in bodies.to_pylist() if body is not None]


# --- JSON ------------------------------------------------------------------------------------------------


def test_json_by_columns() -> None:
    form = JsonBodies(ORDER_DDL)
    body = {
        "id": 1, "customer": "ann", "amount": 12.5, "count": 3, "share": 0.5, "paid": True,
        "at": "2026-01-31T13:30:15.25+01:00", "day": "2026-01-31", "local": "2026-01-31T12:30:15",
        "raw": "AAH/", "items": [{"sku": "a", "n": 1}, {"sku": None}, None], "prices": {"x": 1, "y": 2.5},
        "place": {"city": "Rome"}, "more": {"not": "declared"},
    }  # fmt: skip
    rows, reasons = rows_of(form, json.dumps(body).encode(), b'{"customer": "bob", "id": 2}')
    assert not reasons
    assert rows[0] == {
        "id": 1, "customer": "ann", "amount": Decimal("12.50"), "count": 3, "share": 0.5, "paid": True,
        "at": MOMENT, "day": datetime.date(2026, 1, 31), "local": datetime.datetime(2026, 1, 31, 12, 30, 15),
        "raw": b"\x00\x01\xff",
        "items": [{"sku": "a", "n": 1}, {"sku": None, "n": None}, None], "prices": {"x": 1.0, "y": 2.5},
        "place": {"city": "Rome", "zip": None},
    }  # fmt: skip
    assert rows[1]["id"] == 2
    assert rows[1]["items"] is None
    assert rows[1]["place"] is None
    (first, second) = there_and_back(form, *rows)
    assert json.loads(second) == {"id": 2, "customer": "bob"}
    assert json.loads(first)["amount"] == 12.5


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"", ["empty"]),
        (None, ["no body"]),
        (b"hello", ["not valid JSON", "hello"]),
        (b'{"id": 1', ["not valid JSON", "truncated"]),
        (b'{"id": 1, "customer": "a"} {}', ["not valid JSON", "trailing"]),
        (b'{"id": 1, "customer": "\xff"}', ["UTF-8"]),
        (b"[1]", ["expected object", "array"]),
        (b'{"id": 1}', ["missing", "customer"]),
        (b'{"id": null, "customer": "a"}', ["field id", "null"]),
        (b'{"id": "7", "customer": "a"}', ["field id", "expected int", "'7'"]),
        (b'{"id": 1.5, "customer": "a"}', ["field id", "1.5"]),
        (b'{"id": 9223372036854775808, "customer": "a"}', ["field id", "9223372036854775808"]),
        (b'{"id": 1, "customer": "a", "count": 3000000000}', ["field count", "2147483647", "3000000000"]),
        (b'{"id": 1, "customer": "a", "share": 1e39}', ["field share", "1e+39"]),
        (b'{"id": 1, "customer": "a", "amount": 1.234}', ["field amount", "1.234"]),
        (b'{"id": 1, "customer": "a", "amount": 123456789.12}', ["field amount", "123456789.12"]),
        (b'{"id": 1, "customer": "a", "amount": "NaN"}', ["field amount", "NaN"]),
        (b'{"id": 1, "customer": "a", "at": "2026-01-31T12:00:00"}', ["field at", "timezone"]),
        (b'{"id": 1, "customer": "a", "day": "31.1.2026"}', ["field day", "31.1.2026"]),
        (b'{"id": 1, "customer": "a", "raw": "?"}', ["field raw", "?"]),
        (b'{"id": 1, "customer": "a", "items": [{"n": 1}, {"n": "x"}]}', ["field items[1].n", "'x'"]),
        (b'{"id": 1, "customer": "a", "place": {"zip": "1"}}', ["field place", "missing", "city"]),
        (b'{"id": 1, "customer": "a", "prices": {"x": "y"}}', ["field prices", "expected float"]),
    ],
)  # fmt: skip
def test_json_that_does_not_fit(body: bytes | None, parts: list[str]) -> None:
    told = reason_of(JsonBodies(ORDER_DDL), body)
    assert all(part in told for part in parts), told
    assert len(told) <= 300


def test_json_without_an_end() -> None:
    told = reason_of(JsonBodies(ORDER_DDL), b"[" * 100_000)
    assert "(100000 bytes)" in told
    assert "not valid JSON" in reason_of(JsonBodies("id INT"), b'{"id": 1, "more": ' + b"[" * 100_000)


def test_reasons_stand_at_their_rows() -> None:
    form = JsonBodies("id INT NOT NULL, amount DECIMAL(4,2)")
    bodies = [b'{"id": %d, "amount": 1}' % n for n in range(9)]
    bodies[0], bodies[4], bodies[8] = b"x", b'{"id": 4, "amount": 0.001}', b"{}"
    rows, reasons = rows_of(form, *bodies)
    assert sorted(reasons) == [0, 4, 8]
    assert [row["id"] for row in rows] == [None, 1, 2, 3, None, 5, 6, 7, None]


def test_json_schema() -> None:
    form = JsonBodies(json.dumps(ORDER_SCHEMA))
    good = {"id": 1, "state": "paid", "note": None, "lines": [{"sku": "a", "n": 1}], "labels": {"x": "y"}}
    rows, reasons = rows_of(form, json.dumps(good).encode())
    assert not reasons
    assert rows[0]["lines"] == [{"sku": "a", "n": 1}]
    assert rows[0]["labels"] == {"x": "y"}
    assert [str(field.type) for field in form.schema][:2] == ["int64", "string"]
    for change, part in [
        ({"id": 0}, "field id: expected int >= 1; found 0"),
        ({"state": "lost"}, "invalid enum value 'lost'"),
        ({"note": "too long"}, "length <= 5"),
        ({"code": "abc"}, "matching regex"),
        ({"code": None}, "expected str, got null"),
        ({"lines": [{"sku": "a", "x": 1}]}, "unknown field x"),
        ({"at": "yesterday"}, "field at"),
        ({"labels": {"x": 1}}, "field labels"),
    ]:
        assert part in reason_of(form, json.dumps(good | change).encode())
    there_and_back(form, rows[0])


def test_of_json_fields_with_one_name_the_last_counts() -> None:
    form = JsonBodies("id INT, prices MAP<STRING, INT>")
    rows, _ = rows_of(form, b'{"id": 1, "prices": {"x": 1, "x": 2}, "id": 3}')
    assert rows == [{"id": 3, "prices": {"x": 2}}]
    assert "field id" in reason_of(form, b'{"id": "x", "id": 3}')


def test_fields_that_are_not_declared_can_be_refused() -> None:
    body = b'{"id": 1, "more": 2}'
    assert rows_of(JsonBodies("id INT"), body)[1] == {}
    assert "more" in reason_of(JsonBodies("id INT", strict=True), body)


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ("id", "not a list of columns"),
        ("id WORD", "'word' is no type"),
        ("id INT, id INT", "declared twice"),
        ("a DECIMAL(50,2)", "38"),
        ("m MAP<INT, STRING>", "are strings"),
        ('{"type": "array"}', "$[]"),
        ('{"type": "object"}', "without properties"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "$.a"),
        (
            '{"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}',
            "oneOf",
        ),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/x"}}}', "cannot be resolved"),
        ('{"type": "object", "properties": {"a": true}}', "does not define a type"),
        ('{"type": ', "not valid JSON"),
    ],
)
def test_json_schemas_without_columns(schema: str, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        JsonBodies(schema)
    assert part in str(caught.value)


def test_json_rows_that_cannot_be_written() -> None:
    form = JsonBodies(json.dumps(ORDER_SCHEMA))
    kind = pa.struct(list(form.schema))
    rows: list[dict[str, Any]] = [
        {"id": 1, "state": "paid"},
        {"id": 2, "state": "lost"},
        {"id": 0, "state": "paid"},
    ]
    rows.append({"id": None, "state": "paid"})
    bodies, reasons = form.encode(pa.array(rows, kind))
    assert sorted(reasons) == [1, 2, 3]
    assert bodies[0].as_py() == b'{"id":1,"state":"paid"}'
    assert "'lost'" in reasons[1]
    assert ">= 1" in reasons[2]
    assert "field id: is null" in reasons[3]
    floats = JsonBodies("x DOUBLE")
    _, reasons = floats.encode(pa.array([{"x": float("nan")}, {"x": 1.0}], pa.struct(list(floats.schema))))
    assert list(reasons) == [0]
    assert "NaN" in reasons[0]
    there_and_back(floats, {"x": None})  # a column of nulls alone has nothing infinite


# --- Avro ------------------------------------------------------------------------------------------------


def avro_order(**changes: Any) -> dict[str, Any]:
    return {
        "id": 1, "customer": "ann", "amount": Decimal("12.50"), "state": "PAID", "at": MOMENT,
        "day": datetime.date(2026, 1, 31), "local": datetime.datetime(2026, 1, 31, 12, 30), "mark": b"ab",
        "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": None}], "prices": {"x": 1.5}, "last": None,
    } | changes  # fmt: skip


def by_fastavro(row: dict[str, Any], schema: Any = None) -> bytes:
    """As another implementation writes it, logical types and all."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema or ORDER_AVSC), row)
    return file.getvalue()


def test_avro() -> None:
    form = AvroBodies(SchemaText(json.dumps(ORDER_AVSC)))
    order, empty = avro_order(), avro_order(id=2, amount=None, day=None, local=None, items=[], prices={})
    bodies = [by_fastavro(order), by_fastavro(empty)]
    rows, reasons = rows_of(form, *bodies)
    assert not reasons
    assert rows == [order, empty]
    assert there_and_back(form, *rows) == bodies


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"", ["field id", "ends too early"]),
        (None, ["no body"]),
        (by_fastavro(avro_order())[:-1], ["field last", "ends too early"]),
        (by_fastavro(avro_order()) + b"xy", ["2 bytes follow"]),
        (b"\x02\x02\xff", ["field customer (at byte 1)", "utf-8"]),
        (b"\x02\x02a\x00\x08", ["field state"]),
        (b"\x02\x02a\x06", ["field amount"]),
        (b"\x02" + b"\xff" * 12, ["field customer"]),
    ],
)
def test_avro_that_does_not_fit(body: bytes | None, parts: list[str]) -> None:
    told = reason_of(AvroBodies(SchemaText(json.dumps(ORDER_AVSC))), body)
    assert all(part in told for part in parts), told


def test_avro_numbers_that_are_too_large() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    assert "field n" in reason_of(AvroBodies(SchemaText(json.dumps(schema))), b"\x80\x80\x80\x80\x80\x01")


def test_avro_schemas_evolve() -> None:
    old = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}],
    }
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "region", "type": "string", "default": "north"}],
    }
    form = AvroBodies(SchemaText(json.dumps(new)))
    objects, reasons = form.written([by_fastavro({"id": 7, "gone": "x"}, old)], SchemaText(json.dumps(old)))
    assert not reasons
    assert objects == [{"id": 7, "region": "north"}]
    other = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}
    _, reasons = form.written([by_fastavro({"id": "x"}, other)], SchemaText(json.dumps(other)))
    assert list(reasons) == [0]


@pytest.mark.parametrize("items", ['"null"', '{"type": "record", "name": "E", "fields": []}',
                                   '{"type": "fixed", "name": "F", "size": 0}'])  # fmt: skip
def test_avro_counts_without_bytes_are_refused(items: str) -> None:
    """Four bytes would be a list of two million. Also where a registry has such a schema: the field that is
    not declared is skipped element by element."""
    row = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}%s]}'
    many = SchemaText(row % f', {{"name": "a", "type": {{"type": "array", "items": {items}}}}}')
    with pytest.raises(SchemaError, match="the elements of a take no bytes"):
        AvroBodies(many)
    with pytest.raises(SchemaError, match="the elements of a take no bytes"):
        AvroBodies(SchemaText(row % "")).written([b"\x02\xff\xff\xff\x0f\x00"], many)


def test_avro_types_within_themselves_are_not_skipped() -> None:
    """fastavro has no limit for it: 100,000 bytes would end the process."""
    row = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}%s]}'
    nested = '{"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}'
    form = AvroBodies(SchemaText(row % ""))
    with pytest.raises(SchemaError, match=r"n\.next is 'N'; it is in itself"):
        form.written([b"\x02" * 100_000], SchemaText(row % f', {{"name": "n", "type": {nested}}}'))


def test_avro_counts_beyond_the_body() -> None:
    form = AvroBodies(SchemaText(json.dumps(ORDER_AVSC)))
    start = by_fastavro(avro_order(items=[], prices={}))[:-3]
    for count in (b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10"):
        for before in (b"", b"\x00"):
            assert "ends too early" in reason_of(form, start + before + count)


def test_avro_times_are_not_taken_for_others() -> None:
    def schema(kind: str) -> SchemaText:
        field = {"name": "at", "type": {"type": "long", "logicalType": kind}}
        return SchemaText(json.dumps({"type": "record", "name": "R", "fields": [field]}))

    form = AvroBodies(schema("timestamp-millis"))
    with pytest.raises(
        SchemaError, match="at was written as timestamp-micros, but is declared as timestamp-millis"
    ):
        form.written([b"\x02"], schema("timestamp-micros"))


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ('"string"', "must be a record"),
        ("{", "not valid JSON"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["string", "int"]}]}', "union"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}', "in itself"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}', "no column"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "strnig"}]}', "strnig"),
    ],
)
def test_avro_schemas_without_columns(schema: str, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        AvroBodies(SchemaText(schema))
    assert part in str(caught.value)


def test_avro_rows_that_cannot_be_written() -> None:
    form = AvroBodies(SchemaText(json.dumps(ORDER_AVSC)))
    rows = [avro_order(), avro_order(state="LOST"), avro_order(customer=None), avro_order(mark=b"abc")]
    rows.append(avro_order(at=MOMENT + datetime.timedelta(microseconds=1)))
    bodies, reasons = form.encode(pa.array(rows, pa.struct(list(form.schema))))
    assert sorted(reasons) == [1, 2, 3, 4]
    assert bodies[0].as_py() == by_fastavro(avro_order())
    assert "LOST" in reasons[1]
    assert "field customer: is null" in reasons[2]


# --- Protobuf --------------------------------------------------------------------------------------------


def test_protobuf(shop: bytes) -> None:
    form = ProtobufBodies(shop, "Order")
    order = {
        "id": 1, "customer": "ann", "amount": None, "state": "PAID", "at": MOMENT,
        "items": [{"sku": "a", "n": 0}, {"sku": "b", "n": None}], "prices": {"x": 1.5},
        "by_number": {-1: {"sku": "c", "n": None}}, "big": Decimal(2**64 - 1),
        "took": datetime.timedelta(days=-1, microseconds=1), "note": "", "raw": b"\xff", "card": None,
        "cash": 0, "nothing": None, "states": ["OPEN", "PAID"], "whole": 2**32 - 1, "share": 0.5,
    }  # fmt: skip
    (body,) = there_and_back(form, order)
    rows, _ = rows_of(form, body, b"")
    assert rows[0] == order
    assert rows[1]["id"] == 0
    assert rows[1]["at"] is None
    assert rows[1]["state"] == "OPEN"
    from google.protobuf import message_factory

    from kerolox.spark.bodies.protobuf_files import message_named

    message = message_factory.GetMessageClass(message_named(shop, "shop.Order")).FromString(body)
    assert message.big == 2**64 - 1
    assert message.WhichOneof("paid_by") == "cash"
    assert message.HasField("note")
    assert message.took.ToTimedelta() == order["took"]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (None, ["no body"]),
        (b"\xff", ["not a message shop.Order"]),
        (b"\x08\x01\x12\x05ab", ["not a message shop.Order"]),
        (b"\x12\x01\xff", ["not a message shop.Order"]),
        (b"\x20\x07", ["field state", "7 is no value of State"]),
        (b"\x82\x01\x01\x09", ["field states", "9"]),
        (b"\x2a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", ["field at"]),
    ],
)
def test_protobuf_that_does_not_fit(shop: bytes, body: bytes | None, parts: list[str]) -> None:
    told = reason_of(ProtobufBodies(shop, "shop.Order"), body)
    assert all(part in told for part in parts), told


def test_old_protobuf_keeps_nothing_out_of_sight() -> None:
    text = """syntax = "proto2"; enum State { OPEN = 1; }
        message Inner { optional State state = 1; }
        message Old { required int64 id = 1; optional State state = 2; repeated Inner inner = 3; }"""
    descriptors = compiled("old.proto", {"old.proto": text})
    form = ProtobufBodies(descriptors, "Old")
    assert rows_of(form, b"\x08\x01")[0] == [{"id": 1, "state": None, "inner": []}]
    assert "field id: is required" in reason_of(form, b"\x10\x01")
    assert "field state: 5 is no value of State" in reason_of(form, b"\x08\x01\x10\x05")
    assert "field inner.state: 5" in reason_of(form, b"\x08\x01\x1a\x02\x08\x05")
    assert rows_of(form, b"\x08\x01\x78\x01")[1] == {}
    assert "number 15" in reason_of(ProtobufBodies(descriptors, "Old", strict=True), b"\x08\x01\x78\x01")


def test_protobuf_schemas_without_columns(shop: bytes) -> None:
    def schema(text: str) -> bytes:
        return compiled("a.proto", {"a.proto": f'syntax = "proto3"; {text}'})

    with pytest.raises(SchemaError, match="several messages"):
        ProtobufBodies(shop)
    with pytest.raises(SchemaError, match="'Lost' is not in it"):
        ProtobufBodies(shop, "Lost")
    with pytest.raises(SchemaError, match="columns cannot be recursive"):
        ProtobufBodies(schema("message A { A a = 1; }"))
    with pytest.raises(SchemaError, match="may be anything"):
        ProtobufBodies(schema('import "google/protobuf/any.proto"; message A { google.protobuf.Any a = 1; }'))
    with pytest.raises(SchemaError, match=r"a\.proto"):
        schema("message A { strnig a = 1; }")


def test_protobuf_rows_that_cannot_be_written(shop: bytes) -> None:
    form = ProtobufBodies(shop, "Order")
    defaults = {"id": 1, "customer": "a", "state": "OPEN", "big": 1, "raw": b"", "whole": 1, "share": 1.0}
    rows = [defaults, {"state": "LOST"}, {"customer": None}, {"card": "c", "cash": 1}, {"whole": -1}]
    table = pa.array([defaults | row for row in rows], pa.struct(list(form.schema)))
    _, reasons = form.encode(table)
    assert sorted(reasons) == [1, 2, 3, 4]
    assert "LOST" in reasons[1]
    assert "field customer: is null" in reasons[2]
    assert "paid_by" in reasons[3]


# --- text ------------------------------------------------------------------------------------------------


def test_text() -> None:
    assert rows_of(TextBodies(), "grün".encode(), b"")[0] == [{"text": "grün"}, {"text": ""}]
    assert "not utf-8" in reason_of(TextBodies(), b"\xff")
    assert rows_of(TextBodies("latin-1 line"), b"\xfc")[0] == [{"line": "ü"}]
    there_and_back(TextBodies("gbk"), {"text": "消息"})
    _, reasons = TextBodies("latin-1").encode(
        pa.array([{"text": "消息"}], pa.struct([("text", pa.string())]))
    )
    assert list(reasons) == [0]
    with pytest.raises(SchemaError, match="unknown charset"):
        TextBodies("utf-9")

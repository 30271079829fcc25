"""Schemas of a registry: a server on a real socket that answers as Confluent's does."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kerolox.spark.bodies import registry as registries
from kerolox.spark.bodies.avro_bodies import AvroBodies
from kerolox.spark.bodies.format import SchemaText
from kerolox.spark.bodies.framed import HEAD, Framed, packed_indexes, read_indexes
from kerolox.spark.bodies.registry import (
    NotRegistered,
    Registry,
    RegistryAddress,
    RegistryError,
    RegistryUnreachable,
)

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "region", "type": "string", "default": "north"}],
}
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
WITH_ITEM = {"type": "record", "name": "W", "fields": [{"name": "item", "type": "Item"}]}
ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": json.dumps(OLD)},
    "/schemas/ids/2": {"schema": json.dumps(NEW), "schemaType": "AVRO"},
    "/schemas/ids/3": {"schema": '{"type": "object"}', "schemaType": "JSON"},
    "/schemas/ids/4": {
        "schema": json.dumps(WITH_ITEM),
        "references": [{"name": "Item", "subject": "items", "version": 1}],
    },
    "/subjects/items/versions/1": {"id": 9, "version": 1, "schema": json.dumps(ITEM)},
    "/subjects/a%2Fb-value/versions/latest": {"id": 2, "version": 2, "schema": json.dumps(NEW)},
}


class Handler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.headers.get("Authorization") != "Basic YW5uOnNlY3JldA==":
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        elif self.path in ANSWERS:
            self._answer(200, ANSWERS[self.path])
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = given.get("schemaType", "AVRO") == "AVRO" and json.loads(given["schema"]) == NEW
        if self.path.endswith("/versions") or known:
            self._answer(200, {"id": 2})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def url(asked: list[str]) -> Iterator[str]:
    handler = type("Asked", (Handler,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def registry(url: str) -> Registry:
    return Registry(RegistryAddress(url, "ann", "secret"))


def written(schema: Any, row: dict[str, Any], number: int) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    return HEAD.pack(0, number) + file.getvalue()


def test_bodies_of_two_versions_and_of_none(registry: Registry, asked: list[str]) -> None:
    form = Framed(AvroBodies(SchemaText(json.dumps(NEW))), "avro", registry, schema_id=2)
    bodies = [
        written(OLD, {"id": 1}, 1), written(NEW, {"id": 2, "region": "south"}, 2), written(OLD, {"id": 3}, 1),
        written(OLD, {"id": 4}, 77), written(OLD, {"id": 5}, 3), b"\x01abcdef", b"\x00\x00", None,
    ]  # fmt: skip
    decoded = form.decode(pa.array(bodies, pa.binary()))
    assert [column.to_pylist()[:3] for column in decoded.columns] == [[1, 2, 3], ["north", "south", "north"]]
    assert sorted(decoded.reasons) == [3, 4, 5, 6, 7]
    assert "schema 77 is not in the registry" in decoded.reasons[3]
    assert "schema 3 is one of json" in decoded.reasons[4]
    assert "does not begin with a zero byte" in decoded.reasons[5]
    form.decode(pa.array(bodies, pa.binary()))
    assert sorted(asked) == [f"/schemas/ids/{number}" for number in (1, 2, 3, 77)]  # once each
    table = pa.array([{"id": 2, "region": "south"}], pa.struct(list(form.schema)))
    assert form.encode(table)[0].to_pylist() == [bodies[1]]


def test_references_and_subjects(registry: Registry) -> None:
    found = registry.by_id(4)
    assert found.schema.references == (("Item", json.dumps(ITEM)),)
    form = AvroBodies(found.schema)
    assert form.decode(pa.array([b"\x02a"], pa.binary())).columns[0].to_pylist() == [{"sku": "a"}]
    assert registry.latest("a/b-value").id == 2
    assert registry.look_up("s", "avro", SchemaText(json.dumps(NEW))) == 2
    assert registry.register("s", "avro", SchemaText(json.dumps(OLD))) == 2
    with pytest.raises(NotRegistered, match="this schema under subject s"):
        registry.look_up("s", "avro", SchemaText(json.dumps(OLD)))


def test_errors_say_what_to_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="check schemaRegistryUser") as refused:
        Registry(RegistryAddress(url, "ann", "wrong")).by_id(1)
    assert not refused.value.retriable
    assert "wrong" not in str(refused.value)
    monkeypatch.setattr(registries, "PAUSE_S", 0.0)
    with pytest.raises(RegistryUnreachable, match="does not answer") as away:
        Registry(RegistryAddress("http://127.0.0.1:1")).by_id(1)
    assert away.value.retriable
    with pytest.raises(RegistryError, match="expected http"):
        Registry(RegistryAddress("localhost:8081"))


def test_places_of_messages() -> None:
    for indexes in ((0,), (3,), (1, 0, 200)):
        packed = packed_indexes(indexes)
        assert read_indexes(b"x" + packed + b"rest", 1) == (indexes, 1 + len(packed))
    for wrong in (b"", b"\x04\x02", b"\x01", b"\xff" * 9, b"\xff\xff\x7f"):
        with pytest.raises(ValueError, match="place"):
            read_indexes(wrong, 0)

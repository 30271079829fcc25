"""A real registry: Apicurio's, over its API that speaks Confluent's protocol."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kerolox.spark.bodies.avro_bodies import AvroBodies
from kerolox.spark.bodies.declared import Declared, read_declared
from kerolox.spark.bodies.format import SchemaText
from kerolox.spark.bodies.framed import HEAD, Framed
from kerolox.spark.bodies.frames import DECODED, ENCODED
from kerolox.spark.bodies.registry import NotRegistered, Registry, RegistryAddress, RegistryError
from tests.peers.jars import PeersUnavailable
from tests.rig.apicurio import apicurio

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record", "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "region", "type": "string", "default": "north"}],
}  # fmt: skip
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]}
WITH_ITEM = {"type": "record", "name": "W", "fields": [{"name": "item", "type": "Item"}]}
JSON_SCHEMA = {
    "type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}, "region": {"type": "string"}},
}  # fmt: skip
PROTO = """syntax = "proto3";
package shop;
message First { string x = 1; }
message Second { message Inner { int64 id = 1; string region = 2; } }
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with apicurio(tmp_path_factory.mktemp("apicurio")) as address:
            yield address
    except PeersUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def registry(url: str) -> Registry:
    return Registry(RegistryAddress(url))


def text(schema: Any) -> SchemaText:
    return SchemaText(json.dumps(schema))


def written(url: str, subject: str, form: str, schema: str, **more: str) -> Declared:
    """As a sink declares it that registers its schema."""
    given = {"bodyFormat": form, "bodySchema": schema, "schemaRegistry": url, "schemaSubject": subject}
    return read_declared(ENCODED.parse({**given, "registerSchema": "true", **more}), (), sink=True)


def read(url: str, topic: str, form: str, **more: str) -> Declared:
    return read_declared(DECODED.parse({"bodyFormat": form, "schemaRegistry": url, **more}), (topic,))


def rows(*given: dict[str, Any], form: Declared) -> pa.Array:
    return pa.array(given, pa.struct(list(form.opened().schema)))


def test_schemas_are_registered_once_and_found(registry: Registry) -> None:
    with pytest.raises(NotRegistered, match="this schema under subject found"):
        registry.look_up("found", "avro", text(OLD))
    with pytest.raises(NotRegistered, match="subject found"):
        registry.latest("found")
    first = registry.register("found", "avro", text(OLD))
    second = registry.register("found", "avro", text(NEW))
    assert first != second
    assert (
        registry.register("found", "avro", text(OLD)) == registry.look_up("found", "avro", text(OLD)) == first
    )
    assert registry.latest("found").id == second
    assert json.loads(registry.by_id(first).schema.text) == OLD
    with pytest.raises(NotRegistered, match="schema 987654"):
        registry.by_id(987654)
    with pytest.raises(RegistryError):
        registry.register("found", "avro", SchemaText("{"))


def test_bodies_of_two_versions_and_of_an_unknown_one(url: str) -> None:
    bodies = []
    for schema, row in ((OLD, {"id": 1}), (NEW, {"id": 2, "region": "south"})):
        sink = written(url, "orders-value", "avro", json.dumps(schema))
        made, reasons = sink.opened().encode(rows(row, form=sink))
        assert not reasons
        bodies += made.to_pylist()
    assert HEAD.unpack_from(bodies[0]) != HEAD.unpack_from(bodies[1])
    form = read(url, "orders", "avro").opened()
    decoded = form.decode(pa.array([*bodies, HEAD.pack(0, 987654) + b"\x02"], pa.binary()))
    assert [column.to_pylist() for column in decoded.columns] == [[1, 2, None], ["north", "south", None]]
    assert list(decoded.reasons) == [2]
    assert "987654 is not in the registry" in decoded.reasons[2]


def test_json_and_protobuf(url: str) -> None:
    row = {"id": 3, "region": "east"}
    for subject, form, schema, more in (
        ("j", "json", json.dumps(JSON_SCHEMA), {}),
        ("p", "protobuf", PROTO, {"bodyMessage": "shop.Second.Inner"}),
    ):
        sink = written(url, f"{subject}-value", form, schema, **more)
        made, reasons = sink.opened().encode(rows(row, form=sink))
        assert not reasons
        decoded = read(url, subject, form, **more).opened().decode(made)
        assert [column.to_pylist() for column in decoded.columns] == [[3], ["east"]]
    assert made[0].as_py()[5:8] == b"\x04\x02\x00"  # two places: the second message, the first within it


def test_references(url: str, registry: Registry) -> None:
    registry.register("item", "avro", text(ITEM))
    version = {"name": "Item", "subject": "item", "version": 1}
    content = json.dumps({"schema": json.dumps(WITH_ITEM), "references": [version]}).encode()
    head = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/subjects/with-item/versions", content, head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        number = json.load(answer)["id"]
    found = registry.by_id(number)
    assert [name for name, _ in found.schema.references] == ["Item"]
    form = Framed(AvroBodies(registry.latest("with-item").schema), "avro", registry)
    decoded = form.decode(pa.array([HEAD.pack(0, number) + b"\x02a"], pa.binary()))
    assert not decoded.reasons
    assert decoded.columns[0].to_pylist() == [{"sku": "a"}]

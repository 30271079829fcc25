"""Body options of a query: format, schema, registry, and the handling of bodies that do not fit.

They are resolved on the driver, including files and the registry's newest schema, and sent to the tasks: all
tasks of a query decode by one schema, even if a newer one is registered meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kerolox.client.environment import read_secret
from kerolox.errors import OptionError
from kerolox.spark.bodies.format import BodyFormat, SchemaText
from kerolox.spark.bodies.framed import Framed
from kerolox.spark.bodies.options import COLUMN, FAIL, FORMATS, PASSWORD
from kerolox.spark.bodies.registry import NotRegistered, RegistryAddress, registry_at
from kerolox.spark.bodies.schema_files import read_schema
from kerolox.spark.option_table import Values


@dataclass(frozen=True)
class Declared:
    """Declaration of the bodies of one table."""

    format: str
    schema: SchemaText
    descriptors: bytes = b""  # of Protobuf
    message: str = ""
    strict: bool = False
    into: str = ""
    keep_bad: bool = False
    registry: RegistryAddress | None = None
    schema_id: int = 0  # schema number written into bodies
    indexes: tuple[int, ...] = ()

    def opened(self) -> BodyFormat:
        """Return the codec of the bodies, which all tasks of a process share."""
        return _opened(self)


@lru_cache(maxsize=16)
def _opened(declared: Declared) -> BodyFormat:
    inner = _inner(declared)
    if declared.registry is None:
        return inner
    return Framed(
        inner,
        declared.format,
        registry_at(declared.registry),
        schema_id=declared.schema_id,
        indexes=declared.indexes,
    )


def _inner(declared: Declared) -> BodyFormat:
    match declared.format:
        case "json":
            from kerolox.spark.bodies.json_bodies import JsonBodies

            references = dict(declared.schema.references)
            return JsonBodies(declared.schema.text, references, strict=declared.strict)
        case "avro":
            from kerolox.spark.bodies.avro_bodies import AvroBodies

            return AvroBodies(declared.schema)
        case "protobuf":
            from kerolox.spark.bodies.protobuf_bodies import ProtobufBodies

            return ProtobufBodies(declared.descriptors, declared.message, strict=declared.strict)
        case "text":
            from kerolox.spark.bodies.text_bodies import TextBodies

            return TextBodies(declared.schema.text or "utf-8")
    raise OptionError("bodyFormat", declared.format, f"one of {', '.join(FORMATS)}")


def read_declared(values: Values, topics: Sequence[str] = (), *, sink: bool = False) -> Declared:
    """Resolve the options of a source or a sink with a bodyFormat. Reads files, and asks the registry.

    Raises OptionError, SchemaError and RegistryError.
    """
    form = values["bodyFormat"]
    for key in (
        "schemaRegistryUser",
        "schemaRegistryPassword",
        "schemaRegistryPasswordFile",
        "schemaSubject",
    ):
        values.need(key, "schemaRegistry")
    if form != "protobuf" and values.has("bodyMessage"):
        raise OptionError("bodyMessage", values["bodyMessage"], "bodyFormat = protobuf with it")
    address = _address(values, form)
    if address is None and form != "text" and not values.has("bodySchema"):
        raise OptionError(
            "bodySchema",
            None,
            f"the schema of {form} bodies: a file, its text, or a schemaRegistry that has it",
        )
    schema, descriptors = SchemaText(""), b""
    if values.has("bodySchema"):
        schema, descriptors = read_schema(form, values["bodySchema"])
    number, subject = 0, ""
    if address is not None and (sink or not values.has("bodySchema")):
        subject = _subject(values, topics)
        number, schema, descriptors = _of_registry(
            values, address, subject, form, schema, descriptors, sink=sink
        )
    declared = Declared(
        form,
        schema,
        descriptors,
        values["bodyMessage"] or "",
        strict=not sink and values["bodyExtraFields"] == FAIL,
        into="" if sink else values["bodyInto"] or "",
        keep_bad=not sink and values["onBadBody"] == COLUMN,
        registry=address,
        schema_id=number,
    )
    return _with_indexes(declared) if sink and address is not None else declared


def _address(values: Values, form: str) -> RegistryAddress | None:
    if not values.has("schemaRegistry"):
        return None
    if form == "text":
        raise OptionError(
            "schemaRegistry", values["schemaRegistry"], "bodyFormat json, avro or protobuf with it"
        )
    values.at_most_one("schemaRegistryPassword", "schemaRegistryPasswordFile")
    password = values["schemaRegistryPassword"]
    if values.has("schemaRegistryPasswordFile"):
        password = read_secret("schemaRegistryPasswordFile", values["schemaRegistryPasswordFile"])
    return RegistryAddress(
        values["schemaRegistry"], values["schemaRegistryUser"] or "", password or os.environ.get(PASSWORD, "")
    )


def _subject(values: Values, topics: Sequence[str]) -> str:
    if values.has("schemaSubject"):
        return str(values["schemaSubject"])
    if len(topics) != 1:
        raise OptionError(
            "schemaSubject",
            None,
            "the subject of the schema, because there is more than one topic; read topics with "
            "different schemas "
            "by one source each",
        )
    return f"{topics[0]}-value"


def _of_registry(
    values: Values,
    address: RegistryAddress,
    subject: str,
    form: str,
    schema: SchemaText,
    descriptors: bytes,
    *,
    sink: bool,
) -> tuple[int, SchemaText, bytes]:
    """Return number and text of the schema: the given one, or the newest of the subject."""
    registry = registry_at(address)
    if values.has("bodySchema"):
        if not schema.text:
            raise OptionError(
                "bodySchema", values["bodySchema"], "a .proto file: registries take no descriptor sets"
            )
        if values["registerSchema"]:
            return registry.register(subject, form, schema), schema, descriptors
        try:
            return registry.look_up(subject, form, schema), schema, descriptors
        except NotRegistered as error:
            raise NotRegistered(
                f"{error}. Set registerSchema to true, or register it by other means"
            ) from None
    try:
        found = registry.latest(subject)
    except NotRegistered as error:
        raise NotRegistered(f"{error}. Give bodySchema, or schemaSubject if it has another name") from None
    if found.format != form:
        raise OptionError("bodyFormat", form, f"{found.format}, which the schema of subject {subject} is")
    if form == "protobuf":
        from kerolox.spark.bodies.protobuf_bodies import REGISTERED
        from kerolox.spark.bodies.protobuf_files import compiled

        files = {**dict(found.schema.references), REGISTERED: found.schema.text}
        return found.id, found.schema, compiled(REGISTERED, files)
    return found.id, found.schema, b""


def _with_indexes(declared: Declared) -> Declared:
    if declared.format != "protobuf":
        return declared
    from dataclasses import replace

    from kerolox.spark.bodies.protobuf_bodies import ProtobufBodies
    from kerolox.spark.bodies.protobuf_files import indexes_of

    inner = _inner(declared)
    assert isinstance(inner, ProtobufBodies)
    return replace(declared, indexes=indexes_of(declared.descriptors, inner.message))

"""Protobuf messages made of a table in text, so that no generated code is kept.

A line is a message: ``Name: number field type; ...``. A type is ``string``, ``bytes``, ``bool``, ``int32``,
``int64``, ``float``, ``map`` (string to string) or the name of a message, followed by ``?`` (its presence is
known), ``[]`` (repeated) or ``|name`` (member of a oneof). Fields of enumerations are ``int32`` here: the
bytes are the same.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

# A message of a class that is made when the program runs.
Message = Any

_KNOWN = {"Timestamp": ".google.protobuf.Timestamp", "Duration": ".google.protobuf.Duration"}
_SCALARS = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
}


def message_classes(package: str, text: str) -> dict[str, type[Message]]:
    """Return the classes of all messages in the text, by name.

    They live in a pool of their own: a client library in the same process may define the same names.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    for line in text.strip().splitlines():
        name, _, fields = line.partition(":")
        _add_message(file.message_type.add(name=name.strip()), package, fields)
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in names
    }


def _add_message(made: descriptor_pb2.DescriptorProto, package: str, fields: str) -> None:
    oneofs: dict[str, int] = {}
    alone: list[descriptor_pb2.FieldDescriptorProto] = []  # fields whose presence is known
    for part in filter(None, map(str.strip, fields.split(";"))):
        number, name, kind = part.split()
        field = made.field.add(name=name, number=int(number))
        kind, _, oneof = kind.partition("|")
        field.label = field.LABEL_REPEATED if kind.endswith("[]") else field.LABEL_OPTIONAL
        if kind.endswith("?"):
            alone.append(field)
        kind = kind.removesuffix("[]").removesuffix("?")
        if oneof:
            if oneof not in oneofs:
                oneofs[oneof] = len(made.oneof_decl)
                made.oneof_decl.add(name=oneof)
            field.oneof_index = oneofs[oneof]
        if kind == "map":
            field.label = field.LABEL_REPEATED
            kind = _add_map(made, name)
            field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{made.name}.{kind}"
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type, field.type_name = field.TYPE_MESSAGE, _KNOWN.get(kind, f".{package}.{kind}")
    for field in alone:  # a oneof of one member, behind all others: protobuf's form of an optional field
        field.proto3_optional = True
        field.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")


def _add_map(made: descriptor_pb2.DescriptorProto, name: str) -> str:
    kind = "".join(word.capitalize() for word in name.split("_")) + "Entry"
    entry = made.nested_type.add(name=kind)
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        text = entry.field.add(name=part, number=number)
        text.type, text.label = text.TYPE_STRING, text.LABEL_OPTIONAL
    return kind

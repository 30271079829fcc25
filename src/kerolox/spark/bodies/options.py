"""Body options of sources and sinks.

Imports are kept small for queries without these options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kerolox.spark.option_table import YES_NO, Option, Values, flag, one_of, text

if TYPE_CHECKING:
    from kerolox.spark.bodies.declared import Declared

FORMATS: Final = ("json", "avro", "protobuf", "text")
FAIL: Final = "fail"
COLUMN: Final = "column"
PASSWORD: Final = "KEROLOX_SCHEMA_REGISTRY_PASSWORD"

_SHARED: Final = (
    Option("bodyFormat", one_of(*FORMATS), ", ".join(FORMATS), "format of bodies, to decode them"),
    Option("bodySchema", text, "a file on the driver, or the schema itself",
           "json: JSON Schema, or columns as in id BIGINT NOT NULL, name STRING; avro: .avsc; "
           "protobuf: .proto, "
           "or a descriptor set; text: charset and column name, by default utf-8 text"),
    Option("bodyMessage", text, "a name", "message type of the bodies in a protobuf schema"),
    Option("schemaRegistry", text, "http://host:port/path",
           "registry with Confluent's protocol; bodies begin with their schema number"),
    Option("schemaRegistryUser", text, "a name", "user of the registry"),
    Option("schemaRegistryPassword", text, "a text",
           f"password of that user; default: the variable {PASSWORD} of the driver", secret=True),
    Option("schemaRegistryPasswordFile", text, "a file on the driver", "file with only the password"),
    Option("schemaSubject", text, "a name",
           "subject whose newest schema is used without bodySchema; default: TOPIC-value"),
)  # fmt: skip

OF_SOURCES: Final = (
    *_SHARED,
    Option("bodyInto", text, "a name", "name of one struct column, instead of a column for each field"),
    Option("bodyExtraFields", one_of("ignore", FAIL), "ignore or fail",
           "action for fields of json and protobuf bodies that are not in the schema", default="ignore"),
    Option("onBadBody", one_of(FAIL, COLUMN), f"{FAIL} or {COLUMN}",
           "action for a body that does not fit: fail, or a row with body_error and the bytes in body",
           default=FAIL),
)  # fmt: skip
OF_SINKS: Final = (
    *_SHARED,
    Option("registerSchema", flag, YES_NO, "true: register bodySchema if needed; false: it must exist",
           default=False),
)  # fmt: skip


def find_declared(values: Values, topics: Sequence[str] = (), *, sink: bool = False) -> Declared | None:
    """Resolve the body options; None without bodyFormat. Reads files, and asks the registry."""
    if values["bodyFormat"] is None:
        for option in OF_SINKS if sink else OF_SOURCES:
            values.need(option.key, "bodyFormat")
        return None
    from kerolox.spark.bodies.declared import read_declared

    return read_declared(values, topics, sink=sink)

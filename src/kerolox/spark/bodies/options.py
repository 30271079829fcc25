"""The options about bodies that sources and sinks share.

What a query without them needs is little, and so is what is imported here.
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
    Option("bodyFormat", one_of(*FORMATS), ", ".join(FORMATS), "what bodies are: columns are made of them"),
    Option("bodySchema", text, "a file of the driver, or the schema itself",
           "json: JSON Schema, or columns as in id BIGINT NOT NULL, name STRING; avro: .avsc; "
           "protobuf: .proto, "
           "or a descriptor set; text: a charset, and the name of the column (utf-8 text)"),
    Option("bodyMessage", text, "a name", "which message of a protobuf schema bodies are"),
    Option("schemaRegistry", text, "http://host:port/path",
           "a registry with Confluent's protocol: bodies begin with the number of their schema in it"),
    Option("schemaRegistryUser", text, "a name", "who asks it"),
    Option("schemaRegistryPassword", text, "a text",
           f"the password of that user; else the variable {PASSWORD} of the driver", secret=True),
    Option("schemaRegistryPasswordFile", text, "a file of the driver", "that has it on its only line"),
    Option("schemaSubject", text, "a name",
           "whose newest schema counts, without a bodySchema; by default the topic's name and -value"),
)  # fmt: skip

OF_SOURCES: Final = (
    *_SHARED,
    Option("bodyInto", text, "a name", "one struct column of that name instead of a column for each field"),
    Option("bodyExtraFields", one_of("ignore", FAIL), "ignore or fail",
           "fields that json and protobuf bodies have, and the schema has not", default="ignore"),
    Option("onBadBody", one_of(FAIL, COLUMN), f"{FAIL} or {COLUMN}",
           "a body that does not fit: fail, or a row with the reason in body_error and the bytes in body",
           default=FAIL),
)  # fmt: skip
OF_SINKS: Final = (
    *_SHARED,
    Option("registerSchema", flag, YES_NO, "bodySchema is registered if it is not yet; else it must be there",
           default=False),
)  # fmt: skip


def find_declared(values: Values, topics: Sequence[str] = (), *, sink: bool = False) -> Declared | None:
    """What is said about bodies; None when they stay as they are. Reads files, and asks the registry."""
    if values["bodyFormat"] is None:
        for option in OF_SINKS if sink else OF_SOURCES:
            values.need(option.key, "bodyFormat")
        return None
    from kerolox.spark.bodies.declared import read_declared

    return read_declared(values, topics, sink=sink)

"""Schema changes of an Iceberg table for the columns of an Arrow schema.

Files identify columns by field ids, so a column keeps its values when it is renamed. Changes only add
columns, or widen them where Iceberg allows it (int to long, float to double); nothing is dropped or
narrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kerolox.pipeline.lake.iceberg_catalog import IcebergError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

FIELD_ID = b"PARQUET:field_id"
WIDER = {"int": ("long",), "float": ("double",)}

Partitions = Sequence[tuple[str, str]]  # column, transform: identity, hour, day, bucket[16], ...


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the columns of a new table, with their ids."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    try:
        return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))
    except (TypeError, ValueError) as error:
        raise IcebergError(f"Iceberg does not support these columns: {error}") from error


def partition_spec(schema: Schema, partitions: Partitions) -> PartitionSpec:
    """Return the partition spec of a new table."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform, parse_transform

    fields: list[PartitionField] = []
    for column, name in partitions:
        transform = parse_transform(name)
        told = column if isinstance(transform, IdentityTransform) else f"{column}_{name.split('[')[0]}"
        source = schema.find_field(column).field_id
        fields.append(PartitionField(source, PARTITION_FIELD_ID_START + len(fields), transform, told))
    return PartitionSpec(*fields)


def missing_columns(table: Schema, wanted: Schema) -> tuple[list[Any], list[Any]]:
    """Return the columns to add and to widen. Raises IcebergError if the schemas are incompatible."""
    there = {field.name: field for field in table.fields}
    added, widened = [], []
    for field in wanted.fields:
        known = there.get(field.name)
        if known is None:
            added.append(field)
        elif not _takes(known.field_type, field.field_type):
            if str(field.field_type) not in WIDER.get(str(known.field_type), ()):
                raise IcebergError(
                    f"column {field.name} of the table is {known.field_type}, and the new rows have "
                    f"{field.field_type}: columns can be added and widened, but not narrowed. Use another "
                    "column name, or another table"
                )
            widened.append(field)
    names = {field.name for field in wanted.fields}
    needed = [field.name for field in table.fields if field.required and field.name not in names]
    if needed:
        raise IcebergError(
            f"the table requires {', '.join(needed)} in every row, and the new rows have no such column. "
            "Make the column optional, or use another table"
        )
    return added, widened


def _takes(known: Any, given: Any) -> bool:
    """Return True if a column accepts values of a type. Ids inside maps, lists and structs are ignored."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(known, MapType) and isinstance(given, MapType):
        return _takes(known.key_type, given.key_type) and _takes(known.value_type, given.value_type)
    if isinstance(known, ListType) and isinstance(given, ListType):
        return _takes(known.element_type, given.element_type)
    if isinstance(known, StructType) and isinstance(given, StructType):
        mine = {field.name: field.field_type for field in known.fields}
        return len(mine) == len(given.fields) and all(
            field.name in mine and _takes(mine[field.name], field.field_type) for field in given.fields
        )
    return bool(known == given) or str(known) in WIDER.get(str(given), ())


def file_schema(table: Schema, schema: pa.Schema) -> pa.Schema:
    """Return the schema of files: the given columns with the table's field ids and widths."""
    by_name = {field.name: field for field in table.fields}
    return pa.schema([_with_ids(field, by_name[field.name]) for field in schema])


def _with_ids(field: pa.Field, told: Any) -> pa.Field:
    return pa.field(
        field.name, _type_with_ids(field.type, told.field_type), field.nullable, _id(told.field_id)
    )


def _type_with_ids(kind: pa.DataType, told: Any) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", _type_with_ids(kind.key_type, told.key_type), False, _id(told.key_id)),
            pa.field("value", _type_with_ids(kind.item_type, told.value_type), True, _id(told.value_id)),
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _type_with_ids(kind.value_type, told.element_type)
        return pa.list_(pa.field("element", inner, kind.value_field.nullable, _id(told.element_id)))
    if pa.types.is_struct(kind):
        by_name = {field.name: field for field in told.fields}
        return pa.struct([_with_ids(field, by_name[field.name]) for field in kind])
    wide = {"long": pa.int64(), "double": pa.float64()}.get(str(told))
    narrow = pa.types.is_integer(kind) or pa.types.is_float32(kind)
    return wide if wide is not None and narrow else kind


def _id(number: int) -> dict[bytes, bytes]:
    return {FIELD_ID: str(number).encode()}

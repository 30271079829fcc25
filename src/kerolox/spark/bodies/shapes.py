"""Conversion of Python values to Arrow columns and back, by the shape of a declared schema.

Each format decodes a body into its own kind of object (a Struct, a dictionary, a message). A shape defines
how such an object is split into columns and built from columns. Leaf values are converted by Arrow, which
rejects values that do not fit (a number too large, a decimal with more digits).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.errors import KeroloxError

SHOWN_CHARS: Final = 60  # maximum length of a value in a reason
REASON_CHARS: Final = 300


class DoesNotFit(KeroloxError):
    """A value that does not fit the schema. Its text is the reason."""


@dataclass(frozen=True)
class Field:
    """One field of a struct."""

    name: str
    shape: Shape
    take: Callable[[Any], Any]  # from the object it is part of
    needed: bool = False  # True: null is not allowed


@dataclass(frozen=True)
class Shape:
    """Kind of a value. ``type`` is the Arrow type of its column in Spark."""

    type: pa.DataType
    fields: tuple[Field, ...] = ()
    make: Callable[..., Any] | None = None  # an object, of the values of the fields in their order
    element: Shape | None = None  # of a list, and the values of a map
    key: Shape | None = None  # of a map
    raw: pa.DataType | None = None  # Arrow type of the objects, if a cast is needed
    convert: Callable[[Any], Any] | None = None  # object to what Arrow takes
    revert: Callable[[Any], Any] | None = None  # and back
    finite: bool = False  # neither NaN nor infinite can be written
    pairs: Callable[[Any], Any] | None = field(default=None)  # keys and values of a map's object
    elements_needed: bool = False

    def schema(self) -> pa.Schema:
        """Return the fields of a struct as columns."""
        return pa.schema([pa.field(each.name, each.shape.type) for each in self.fields])


def struct(fields: Sequence[Field], make: Callable[..., Any]) -> Shape:
    kind = pa.struct([pa.field(each.name, each.shape.type) for each in fields])
    return Shape(kind, tuple(fields), make)


def list_of(element: Shape, *, elements_needed: bool = False) -> Shape:
    return Shape(
        pa.list_(pa.field("element", element.type)), element=element, elements_needed=elements_needed
    )


def map_of(key: Shape, value: Shape, *, values_needed: bool = False) -> Shape:
    return Shape(
        pa.map_(key.type, value.type), element=value, key=key, pairs=_items, elements_needed=values_needed
    )


def _items(value: Any) -> Any:
    return value.items()


# --- objects to columns --------------------------------------------------------------------------------


def array_of(shape: Shape, values: list[Any]) -> pa.Array:
    """Return the column of these values. Raises an error of Arrow, or DoesNotFit, if one does not fit."""
    if shape.fields:
        return _struct_array(shape, values)
    if shape.element is not None:
        return _list_array(shape, values)
    if shape.convert is not None:
        convert = shape.convert
        values = [None if value is None else convert(value) for value in values]
    if shape.raw is None:
        return pa.array(values, shape.type)
    # Spark's times have microseconds: finer parts are cut off, without other losses.
    finer = pa.types.is_temporal(shape.raw) and str(shape.raw).startswith("timestamp[ns")
    return pa.array(values, shape.raw).cast(shape.type, safe=not finer)


def _struct_array(shape: Shape, values: list[Any]) -> pa.Array:
    there = np.fromiter((value is not None for value in values), bool, len(values))
    if there.all():
        children = [array_of(each.shape, list(map(each.take, values))) for each in shape.fields]
        return pa.StructArray.from_arrays(children, fields=list(shape.type))
    children = [
        array_of(each.shape, [None if value is None else each.take(value) for value in values])
        for each in shape.fields
    ]
    return pa.StructArray.from_arrays(children, fields=list(shape.type), mask=pa.array(~there))


def _list_array(shape: Shape, values: list[Any]) -> pa.Array:
    assert shape.element is not None
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int32)
    ends = lengths.cumsum()
    if len(ends) and int(ends[-1]) > np.iinfo(np.int32).max:
        raise DoesNotFit(f"{ends[-1]} elements in one batch")
    offsets[1:] = ends
    missing = np.fromiter((value is None for value in values), bool, len(values))
    # A null offset marks a null list.
    begins = pa.array(offsets, mask=np.append(missing, False)) if missing.any() else pa.array(offsets)
    there = [value for value in values if value is not None]
    if shape.key is None:
        elements = array_of(shape.element, list(chain.from_iterable(there)))
        return pa.ListArray.from_arrays(begins, elements, type=shape.type)
    assert shape.pairs is not None
    pairs = list(chain.from_iterable(map(shape.pairs, there)))
    keys = array_of(shape.key, [key for key, _ in pairs])
    items = array_of(shape.element, [item for _, item in pairs])
    return pa.MapArray.from_arrays(begins, keys, items, type=shape.type)


def columns_of(
    shape: Shape, objects: list[Any], names: Sequence[str] | None = None
) -> tuple[list[pa.Array], dict[int, str]]:
    """Return the columns of a struct's fields, all or those named, and the reasons of objects that do not
    fit.

    If there are reasons, the columns are invalid: call it again without those objects.
    """
    columns: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for each in shape.fields:
        if names is not None and each.name not in names:
            continue
        values = list(map(each.take, objects))
        try:
            columns.append(array_of(each.shape, values))
        except (pa.ArrowException, OverflowError, ValueError, TypeError, DoesNotFit):
            found = _unfit(each, values)
            if not found:
                raise
            for place, reason in found.items():
                reasons.setdefault(place, reason)
    return columns, reasons


def _unfit(each: Field, values: list[Any]) -> dict[int, str]:
    reasons = {}
    for place, value in enumerate(values):
        try:
            array_of(each.shape, [value])
        except (pa.ArrowException, OverflowError, ValueError, TypeError, DoesNotFit) as error:
            reasons[place] = reason(f"field {each.name}: {told(error)}; found {shown(value)}")
    return reasons


# --- columns to objects --------------------------------------------------------------------------------


def objects_of(shape: Shape, array: pa.Array, path: str = "") -> list[Any]:
    """Return the objects of a column, None for null. Raises DoesNotFit for a null that is not allowed."""
    if shape.fields:
        return _made(shape, array, path)
    if shape.element is not None:
        return _lists(shape, array, path)
    if shape.finite and pc.any(pc.invert(pc.is_finite(array)), min_count=0).as_py():
        raise DoesNotFit(f"field {path}: NaN and infinity cannot be written")
    if shape.raw is not None:
        array = array.cast(shape.raw)
        if pa.types.is_temporal(shape.raw):
            array = array.cast(pa.int32() if pa.types.is_date32(shape.raw) else pa.int64())
    values: list[Any] = array.to_pylist()
    if shape.revert is None:
        return values
    revert = shape.revert
    return [None if value is None else revert(value) for value in values]


def _made(shape: Shape, array: pa.Array, path: str) -> list[Any]:
    assert shape.make is not None
    make = shape.make
    there = None if not array.null_count else np.asarray(array.is_valid())
    children = []
    for place, each in enumerate(shape.fields):
        child = array.field(place)  # without the nulls of its parent
        name = f"{path}.{each.name}" if path else each.name
        if each.needed and child.null_count:
            lacking = child.is_null() if there is None else pc.and_(child.is_null(), pa.array(there))
            if pc.any(lacking).as_py():
                raise DoesNotFit(f"field {name}: is null, but the schema does not allow null")
        children.append(objects_of(each.shape, child, name))
    rows = zip(*children, strict=True)
    if there is None:
        return [make(*row) for row in rows]
    return [make(*row) if valid else None for row, valid in zip(rows, there, strict=True)]


def _lists(shape: Shape, array: pa.Array, path: str) -> list[Any]:
    assert shape.element is not None
    offsets = np.asarray(array.offsets)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    there = np.asarray(array.is_valid())
    bounds = (offsets - first).tolist()
    pieces = [(bounds[place], bounds[place + 1]) for place in range(len(array))]

    def inside(elements: pa.Array) -> pa.Array:
        return elements.slice(first, last - first)

    elements = inside(array.values if shape.key is None else array.items)
    if shape.elements_needed and elements.null_count:
        raise DoesNotFit(f"field {path}: has a null element, but the schema does not allow null")
    items = objects_of(shape.element, elements, f"{path}[]")
    if shape.key is None:
        return [items[a:b] if is_there else None for (a, b), is_there in zip(pieces, there, strict=True)]
    keys = objects_of(shape.key, inside(array.keys), f"{path}[]")
    return [
        dict(zip(keys[a:b], items[a:b], strict=True)) if is_there else None
        for (a, b), is_there in zip(pieces, there, strict=True)
    ]


# --- words ---------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Return a found value, shortened."""
    if isinstance(value, bytes | str) and len(value) > SHOWN_CHARS:
        unit = "bytes" if isinstance(value, bytes) else "characters"
        return f"{value[:SHOWN_CHARS]!r}... ({len(value)} {unit})"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def reason(text: str) -> str:
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 3]}..."


def told(error: BaseException) -> str:
    """Return the first line of an error, without a final period."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")

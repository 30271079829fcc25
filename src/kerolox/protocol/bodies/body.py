"""Decoding and encoding of all JSON bodies.

Decoding: :func:`kerolox.protocol.json_dialect.loads`, then ``msgspec.convert`` into the class. Where that
fails, the tree is fitted to the class with fastjson's leniency (explicit nulls are as good as
absent, numbers may be text and text numbers, enum names have any case or are ordinals, keys that are
objects may be quoted) and converted again. What still fails is a ProtocolError.

Encoding: :func:`kerolox.protocol.json_dialect.dumps`, which writes a class's members in alphabetical
order and leaves out those that are None.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Self, TypeVar, Union, get_args, get_origin

import msgspec

from kerolox.errors import ProtocolError
from kerolox.protocol.header import camel
from kerolox.protocol.json_dialect import ObjectKey, dumps, loads
from kerolox.protocol.limits import JSON_FIT_NODES_MAX

__all__ = ["Body", "MessageQueue", "WireEnum", "decode_list", "encode_list", "from_tree"]

T = TypeVar("T")


class Body(msgspec.Struct, frozen=True, kw_only=True, rename=camel):
    """A JSON object that is a body, or a part of one."""

    def encode(self, *, quote_integer_keys: bool = True, ascii_only: bool = False) -> bytes:
        """As JSON. Integer keys are bare, and text is not escaped, only for peers that ask for it."""
        return dumps(self, quote_integer_keys=quote_integer_keys, ascii_only=ascii_only)

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        """From JSON or its dialect; a ProtocolError when it is neither, or of another shape."""
        return from_tree(loads(data), cls)


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename=camel):
    """One queue of a topic on one broker. Also a key: tables of offsets are keyed by it."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


class WireEnum(StrEnum):
    """An enum of the wire. Go sends ``Clustering`` for ``CLUSTERING``: case does not count."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.__members__.get(str(value).upper())


def decode_list(data: bytes | str, item: type[T]) -> list[T]:
    """A body that is an array of these."""
    return from_tree(loads(data), list[item])  # type: ignore[valid-type]


def encode_list(items: Iterable[Body]) -> bytes:
    """A body that is an array of these."""
    return dumps(list(items))


def from_tree(tree: object, kind: type[T], fit_nodes_max: int = JSON_FIT_NODES_MAX) -> T:
    """An object of this type from what ``loads`` returned. A larger tree must fit as it is."""
    try:
        return msgspec.convert(tree, kind, strict=False)
    except _MISFITS as error:
        name = getattr(kind, "__name__", str(kind))
        if _is_larger(tree, fit_nodes_max):
            raise ProtocolError(f"{name}: {error}, and more than {fit_nodes_max} values") from error
        try:
            return msgspec.convert(_fit(tree, kind), kind, strict=False)
        except _MISFITS:
            raise ProtocolError(f"{name}: {error}") from error


def _is_larger(tree: object, nodes_max: int) -> bool:
    """Return whether a tree contains more values than a limit; stops counting there."""
    found = 1
    left: list[object] = [tree]
    while left and found <= nodes_max:
        node = left.pop()
        if isinstance(node, dict):
            found += len(node)
            left.extend(node.values())
        elif isinstance(node, list):
            found += len(node)
            left.extend(node)
    return found > nodes_max


_MISFITS = (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError)


class _Unfit(Exception):
    """The value cannot be converted to the type, and Java would have treated it as null."""


def _fit(value: Any, kind: Any) -> Any:
    """Convert a value towards a type; what cannot be converted is left for msgspec to report."""
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        choices = [choice for choice in get_args(kind) if choice is not type(None)]
        return _fit(value, choices[0]) if len(choices) == 1 and value is not None else value
    if origin is dict:
        return _fit_mapping(value, *get_args(kind)) if isinstance(value, Mapping) else value
    if origin in (list, tuple, set, frozenset):
        return _fit_items(value, get_args(kind)[0]) if isinstance(value, list | tuple) else value
    if not isinstance(kind, type):
        return value
    if issubclass(kind, msgspec.Struct):
        return _fit_struct(value, kind)
    if issubclass(kind, Enum):
        return _fit_enum(value, kind)
    return _fit_scalar(value, kind)


def _fit_struct(value: Any, kind: type[msgspec.Struct]) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = loads(value)  # an object key that was quoted
    if not isinstance(value, Mapping):
        return value
    fitted: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        member = value.get(field.encode_name)
        if member is None:
            continue
        try:
            fitted[field.encode_name] = _fit(member, field.type)
        except _Unfit:
            continue
    return fitted


def _fit_mapping(value: Mapping[Any, Any], key_kind: Any, member_kind: Any) -> dict[Any, Any]:
    fitted: dict[Any, Any] = {}
    for key, member in value.items():
        if member is None:
            continue
        try:
            fitted_key = _fit(key, key_kind)
            fitted_member = _fit(member, member_kind)
        except _Unfit:
            continue
        fitted[ObjectKey(fitted_key) if isinstance(fitted_key, dict) else fitted_key] = fitted_member
    return fitted


def _fit_items(values: Iterable[Any], kind: Any) -> list[Any]:
    fitted: list[Any] = []
    for value in values:
        if value is None:
            continue
        try:
            fitted.append(_fit(value, kind))
        except _Unfit:
            continue
    return fitted


def _fit_enum(value: Any, kind: type[Enum]) -> Any:
    members = list(kind)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(members):
            return members[value].value
        raise _Unfit
    if isinstance(value, str):
        try:
            return kind(value).value
        except ValueError:
            raise _Unfit from None
    return value


def _fit_scalar(value: Any, kind: type) -> Any:
    if kind is str and isinstance(value, bool):
        return "true" if value else "false"
    if kind is str and isinstance(value, int | float):
        return str(value)
    if kind is int and isinstance(value, bool):
        return int(value)
    if kind is int and isinstance(value, str):
        text = value.strip()
        if not text or text == "null":
            raise _Unfit
        try:
            return int(text)
        except ValueError:
            return value
    if kind is int and isinstance(value, float) and value == value and abs(value) < 2**63:
        return int(value)
    if kind is bool and isinstance(value, str):
        return value.strip().lower() == "true"
    if kind is bool and isinstance(value, int | float):
        return value != 0
    if kind is bytes and isinstance(value, list) and all(isinstance(item, int) for item in value):
        return bytes(item & 0xFF for item in value)
    return value

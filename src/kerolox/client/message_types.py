"""Type checks of message fields, with error texts.

Sending itself checks only types that would otherwise go unnoticed. Other wrong types raise somewhere in the
code, and are diagnosed here afterwards. So valid messages have no extra cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from kerolox.client.errors import InvalidMessage

SHOWN_MAX = 80


def shown(value: object) -> str:
    """Return a value and its type, for error texts."""
    text = repr(value)
    return f"{text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + '...'} ({type(value).__name__})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence)
        and not isinstance(value, bytes | bytearray | memoryview)
        and all(isinstance(each, str) for each in value)
    )


# Field → check of a value, and the expected values.
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "topic": (_is_text, "text"),
    "body": (
        lambda value: isinstance(value, bytes | str | bytearray | memoryview),
        "bytes, or text, which is sent as UTF-8",
    ),
    "tags": (_is_text, 'text: one tag, or "" for none'),
    "keys": (_are_texts, "text, or a list of texts"),
    "properties": (lambda value: isinstance(value, dict), "a dict of texts"),
    "delay_level": (_is_whole, "a whole number, 1 to 18, or 0 for none"),
    "delay": (
        lambda value: value is None or _is_number(value) or isinstance(value, timedelta),
        "a number of seconds, or a timedelta",
    ),
    "deliver_at": (
        lambda value: value is None or _is_number(value) or isinstance(value, datetime),
        "a datetime, or a number of seconds since 1970",
    ),
    "flag": (_is_whole, "a whole number"),
    "wait_stored": (lambda value: isinstance(value, bool), "True or False"),
    "unique_key": (lambda value: type(value) is str, "text"),
}


def wrong_field(message: object) -> InvalidMessage | None:
    """Return the error for a wrong type in a message; None if all types are valid."""
    from kerolox.client.messages import Message

    if not isinstance(message, Message):
        return InvalidMessage(f"{shown(message)} is not a message: expected a kerolox.Message")
    for name, (fits, expected) in _FIELDS.items():
        value = getattr(message, name)
        if not fits(value):
            return InvalidMessage(f"{name} {shown(value)}: expected {expected}")
    return None


def seconds(timeout_s: object) -> float:
    """Return a given timeout. Raises InvalidMessage unless it is a number."""
    if not _is_number(timeout_s):
        raise InvalidMessage(f"timeout_s {shown(timeout_s)}: expected a number of seconds")
    return timeout_s  # type: ignore[return-value]

"""Messages as JSON documents and table rows."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.limits import INFLATED_BLOCK_BYTES_MAX, INFLATED_BODY_BYTES_MAX
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.protocol.message import StoredMessage

KeyFilter = Annotated[str | None, typer.Option(help="Only messages with this key.")]
Begin = Annotated[
    str | None, typer.Option("--from", help="Only messages stored at this time or later, such as 2h (ago).")
]
End = Annotated[str | None, typer.Option("--to", help="Only messages stored at this time or earlier.")]
LimitOption = Annotated[int, typer.Option("--max", help="Maximum number of messages.", min=1)]

COLUMNS = ("stored", "broker", "queue", "offset", "tag", "keys", "id", "body")
BODY_SHOWN = 80
MEASURED_BYTES = 1 << 20  # limit of inflated bytes for a row; a larger body is shown with its stored size


def documents(messages: Sequence[StoredMessage]) -> list[dict[str, Any]]:
    """Return all fields of messages that are shown together.

    Bodies are inflated up to INFLATED_BLOCK_BYTES_MAX in total; later messages have a ``bodyError``.
    """
    found: list[dict[str, Any]] = []
    left = INFLATED_BLOCK_BYTES_MAX
    for message in messages:
        one = document(message, left)
        if message.sys_flag & COMPRESSED:
            left = max(0, left - len(one.get("body", "")))
        found.append(one)
    return found


def document(message: StoredMessage, inflated_max: int = INFLATED_BODY_BYTES_MAX) -> dict[str, Any]:
    """Return all fields of a message as a JSON document.

    The body is text, or ``bodyBase64`` if it is not UTF-8. If it cannot be inflated within the limit,
    ``bodyError`` has the reason and ``bodyBase64`` the body as stored.
    """
    body, failed = _plain(message, min(inflated_max, INFLATED_BODY_BYTES_MAX))
    found: dict[str, Any] = {
        "messageId": message.message_id,
        "offsetMessageId": message.offset_id,
        "topic": message.topic,
        "broker": message.broker_name or None,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "tag": message.tag or None,
        "keys": list(message.keys),
        "bornTime": message.born_timestamp,
        "bornHost": message.born_address,
        "storeTime": message.store_timestamp,
        "storeHost": message.store_address,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    if failed:
        found["bodyError"] = failed
    try:
        found["bodyBase64" if failed else "body"] = (
            base64.b64encode(body).decode() if failed else body.decode()
        )
    except UnicodeDecodeError:
        found["bodyBase64"] = base64.b64encode(body).decode()
    return found


def row(message: StoredMessage, shown: int = BODY_SHOWN) -> tuple[object, ...]:
    """Return a message as a table row."""
    return (
        time_text(message.store_timestamp),
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.tag,
        " ".join(message.keys),
        message.message_id,
        body_text(message, shown),
    )


def body_text(message: StoredMessage, shown: int) -> str:
    """Return the beginning of the body, on one line."""
    from kerolox.protocol.compression import beginning

    body, failed = _plain(message, MEASURED_BYTES)
    if failed:
        body = beginning(message.body, message.sys_flag, shown * 4 + 1)
    text = body[: shown * 4].decode("utf-8", "backslashreplace")
    line = "".join(letter if letter.isprintable() else " " for letter in text[:shown])
    if len(text) <= shown and len(body) <= shown * 4:
        return line
    size = f"{len(message.body)} bytes, compressed" if failed else f"{len(body)} bytes"
    return f"{line}... ({size})"


def _plain(message: StoredMessage, bytes_max: int) -> tuple[bytes, str]:
    """Return the inflated body and an empty text; or the body as stored and the reason of the failure."""
    from kerolox.errors import KeroloxError
    from kerolox.protocol.compression import decompress

    try:
        return decompress(message.body, message.sys_flag, bytes_max), ""
    except KeroloxError as error:
        return message.body, str(error)

"""A message, as documents and rows show it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from kerolox.cli.times import time_text

if TYPE_CHECKING:
    from kerolox.protocol.message import StoredMessage

COLUMNS = ("stored", "broker", "queue", "offset", "tag", "keys", "id", "body")
BODY_SHOWN = 80


def document(message: StoredMessage) -> dict[str, Any]:
    """All fields of a message, for programs. The body is text, or ``bodyBase64`` when it is not UTF-8."""
    body = plain_body(message)
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
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["bodyBase64"] = base64.b64encode(body).decode()
    return found


def row(message: StoredMessage, shown: int = BODY_SHOWN) -> tuple[object, ...]:
    """A message as one row of a table."""
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
    """The beginning of the body, on one line."""
    body = plain_body(message)
    text = body[: shown * 4].decode("utf-8", "backslashreplace")
    line = "".join(letter if letter.isprintable() else " " for letter in text[:shown])
    return line if len(text) <= shown and len(body) <= shown * 4 else f"{line}... ({len(body)} bytes)"


def plain_body(message: StoredMessage) -> bytes:
    """The body decompressed; as it is stored when that fails."""
    from kerolox.errors import KeroloxError

    try:
        return message.plain_body()
    except KeroloxError:
        return message.body

"""Half messages, which are stored under a separate topic until their transaction ends.

The functions here convert messages, without state or waiting. The forms are those of RocketMQ, see 9.1, 9.2
and 9.5 of its store's description: a broker of RocketMQ can continue with half messages of kerolox, and the
reverse.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kerolox.broker.write.pending_message import PendingMessage
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, with_transaction_state
from kerolox.protocol.message import StoredMessage
from kerolox.store.log.commit_log import Place

QUEUE = 0  # half messages have one queue only

_AT_TRANSACTION_ID = packed.marker(packed.TRANSACTION_ID)
_AT_REAL_TOPIC = packed.marker(packed.REAL_TOPIC)
_AT_REAL_QUEUE = packed.marker(packed.REAL_QUEUE_ID)
_AT_CHECKS = packed.marker(packed.TRANSACTION_CHECK_TIMES)
_AT_IMMUNITY = packed.marker(packed.CHECK_IMMUNITY_S)
_AT_PRODUCER_GROUP = packed.marker(packed.PRODUCER_GROUP)
_AT_FIRST_OFFSET = packed.marker(packed.TRANSACTION_PREPARED_QUEUE_OFFSET)

_INT64 = 1 << 63


def is_half(pending: PendingMessage) -> bool:
    """Return whether a sent message waits for the end of its transaction.

    Clients before 4.6.1 send a failed transactional message back with the mark still on it; that message is
    only to be delivered again after a delay.
    """
    mark = packed.find(pending.properties, packed.AT_TRANSACTION_PREPARED)
    if mark is None or mark.lower() != b"true":
        return False
    delay = _number(packed.find(pending.properties, packed.AT_DELAY)) or 0
    return not (pending.reconsume_times > 0 and delay > 0)


# Destination of a half message: topic, queue, and its properties there.
Home = tuple[str, int, bytes]


def park(pending: PendingMessage) -> Home:
    """Turn a pending message into a half message."""
    topic, queue_id, properties = pending.topic, pending.queue_id, pending.properties
    # The first offset is removed, too: otherwise the end of the half message at that offset would end this
    # one.
    for mark in (_AT_TRANSACTION_ID, _AT_REAL_TOPIC, _AT_REAL_QUEUE, _AT_FIRST_OFFSET):
        properties = packed.remove(properties, mark)
    if properties and not properties.endswith(packed.VALUE_END):
        properties += packed.VALUE_END
    unique = packed.find(properties, packed.AT_UNIQUE_KEY)
    own = b"" if unique is None else b"__transactionId__\x01%b\x02" % unique
    pending.properties = b"%bREAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02%b" % (
        properties, topic.encode(), queue_id, own,
    )  # fmt: skip
    pending.topic, pending.queue_id = reserved.HALF_TOPIC, QUEUE
    pending.sys_flag = with_transaction_state(pending.sys_flag, TRANSACTION_NONE)
    pending.is_parked = True
    return topic, queue_id, properties + own


@dataclass(slots=True)
class Open:
    """State of a half message that the end of its transaction needs."""

    topic: str  # real topic
    queue_offset: int
    physical_offset: int
    producer_group: str
    born_timestamp: int
    immunity_s: bytes | None  # time that its producer asked for, in seconds
    pending: PendingMessage | None  # the message for consumers; None: the half message names no destination

    def is_too_late(self, now_ms: int, usual_ms: int) -> bool:
        """True if the producer must wait to be asked, because the time it asked for is over."""
        if self.immunity_s is None:
            return False
        return now_ms - self.born_timestamp > max((_number(self.immunity_s) or 0) * 1000, usual_ms)


def opened(half: StoredMessage) -> Open:
    """Return the state of a half message that was read back."""
    return Open(
        real_topic(half),
        half.queue_offset,
        half.physical_offset,
        producer_group(half),
        half.born_timestamp,
        packed.find(half.packed_properties, _AT_IMMUNITY),
        committed(half),
    )


def just_parked(pending: PendingMessage, home: Home, place: Place) -> Open:
    """Return the state of a half message that was just stored. Its pending message becomes the message for
    consumers."""
    properties = pending.properties
    group = packed.find(properties, _AT_PRODUCER_GROUP)
    pending.topic, pending.queue_id, pending.properties = home
    pending.sys_flag |= TRANSACTION_COMMIT
    pending.prepared_offset = pending.parked_at = place[0]
    pending.is_parked = False
    return Open(
        home[0],
        place[1],
        place[0],
        "" if group is None else group.decode("utf-8", "replace"),
        pending.born_timestamp,
        packed.find(properties, _AT_IMMUNITY),
        pending,
    )


def committed(half: StoredMessage) -> PendingMessage | None:
    """Return the message for consumers. As in 5.5 it keeps the properties of the half message, except its
    destination; earlier versions kept that, too. None if no destination is named."""
    queue_id = _number(packed.find(half.packed_properties, _AT_REAL_QUEUE))
    topic = real_topic(half)
    if not topic or queue_id is None or queue_id < 0:
        return None
    properties = packed.remove(packed.remove(half.packed_properties, _AT_REAL_TOPIC), _AT_REAL_QUEUE)
    pending = PendingMessage.of(half, topic, queue_id, properties)
    pending.sys_flag = with_transaction_state(half.sys_flag, TRANSACTION_COMMIT)
    pending.prepared_offset = half.physical_offset
    return pending


def checked(half: StoredMessage) -> PendingMessage:
    """Return a copy of the half message with one more check counted. (RocketMQ loses its flag here.)"""
    pending = _again(half, reserved.HALF_TOPIC)
    pending.properties = packed.replace(
        pending.properties, packed.TRANSACTION_CHECK_TIMES, str(checks(half) + 1)
    )
    return pending


def put_off(half: StoredMessage) -> PendingMessage:
    """Return a copy of the half message that is put back because it is too early to ask.

    The messages behind it must not wait. Its producer knows it by its first offset, so the copy names that
    offset.
    """
    pending = _again(half, reserved.HALF_TOPIC)
    if first_offset(half) is None:
        pending.properties = packed.replace(
            pending.properties, packed.TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset)
        )
    return pending


def given_up(half: StoredMessage) -> PendingMessage:
    """Return the copy of a half message that was checked too often, to be kept for inspection."""
    return _again(half, reserved.CHECKED_TOO_OFTEN_TOPIC)


def resumed(abandoned: StoredMessage) -> PendingMessage:
    """Return an abandoned half message, to be checked again from the beginning."""
    pending = _again(abandoned, reserved.HALF_TOPIC)
    pending.properties = packed.replace(pending.properties, packed.TRANSACTION_CHECK_TIMES, "0")
    return pending


def moved(half: StoredMessage) -> PendingMessage | None:
    """Return a half message in the form sent to another broker, where it starts anew. None if it names no
    destination."""
    pending = committed(half)
    if pending is None:
        return None
    for mark in (_AT_TRANSACTION_ID, _AT_FIRST_OFFSET):
        pending.properties = packed.remove(pending.properties, mark)
    pending.properties = packed.replace(pending.properties, packed.TRANSACTION_PREPARED, "true")
    pending.is_parked = True
    return pending


def _again(half: StoredMessage, topic: str) -> PendingMessage:
    pending = PendingMessage.of(half, topic, QUEUE, half.packed_properties)
    pending.is_parked = True
    return pending


# --- properties of a half message -----------------------------------------------------------------------


def real_topic(half: StoredMessage) -> str:
    return _text(half, _AT_REAL_TOPIC)


def real_queue(half: StoredMessage) -> int:
    return _number(packed.find(half.packed_properties, _AT_REAL_QUEUE)) or 0


def producer_group(half: StoredMessage) -> str:
    return _text(half, _AT_PRODUCER_GROUP)


def checks(half: StoredMessage) -> int:
    """Return the number of check-backs; -1, as in RocketMQ, if it is unreadable."""
    found = packed.find(half.packed_properties, _AT_CHECKS)
    if found is None:
        return 0
    number = _number(found)
    return -1 if number is None else number


def first_offset(half: StoredMessage) -> int | None:
    """Return the first offset of the message that this copy was made of, if it was put off."""
    return _number(packed.find(half.packed_properties, _AT_FIRST_OFFSET))


def has_immunity(half: StoredMessage) -> bool:
    return packed.find(half.packed_properties, _AT_IMMUNITY) is not None


def immunity_ms(half: StoredMessage, usual_ms: int) -> int:
    """Return the age at which the producer is asked: its own wish, if it is readable."""
    wish_s = _number(packed.find(half.packed_properties, _AT_IMMUNITY))
    return usual_ms if wish_s is None or wish_s == -1 else wish_s * 1000


class Fate(enum.Enum):
    """Decision of a round about an open half message."""

    WAIT = "wait"  # too young; so are the later ones
    PUT_OFF = "put off"
    CHECK = "check"
    GIVE_UP = "give up"


def judge(
    half: StoredMessage, *, round_ms: int, now_ms: int, usual_ms: int, checks_max: int, keep_ms: int
) -> Fate:
    """Decide on a half message. ``round_ms`` is the start of the round, ``usual_ms`` the age for a check
    without a wish."""
    age_ms = now_ms - half.born_timestamp
    if checks(half) >= checks_max or age_ms > keep_ms:
        return Fate.GIVE_UP
    if half.store_timestamp >= round_ms:
        return Fate.WAIT
    if has_immunity(half):
        return Fate.PUT_OFF if age_ms <= immunity_ms(half, usual_ms) else Fate.CHECK
    # Born in the future: a clock is wrong, and the age is unknown.
    return Fate.WAIT if 0 <= age_ms <= usual_ms else Fate.CHECK


def _text(half: StoredMessage, mark: bytes) -> str:
    found = packed.find(half.packed_properties, mark)
    return "" if found is None else found.decode("utf-8", "replace")


def _number(text: bytes | None) -> int | None:
    """Parse a number as Java does; None if it is invalid."""
    if text is None or len(text) > 20 or not text.lstrip(b"+-").isdigit() or text[:2] in _TWO_SIGNS:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -_INT64 <= number < _INT64 else None


_TWO_SIGNS = (b"++", b"--", b"+-", b"-+")

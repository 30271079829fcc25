"""Parking of messages with a delivery time under the timer's topic until they are due.

The time is rounded down to the precision, and an exact multiple by one step, because the messages of a moment
are delivered when the clock has passed it. Recall and POP depend on that.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

from kerolox.broker.options import BrokerOptions
from kerolox.broker.write.pending_message import PendingMessage, real_queue
from kerolox.clock import Clock
from kerolox.errors import Refused
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.codes import ResponseCode
from kerolox.store.log.commit_log import TRANSACTION_BITS, TRANSACTION_COMMIT

_AT_OUT = packed.marker(packed.TIMER_OUT_MS)
_AT_DELETE = packed.marker(packed.TIMER_DELETE_UNIQUE_KEY)
_DELETE_WORD = _AT_DELETE[1:]
_ASKING = (packed.AT_TIMER_DELAY_S, packed.AT_TIMER_DELAY_MS, packed.AT_TIMER_DELIVER_MS)
_WORDS = tuple((mark, mark[1:]) for mark in _ASKING)
_OWN = (_AT_OUT, packed.marker(packed.REAL_TOPIC), packed.marker(packed.REAL_QUEUE_ID))
_LONG_MAX = 2**63 - 1
_HANDLE_VERSION = "v1"


class TimerSends:
    """Parking of pending messages. ``waiting_at`` returns the number of messages that wait for a time."""

    def __init__(self, options: BrokerOptions, clock: Clock, waiting_at: Callable[[int], int]) -> None:
        self._options = options
        self._clock = clock
        self._waiting_at = waiting_at

    def park(self, pending: PendingMessage) -> None:
        """Turn a pending message with a delivery time into one of the timer's topic. Raises to reject it."""
        if b"TIMER_" not in pending.properties:
            return
        deletes = packed.find(pending.properties, _AT_DELETE) if _DELETE_WORD in pending.properties else None
        if deletes is not None:
            self._check_deletion(pending.topic, deletes)
        if (
            pending.sys_flag & TRANSACTION_BITS not in (0, TRANSACTION_COMMIT)
            or pending.topic == reserved.TIMER_TOPIC
        ):
            return
        properties = pending.properties
        # Most messages have none of these properties; this check is fast.
        if packed.AT_DELAY[1:] in properties and (delay_level(properties) or 0) > 0:
            for mark in _ASKING:
                properties = packed.remove(properties, mark)
            pending.properties = properties
            return
        has_out = _AT_OUT[1:] in properties
        if has_out and packed.find(properties, _AT_OUT) is not None:
            return
        asked = [packed.find(properties, mark) if word in properties else None for mark, word in _WORDS]
        if not any(asked):
            return
        options = self._options
        if not options.timer_wheel:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        now_ms = self._clock.wall_ms()
        deliver_ms = self._deliver_ms(asked, now_ms)
        if deliver_ms <= now_ms:
            if deletes is not None:
                raise self._illegal()
            return
        out_ms = rounded(deliver_ms, options.timer_precision_ms)
        if pending.parked_at < 0:  # limits apply to new sends; a committed message was accepted before
            if deliver_ms - now_ms > options.timer_delay_s_max * 1000:
                raise self._illegal()
            self._check_crowd(out_ms)
        if has_out or b"REAL_" in properties:
            for mark in _OWN:
                properties = packed.remove(properties, mark)
        properties = packed.append(
            properties, b"TIMER_OUT_MS\x01%d\x02%b" % (out_ms, real_queue(pending.topic, pending.queue_id))
        )
        if not pending.topic.startswith(reserved.RETRY_PREFIX):
            unique = packed.find(properties, packed.AT_UNIQUE_KEY) or b""
            pending.recall_handle = make_handle(
                pending.topic, options.broker_name, out_ms + 1, unique.decode("utf-8", "replace")
            )
        pending.properties = properties
        pending.topic = reserved.TIMER_TOPIC
        pending.queue_id = 0

    def _check_deletion(self, topic: str, key: bytes) -> None:
        """Reject a recall, unless recalls are allowed and the recalled message has the same topic, since the
        sender may have no right to publish to others."""
        # A recall already parked on its way to a time far ahead, or until its commit: it passes here again.
        if topic in (reserved.TIMER_TOPIC, reserved.HALF_TOPIC):
            return
        if not self._options.recall:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{packed.TIMER_DELETE_UNIQUE_KEY}: recall failed, operation is forbidden: "
                "recallMessageEnable is false",
            )
        if not is_of_topic(key, topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{packed.TIMER_DELETE_UNIQUE_KEY} = {key[:200]!r}: recall failed, topic not match: expected "
                f"{topic}+ and the unique key of the message to take back",
            )

    def _deliver_ms(self, asked: list[bytes | None], now_ms: int) -> int:
        """Return the delivery time of a message. Sums wrap around, as in Java."""
        seconds, millis, moment = asked
        if seconds is not None:
            return _wrapped(now_ms + _wrapped(self._long(seconds) * 1000))
        if millis is not None:
            return _wrapped(now_ms + self._long(millis))
        return self._long(moment or b"")

    def _long(self, text: bytes) -> int:
        digits = text[1:] if text[:1] in (b"+", b"-") else text
        if digits.isdigit() and len(digits) < 100 and -_LONG_MAX - 1 <= (number := int(text)) <= _LONG_MAX:
            return number
        raise self._illegal()

    def _check_crowd(self, out_ms: int) -> None:
        limit = self._options.timer_slot_messages_max
        waiting = self._waiting_at(out_ms)
        if waiting <= limit:
            return
        if waiting < limit * 2 and random.randrange(1000) <= 1000 * (waiting - limit) / (limit + 0.1):
            return  # as in RocketMQ, which thus rejects fewer as their number grows
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {limit * 2} or the current value is "
            f"greater than {limit} and less than {limit * 2}, trigger random flow control",
        )

    def _illegal(self) -> Refused:
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._options.timer_delay_s_max * 1000}ms; or if set del msg, the delay time should be bigger "
            "than the current time",
        )


def delay_level(properties: bytes) -> int | None:
    """Return the delay level of a message; None if it is not a number."""
    text = packed.find(properties, packed.AT_DELAY)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def is_of_topic(key: bytes, topic: str) -> bool:
    """Return whether the key of a deletion names a message of this topic. No topic has a + in its name."""
    return key.startswith(b"%b+" % topic.encode())


def rounded(deliver_ms: int, precision_ms: int) -> int:
    """Return the moment whose messages are delivered at this time."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


# --- recall handles --------------------------------------------------------------------------------


def make_handle(topic: str, broker_name: str, time_ms: int, unique_key: str) -> str:
    words = (_HANDLE_VERSION, topic, broker_name, str(time_ms), unique_key)
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def read_handle(handle: str) -> tuple[str, str, str, str] | None:
    """Return topic, broker, time as text and unique key; None for an invalid handle."""
    try:
        data = base64.b64decode(
            handle.rstrip("=") + "=" * (-len(handle.rstrip("=")) % 4), b"-_", validate=True
        )
        words = data.decode("utf-8", "replace").split(" ")
    except ValueError:
        return None
    if len(words) < 5 or words[0] != _HANDLE_VERSION:
        return None
    return words[1], words[2], words[3], words[4]

"""Meaning of the answer to a pull, and the steps of a consumer after a failed one. No I/O.

====================================  =========  =======================  ===============================
answer                                meaning    a consumer               a reader of a range
====================================  =========  =======================  ===============================
SUCCESS                               FOUND      takes the messages       takes the messages
PULL_NOT_FOUND, or                    NOTHING    continues at the next    continues there; without
PULL_RETRY_IMMEDIATELY with a later              offset of the answer     progress: OffsetGone
offset
PULL_RETRY_IMMEDIATELY, same offset   REFERRED   asks another replica,    OffsetGone
                                                 or again after a pause
PULL_OFFSET_MOVED, within the queue   RESET      continues at the new     asks again: the progress of the
                                                 offset of the group      group does not concern a reader
PULL_OFFSET_MOVED, outside            GONE       continues where the      OffsetGone
                                                 queue begins or ends
any other code, or no answer          an error   pulls the same offset    pulls the same offset again, as
                                                 again, see PULL_RULES    ``retries.QUEUES`` allows
====================================  =========  =======================  ===============================

An error never changes the offset, so no message is skipped.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from kerolox.client.errors import OffsetGone, failure
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pull import PullAnswer

# Successful response codes of a pull, including the absence of a message.
PULL_CODES: Final = frozenset({
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip

FLOW_CONTROL_PAUSE_S: Final = 0.02
EARLY_PAUSE_S: Final = 0.2


class Meaning(Enum):
    """Meaning of the answer to a pull."""

    FOUND = auto()
    NOTHING = auto()
    REFERRED = auto()
    RESET = auto()
    GONE = auto()


class Pulled(NamedTuple):
    """Result of a pull: records as stored by the broker, and the next offset."""

    meaning: Meaning
    block: bytes  # or a memoryview, when it is long
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_id: int  # broker id of the replica to pull from next

    def resets_progress(self, count: int, progress: int) -> bool:
        """Return True if the group was set back behind ``count`` messages that are being processed.

        ``progress``: offset of the first of them. They must not be saved as progress any more.
        """
        return self.meaning in (Meaning.RESET, Meaning.GONE) and count > 0 and self.next_offset < progress


def read_pull(answer: Command, asked: int, address: str, code: int = RequestCode.PULL_MESSAGE) -> Pulled:
    """Return the result of a pull from the offset ``asked``. Raises a subclass of RequestFailed."""
    if answer.code not in PULL_CODES:
        raise failure(answer, address=address, code=code)
    header = answer.header(PullAnswer)
    meaning, block = Meaning.NOTHING, b""
    if answer.code == ResponseCode.SUCCESS:
        meaning, block = Meaning.FOUND, answer.body
    elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
        is_there = header.min_offset <= asked < header.max_offset
        meaning = Meaning.RESET if is_there else Meaning.GONE
    elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and header.next_begin_offset == asked:
        meaning = Meaning.REFERRED
    return Pulled(
        meaning,
        block,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )


def within_range(pulled: Pulled, queue: Queue, asked: int) -> Pulled | None:
    """Return the result for a reader of a range; None to ask again. Raises OffsetGone."""
    if pulled.meaning is Meaning.RESET:
        return None
    if pulled.meaning is Meaning.GONE or (
        pulled.meaning is not Meaning.FOUND and pulled.next_offset <= asked
    ):
        raise OffsetGone(queue, asked, pulled.min_offset, pulled.max_offset)
    return pulled


class PullRule(NamedTuple):
    """Steps of a consumer after a failed pull. The offset stays."""

    pause_s: float | None = None  # None: ``error_pause_s`` of the options, or until the route changes
    is_failure: bool = True  # reported, and the replica is avoided if another one may serve the queue
    introduce: bool = False  # send a heartbeat: the broker does not know the subscription
    look_for_leader: bool = False  # if the leader failed, another one may be elected
    refresh_route: bool = False


_EARLY: Final = PullRule(EARLY_PAUSE_S, is_failure=False, introduce=True)
_AWAY: Final = PullRule(look_for_leader=True, refresh_route=True)

# By response code; None: no response.
PULL_RULES: Final[dict[int | None, PullRule]] = {
    None: _AWAY,
    ResponseCode.GO_AWAY: _AWAY,
    ResponseCode.FLOW_CONTROL: PullRule(FLOW_CONTROL_PAUSE_S, is_failure=False),
    # The broker was restarted, or the heartbeat with the subscription has not arrived yet.
    ResponseCode.SUBSCRIPTION_NOT_EXIST: _EARLY,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _EARLY,
    ResponseCode.FILTER_DATA_NOT_LATEST: _EARLY,
    # The broker cannot use the filter, or has lost the subscription.
    ResponseCode.FILTER_DATA_NOT_EXIST: PullRule(introduce=True),
    ResponseCode.TOPIC_NOT_EXIST: PullRule(refresh_route=True),
}
_OTHER: Final = PullRule()


def pull_rule(error: KeroloxError) -> PullRule:
    """Return the steps of a consumer after this error."""
    return PULL_RULES.get(getattr(error, "response_code", None), _OTHER)

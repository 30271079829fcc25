"""An answer, and the events that make it true. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.controller.state import StateEvent
from kerolox.front.requests import Answer


class Decision(NamedTuple):
    """The answer, which holds when the events are on the disk."""

    answer: Answer
    events: tuple[StateEvent, ...] = ()


def refused(code: int, remark: str) -> Decision:
    return Decision(Answer(code=code, remark=remark))


def unknown(group: str, id: int) -> str:
    return (
        f"broker {group!r} with id {id} is not known here: the controller has another state than the one "
        "that gave this id. Restore that state; or let the broker ask for a new id, without its file "
        "brokerIdentity"
    )

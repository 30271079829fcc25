"""An answer and the events to commit before it. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.controller.state import StateEvent
from kerolox.front.requests import Answer


class Decision(NamedTuple):
    """An answer; it is sent once the events are on disk."""

    answer: Answer
    events: tuple[StateEvent, ...] = ()


def refused(code: int, remark: str) -> Decision:
    return Decision(Answer(code=code, remark=remark))


def unknown(group: str, id: int) -> str:
    return (
        f"broker {group!r} with id {id} is not known: the controller's state is not the one "
        "that assigned this id. Restore that state; or remove the broker's file brokerIdentity, so that "
        "it requests a new id"
    )

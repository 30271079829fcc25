"""Names of POP retry topics: ``%RETRY%group_topic`` (form 1) and ``%RETRY%group+topic`` (form 2)."""

from __future__ import annotations

from typing import Final

from kerolox.protocol.reserved import RETRY_PREFIX

NORMAL: Final = "0"
V1: Final = "1"
V2: Final = "2"


def retry_topic(topic: str, group: str, form: str) -> str:
    """Return the retry topic of a group for a topic, in form ``"1"`` or ``"2"``."""
    return f"{RETRY_PREFIX}{group}{'+' if form == V2 else '_'}{topic}"


def real_topic(topic: str, group: str, form: str) -> str:
    """Return the topic that a handle means: the normal topic, or its retry topic."""
    return topic if form == NORMAL else retry_topic(topic, group, form)


def form_of(topic: str) -> str:
    """Return the form of a topic as handles and answers name it. A plain retry topic counts as form 1."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return V2 if "+" in topic else V1


def normal_topic(topic: str, group: str) -> str:
    """Return the topic behind a retry topic of this group; any other topic as it is."""
    for separator in ("+", "_"):
        start = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(start):
            return topic[len(start) :]
    return topic

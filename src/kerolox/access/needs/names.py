"""The resources that a topic name stands for when rights are checked.

Not every topic is a resource of rules. Retry and dead-letter topics belong to their group: users who may
consume with the group may read them, whatever the rules for topics are. Topics in which brokers keep delayed,
half and popped messages hold messages of all users; they require rights to the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kerolox.front.needs import Action, Kind, Need, Resource, View
from kerolox.protocol.reserved import (
    DEAD_LETTER_PREFIX,
    NOT_FOR_SENDING,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    TRACE_PREFIX,
)

# Sets of actions, of which one is sufficient. They are constants: a new set per request costs more than its
# decision.
PUB: Final = frozenset({Action.PUB})
SUB: Final = frozenset({Action.SUB})
GET: Final = frozenset({Action.GET})
CREATE: Final = frozenset({Action.CREATE})
UPDATE: Final = frozenset({Action.UPDATE})
DELETE: Final = frozenset({Action.DELETE})
SUB_OR_GET: Final = SUB | GET
SUB_OR_UPDATE: Final = SUB | UPDATE
PUB_SUB_OR_GET: Final = PUB | SUB | GET
ALL: Final = frozenset({Action.ALL})  # granted only by rules that allow All

_READING = PUB_SUB_OR_GET
_SPECIAL = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX)


def group(name: str, actions: frozenset[Action]) -> Need:
    return Need(Resource(Kind.GROUP, name), actions)


def cluster(view: View, actions: frozenset[Action]) -> Need:
    return Need(Resource(Kind.CLUSTER, view.cluster), actions)


def topic(name: str, actions: frozenset[Action], view: View, of_group: str | None = None) -> Iterator[Need]:
    """Yield the needs for one of these actions on a topic. ``of_group`` is the group that the request names;
    the name of a POP retry topic does not show where the group ends."""
    if not name.startswith(_SPECIAL):
        if name in NOT_FOR_SENDING or name == view.cluster + REPLY_SUFFIX:
            yield _of_servers(actions, view)
        else:
            yield Need(Resource(Kind.TOPIC, name), actions)
    elif name.startswith(RETRY_PREFIX):
        owner, normal = retried(name, view, of_group)
        yield group(owner, _of_group(actions))
        if normal:
            yield from topic(normal, actions, view)
    elif name.startswith(DEAD_LETTER_PREFIX) and not view.dead_letters_are_topics:
        wanted = SUB_OR_GET if actions & SUB else _of_group(actions)
        yield group(name.removeprefix(DEAD_LETTER_PREFIX), wanted)
    elif name.startswith((DEAD_LETTER_PREFIX, TRACE_PREFIX)):
        yield Need(Resource(Kind.TOPIC, name), actions)
    else:
        yield _of_servers(actions, view)


def sending(name: str, view: View) -> Iterator[Need]:
    """Yield the needs for sending to a topic."""
    if not name.startswith(_SPECIAL) and name not in NOT_FOR_SENDING:
        yield Need(Resource(Kind.TOPIC, name), PUB)  # includes the reply topic, which is sent to by its name
    elif name.startswith(RETRY_PREFIX):
        # The retry topic's name decides, not the producer group of the request: with the latter a client
        # could write into the retry topic of any group (apache/rocketmq#9910).
        yield from topic(name, SUB, view)
    elif name.startswith(TRACE_PREFIX):
        yield Need(Resource(Kind.TOPIC, name), PUB)
    else:
        yield cluster(view, UPDATE)  # dead-letter topics and internal topics of brokers


def retried(name: str, view: View, of_group: str | None = None) -> tuple[str, str]:
    """Return the group of a retry topic, and the topic whose messages POP retries there ("" if it is not a
    POP retry topic).

    ``%RETRY%group+topic`` is unambiguous: ``+`` is in no name. ``%RETRY%group_topic`` may also be the retry
    topic of a group with a long name: it is a POP retry topic only for the group that the request names, and
    only if that topic exists and a group of the long name does not.
    """
    rest = name.removeprefix(RETRY_PREFIX)
    owner, plus, normal = rest.partition("+")
    if plus and owner and normal and "+" not in normal:
        return owner, normal
    if of_group and rest.startswith(f"{of_group}_"):
        normal = rest[len(of_group) + 1 :]
        if not view.has_group(rest) and view.has_topic(normal):
            return of_group, normal
    return rest, ""


def _of_group(actions: frozenset[Action]) -> frozenset[Action]:
    """Map actions on a topic to actions on its group. Publishing to a retry topic is part of consuming, so
    PUB becomes SUB."""
    return (actions - PUB) | SUB if actions & PUB else actions


def _of_servers(actions: frozenset[Action], view: View) -> Need:
    return cluster(view, GET if actions & _READING else UPDATE)

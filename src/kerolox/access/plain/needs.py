"""Permissions of RocketMQ 4's accounts, compared with the needs of requests.

Accounts have PUB and SUB for topics, SUB for groups, and ``admin``. RocketMQ 4 checks them in nine requests
and ``admin`` in five; all others need nothing, so any account could reset a group or read any message by its
id. Here every request has the needs of 5.3 (:mod:`kerolox.access.needs`), and this module decides which
accounts meet them. The checks of RocketMQ 4 are included:

- sends: PUB of the topic; sends to a retry topic: SUB of its group (RocketMQ 4: of the group that the sender
  names);
- pulls, heartbeats, offsets, queries, messages sent back: SUB of the topic, of the group, or of both.
"""

from __future__ import annotations

from kerolox.access.needs.kinds import LOOKS
from kerolox.access.plain.accounts import Account, Perm
from kerolox.front.needs import Action, Kind, Need, Rule, View
from kerolox.protocol.reserved import RETRY_PREFIX, TRACE_TOPIC


class PlainView:
    """Facts that rules need about a server with such accounts."""

    dead_letters_are_topics = True  # and have permissions by their own names

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def cluster(self) -> str:
        return self._view.cluster

    def has_topic(self, name: str) -> bool:
        return self._view.has_topic(name)

    def has_group(self, name: str) -> bool:
        return self._view.has_group(name)


def is_for_any_account(rule: Rule) -> bool:
    """Return whether the rule only reads the broker's state, which every account may do, as in RocketMQ."""
    return rule is LOOKS


def permits(account: Account, need: Need) -> bool:
    """Return whether an account has the permission for at least one of the actions."""
    kind, name = need.resource
    actions = need.actions
    if kind is Kind.TOPIC and name.startswith(RETRY_PREFIX):
        kind, name = Kind.GROUP, name.removeprefix(RETRY_PREFIX)
    if kind is Kind.TOPIC:
        if name == TRACE_TOPIC and Action.PUB in actions:
            return True  # every client sends its traces there
        asked = Perm.DENY
        if Action.PUB in actions:
            asked |= Perm.PUB
        if Action.SUB in actions:
            asked |= Perm.SUB
        elif Action.GET in actions:
            # statistics and settings, no messages: any permission on the topic is enough
            asked |= Perm.PUB | Perm.SUB
        held = account.topic_perm(name)
    elif kind is Kind.GROUP:
        asked = Perm.DENY if actions.isdisjoint(_OF_GROUPS) else Perm.SUB
        held = account.group_perm(name)
    else:
        return account.admin
    if not asked:
        return account.admin  # create, update, delete
    return account.may_all or bool(asked & held)


_OF_GROUPS = frozenset({Action.PUB, Action.SUB, Action.GET})

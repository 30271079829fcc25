"""What an account of RocketMQ 4 may do, of all that requests need.

Accounts know PUB and SUB of topics, SUB of groups, and ``admin``. RocketMQ 4 asks for them in nine requests,
for ``admin`` in five, and for nothing in all others, so that any account could reset a group or read any
message by its id. Here every request has the needs of 5.3 (:mod:`kerolox.access.needs`), and this module says
who has what they ask for. What RocketMQ 4 asks for is asked for here, too:

- sends: PUB of the topic; those to a retry topic SUB of its group (there, of the group the sender names);
- pulls, heartbeats, offsets, queries, messages sent back: SUB of the topic, of the group, or of both.
"""

from __future__ import annotations

from kerolox.access.needs.kinds import LOOKS
from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.resources import Action, Kind, Need
from kerolox.access.rules import Rule, View
from kerolox.protocol.reserved import RETRY_PREFIX, TRACE_TOPIC


class PlainView:
    """What rules are told of a server with such accounts."""

    dead_letters_are_topics = True  # and have permissions by their names

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
    """Whether it only tells how the broker is: every account may look, as with RocketMQ."""
    return rule is LOOKS


def permits(account: Account, need: Need) -> bool:
    """Whether an account may do at least one of the actions."""
    kind, name = need.resource
    actions = need.actions
    if kind is Kind.TOPIC and name.startswith(RETRY_PREFIX):
        kind, name = Kind.GROUP, name.removeprefix(RETRY_PREFIX)
    if kind is Kind.TOPIC:
        if name == TRACE_TOPIC and Action.PUB in actions:
            return True  # every client tells there what it does
        asked = Perm.DENY
        if Action.PUB in actions:
            asked |= Perm.PUB
        if Action.SUB in actions:
            asked |= Perm.SUB
        elif Action.GET in actions:
            asked |= Perm.PUB | Perm.SUB  # figures and settings, no messages: whoever uses the topic may look
        held = account.topic_perm(name)
    elif kind is Kind.GROUP:
        asked = Perm.DENY if actions.isdisjoint(_OF_GROUPS) else Perm.SUB
        held = account.group_perm(name)
    else:
        return account.admin
    if not asked:
        return account.admin  # creating, changing, deleting
    return account.may_all or bool(asked & held)


_OF_GROUPS = frozenset({Action.PUB, Action.SUB, Action.GET})

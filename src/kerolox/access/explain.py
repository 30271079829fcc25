"""Why something is decided as it is: every rule of a user, and what it says of one need."""

from __future__ import annotations

import msgspec

from kerolox.access.book import User
from kerolox.access.policies import Address, Decision, Entry, Policies, PolicyType
from kerolox.access.resources import Action, Need

DECIDES = "it decides"


class Step(msgspec.Struct, frozen=True):
    """One entry, and what it has to say."""

    type: PolicyType
    entry: Entry
    verdict: str

    @property
    def decides(self) -> bool:
        return self.verdict == DECIDES


class Explanation(msgspec.Struct, frozen=True):
    allowed: bool
    why: str
    steps: tuple[Step, ...] = ()


def explain(user: User, policies: Policies, need: Need, source: Address | None) -> Explanation:
    """What a server with authentication and authorization decides about a request that this user has signed.
    ``source`` is where it comes from; None: from nowhere that an entry names."""
    if not user.is_enabled:
        return Explanation(False, f"{user.name} is disabled: nothing that it signs is let in")
    if user.is_super:
        return Explanation(True, f"{user.name} is a Super user, who may do everything: no rule is asked")
    decision = policies.decide(need, source)
    steps = tuple(
        Step(type, entry, _verdict(entry, type, need, source, decision))
        for type in PolicyType
        for entry in sorted(policies.of(type).values(), key=lambda entry: entry.pattern.breadth)
    )
    return Explanation(decision.allowed, _why(user, decision, steps), steps)


def _why(user: User, decision: Decision, steps: tuple[Step, ...]) -> str:
    if decision.entry is not None and decision.type is not None:
        return f"the {decision.type.value} policy of {user.name} says: {decision.entry}"
    if not steps:
        return f"{user.name} has no rules, and what no rule allows is denied"
    return f"none of the {len(steps)} rules of {user.name} matches, and what no rule allows is denied"


def _verdict(entry: Entry, type: PolicyType, need: Need, source: Address | None, decision: Decision) -> str:
    if entry is decision.entry:
        return DECIDES
    if not entry.pattern.matches(need.resource):
        return "it is about other resources"
    if Action.ALL not in entry.actions and entry.actions.isdisjoint(need.actions):
        return "it is about other actions"
    if not entry.matches(need, source):
        if source is None:
            return "it is about some addresses alone: say from where"
        return f"it is not about {source}"
    if type is not decision.type:
        return "it matches, but Custom comes before Default"
    return "it matches, but a narrower one decides"

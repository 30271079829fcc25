"""Explain a decision: list every rule of a user with its verdict on one need."""

from __future__ import annotations

import msgspec

from kerolox.access.book import User
from kerolox.access.policies import Address, Decision, Entry, Policies, PolicyType
from kerolox.front.needs import Action, Need

DECIDES = "it decides"


class Step(msgspec.Struct, frozen=True):
    """One entry and its verdict."""

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
    """Explain how a server with authentication and authorization decides about a request that this user
    signed.

    ``source`` is the address of the client; None is an address that matches no entry with addresses.
    """
    if not user.is_enabled:
        return Explanation(False, f"{user.name} is disabled: its requests are rejected")
    if user.is_super:
        return Explanation(True, f"{user.name} is a Super user: rules do not apply")
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
        return f"{user.name} has no rules; requests that no rule allows are denied"
    return f"none of the {len(steps)} rules of {user.name} matches; requests that no rule allows are denied"


def _verdict(entry: Entry, type: PolicyType, need: Need, source: Address | None, decision: Decision) -> str:
    if entry is decision.entry:
        return DECIDES
    if not entry.pattern.matches(need.resource):
        return "it covers other resources"
    if Action.ALL not in entry.actions and entry.actions.isdisjoint(need.actions):
        return "it covers other actions"
    if not entry.matches(need, source):
        if source is None:
            return "it covers only some addresses: name the client's with --from"
        return f"it does not cover {source}"
    if type is not decision.type:
        return "it matches, but Custom comes before Default"
    return "it matches, but a narrower entry decides"

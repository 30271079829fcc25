"""The rules of one user and the decision they give. Plain values, no I/O.

A user has two lists of entries, ``Custom`` and ``Default``, each with at most one entry for a pattern. Custom
takes precedence; Default is used only if no Custom entry matches. Among matching entries the narrowest
decides. A need that no entry allows is denied.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import TypeAlias

import msgspec

from kerolox.access.resources import Pattern, parse_action, parse_pattern
from kerolox.errors import InvalidRequest
from kerolox.front.needs import Action, Need
from kerolox.protocol.bodies import access as bodies

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

ENTRIES_MAX = 1000  # per user
SOURCES_MAX = 256  # per entry
_MAPPED_BITS = 96  # prefix length of IPv4 addresses in IPv6 notation


class PolicyType(enum.Enum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


class Entry(msgspec.Struct, frozen=True):
    """A rule that allows or denies actions on some resources, for some source addresses."""

    pattern: Pattern
    actions: frozenset[Action]
    allows: bool
    sources: tuple[Network, ...] = ()  # empty: any address

    def matches(self, need: Need, source: Address | None) -> bool:
        return (
            self.pattern.matches(need.resource)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(need.actions))
            and (not self.sources or (source is not None and any(source in one for one in self.sources)))
        )

    def __str__(self) -> str:
        verb = "allow" if self.allows else "deny"
        actions = "/".join(sorted(action.value for action in self.actions))
        where = f" from {', '.join(map(str, self.sources))}" if self.sources else ""
        return f"{verb} {actions} on {self.pattern}{where}"


class Decision(msgspec.Struct, frozen=True):
    """The decision about one need and the entry it comes from; None if no entry matched."""

    allowed: bool
    type: PolicyType | None = None
    entry: Entry | None = None


class Policies(msgspec.Struct, frozen=True):
    """The entries of one user, by type and pattern."""

    custom: dict[Pattern, Entry] = {}
    default: dict[Pattern, Entry] = {}

    def of(self, type: PolicyType) -> dict[Pattern, Entry]:
        return self.custom if type is PolicyType.CUSTOM else self.default

    def decide(self, need: Need, source: Address | None) -> Decision:
        for type in PolicyType:
            found = [entry for entry in self.of(type).values() if entry.matches(need, source)]
            if found:
                entry = min(found, key=lambda entry: (entry.pattern.breadth, entry.allows))
                return Decision(entry.allows, type, entry)
        return Decision(False)

    def merged(self, type: PolicyType, entries: list[Entry]) -> Policies:
        """Return a copy with these entries; they replace those with the same patterns."""
        merged = self.of(type) | {entry.pattern: entry for entry in entries}
        if len(merged) > ENTRIES_MAX:
            raise InvalidRequest(
                f"{len(merged)} entries for one user, the limit is {ENTRIES_MAX}: use prefixes"
            )
        return self._with(type, merged)

    def without(self, type: PolicyType, pattern: Pattern) -> Policies:
        return self._with(type, {key: entry for key, entry in self.of(type).items() if key != pattern})

    def _with(self, type: PolicyType, entries: dict[Pattern, Entry]) -> Policies:
        return (
            Policies(entries, self.default) if type is PolicyType.CUSTOM else Policies(self.custom, entries)
        )


NONE = Policies()


# --- texts ---------------------------------------------------------------------------------------------


def parse_policy_type(text: str | None) -> PolicyType:
    found = {type.value.lower(): type for type in PolicyType}.get((text or "Custom").strip().lower())
    if found is None:
        raise InvalidRequest(f"{text!r} is not a policy type: use Custom or Default")
    return found


def parse_source(text: str) -> Network:
    """Parse an address or a network. An IPv4 address in IPv6 notation becomes IPv4, as client addresses do
    (see ``sources.address_of``); otherwise a rule that denies it would never match."""
    try:
        found = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not an address: write 10.0.0.9, 10.0.0.0/8 or fe80::/10") from None
    mapped = found.network_address.ipv4_mapped if isinstance(found, ipaddress.IPv6Network) else None
    if mapped is None or found.prefixlen < _MAPPED_BITS:
        return found
    return ipaddress.ip_network((int(mapped), found.prefixlen - _MAPPED_BITS))


def parse_entry(body: bodies.AclEntry) -> Entry:
    """Decode an entry as tools write it. Unknown words are rejected; RocketMQ drops them, which changes the
    rule."""
    actions = frozenset(parse_action(text) for text in body.actions or ())
    if not actions:
        raise InvalidRequest(f"the entry for {body.resource!r} has no actions")
    decision = (body.decision or "").strip().lower()
    if decision not in ("allow", "deny"):
        raise InvalidRequest(f"{body.decision!r} is not a decision: use Allow or Deny")
    sources = tuple(parse_source(text) for text in body.source_ips or ())
    if len(sources) > SOURCES_MAX:
        raise InvalidRequest(f"{len(sources)} addresses in one entry, the limit is {SOURCES_MAX}")
    return Entry(parse_pattern(body.resource or ""), actions, decision == "allow", sources)


def parse_entries(body: bodies.Acl) -> dict[PolicyType, list[Entry]]:
    """Decode the entries of a body. Two entries for the same pattern are rejected, because only one could
    apply."""
    found: dict[PolicyType, dict[Pattern, Entry]] = {}
    for policy in body.policies or ():
        entries = found.setdefault(parse_policy_type(policy.policy_type), {})
        for entry in map(parse_entry, policy.entries or ()):
            if entry.pattern in entries:
                raise InvalidRequest(f"two entries for {entry.pattern}: keep one")
            entries[entry.pattern] = entry
    return {type: list(entries.values()) for type, entries in found.items()}


def entry_body(entry: Entry) -> bodies.AclEntry:
    return bodies.AclEntry(
        actions=tuple(action.value for action in Action if action in entry.actions),
        decision="Allow" if entry.allows else "Deny",
        resource=str(entry.pattern),
        source_ips=tuple(_address_text(one) for one in entry.sources) or None,
    )


def _address_text(network: Network) -> str:
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)


def policies_body(policies: Policies) -> tuple[bodies.AclPolicy, ...]:
    return tuple(
        bodies.AclPolicy(
            entries=tuple(entry_body(entry) for entry in policies.of(type).values()), policy_type=type.value
        )
        for type in PolicyType
        if policies.of(type)
    )

"""Patterns of resources, and the texts of resources and actions in access policies (5.3)."""

from __future__ import annotations

import msgspec

from kerolox.errors import InvalidRequest
from kerolox.front.needs import Action, Kind, Need, Resource

_KINDS = {kind.value.lower(): kind for kind in Kind}
_ACTIONS = {action.value.lower(): action for action in Action}


def topic(name: str, *actions: Action) -> Need:
    return Need(Resource(Kind.TOPIC, name), frozenset(actions))


def group(name: str, *actions: Action) -> Need:
    return Need(Resource(Kind.GROUP, name), frozenset(actions))


def cluster(name: str, *actions: Action) -> Need:
    return Need(Resource(Kind.CLUSTER, name), frozenset(actions))


class Pattern(msgspec.Struct, frozen=True):
    """The resources of a rule: ``*``, ``Topic:*``, ``Topic:abc*`` or ``Topic:abc``."""

    kind: Kind | None  # None: of every kind
    name: str
    is_prefix: bool

    def __str__(self) -> str:
        name = f"{self.name}*" if self.is_prefix else self.name
        return name if self.kind is None else f"{self.kind.value}:{name}"

    def matches(self, resource: Resource) -> bool:
        if self.kind is None:
            return True
        if self.kind is not resource.kind:
            return False
        return resource.name.startswith(self.name) if self.is_prefix else resource.name == self.name

    @property
    def breadth(self) -> tuple[bool, bool, int]:
        """Sort key: narrower patterns sort first."""
        return self.kind is None, self.is_prefix, -len(self.name)


def parse_pattern(text: str) -> Pattern:
    text = text.strip()
    if text == "*":
        return Pattern(None, "", is_prefix=True)
    word, separator, name = text.partition(":")
    kind = _KINDS.get(word.lower())
    # A star inside a name, or a space before it, would make a rule that matches nothing.
    if kind is None or not separator or not name or "*" in name[:-1] or name != name.strip():
        raise InvalidRequest(
            f"{text!r} is not a resource: write *, or Topic:, Group:, Cluster: or Namespace: with a name, a "
            "prefix* or *"
        )
    return Pattern(kind, name.removesuffix("*"), is_prefix=name.endswith("*"))


def parse_resource(text: str) -> Resource:
    """Parse the text of exactly one resource."""
    pattern = parse_pattern(text)
    if pattern.kind is None or pattern.is_prefix:
        raise InvalidRequest(f"{text!r} matches many resources: name one, as in Topic:orders")
    return Resource(pattern.kind, pattern.name)


def parse_action(text: str) -> Action:
    action = _ACTIONS.get(text.strip().lower())
    if action is None:
        raise InvalidRequest(
            f"{text!r} is not an action: use one of {', '.join(action.value for action in Action)}"
        )
    return action

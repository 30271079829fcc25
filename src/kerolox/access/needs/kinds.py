"""Rules that many codes share, and the parts that other rules are built from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from kerolox.access.needs import names
from kerolox.access.options import AccessOptions
from kerolox.errors import InvalidRequest
from kerolox.front.needs import Action, Need, Rule, View
from kerolox.front.own_options import settings_asked
from kerolox.front.requests import Request
from kerolox.options import specs
from kerolox.protocol.header import Header
from kerolox.protocol.reserved import RETRY_PREFIX

H = TypeVar("H", bound=Header)

# Limit per request: the event loop compares each need with all rules of a user.
NEEDS_MAX = 5000

_ACCESS_KEYS = frozenset(spec.key for spec in specs(AccessOptions))


def header_of(asked: Request[Any], cls: type[H]) -> H:
    """Return the header; decode it as `cls` if the code is rejected as not supported before its header is
    decoded."""
    found: H = asked.header if asked.header is not None else asked.ticket.header(cls)
    return found


def each(found: Iterable[Need]) -> list[Need]:
    """Return each need once. A request with more than NEEDS_MAX is rejected before any is decided."""
    needs: dict[Need, None] = {}
    for need in found:
        needs[need] = None
        if len(needs) > NEEDS_MAX:
            raise InvalidRequest(f"the request names more than {NEEDS_MAX} topics and groups, the limit")
    return list(needs)


def named(text: str | None, what: str) -> str:
    """Return a name that the body must contain."""
    if text is None:
        raise InvalidRequest(f"the request names no {what}")
    return text


# --- the cluster ---------------------------------------------------------------------------------------


def _looks(asked: Request[Any], view: View) -> Iterator[Need]:
    yield names.cluster(view, names.GET)


def _changes(asked: Request[Any], view: View) -> Iterator[Need]:
    yield names.cluster(view, names.UPDATE)


def _changes_options(asked: Request[Any], view: View) -> Iterator[Need]:
    """Options of access control need the right ALL: a user who may change options must not switch off checks
    or the audit log."""
    yield names.cluster(view, names.UPDATE)
    if not _ACCESS_KEYS.isdisjoint(settings_asked(asked.body)):
        yield names.cluster(view, names.ALL)


LOOKS = Rule(_looks)
CHANGES = Rule(_changes, administers=True)
CHANGES_ACCESS = Rule(_changes, administers=True, for_super=True)
CHANGES_OPTIONS = Rule(_changes_options, administers=True)


# --- topics and groups of the header -------------------------------------------------------------------


def on(
    actions: frozenset[Action],
    *,
    topic: str | None = None,
    group: str | None = None,
    administers: bool = False,
) -> Rule:
    """Return the rule of requests that need one of these actions on the topic, the group, or both in these
    fields of the header. A field that is absent needs nothing."""

    def needs(asked: Request[Any], view: View) -> Iterator[Need]:
        of_group: str | None = None
        if group is not None:
            of_group = getattr(asked.header, group)
            if of_group is not None:
                yield names.group(of_group, actions)
        if topic is not None:
            found = getattr(asked.header, topic)
            if found is not None:
                yield from names.topic(found, actions, view, of_group)

    def key(asked: Request[Any]) -> tuple[str | None, str | None] | None:
        found = None if topic is None else getattr(asked.header, topic)
        if found is not None and found.startswith(RETRY_PREFIX):
            return None  # the owner depends on the topics and groups that exist
        return found, None if group is None else getattr(asked.header, group)

    return Rule(needs, administers=administers, key=None if administers else key)

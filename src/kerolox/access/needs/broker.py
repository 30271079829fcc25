"""What requests to a broker need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kerolox.access.resources import Action, Need, cluster
from kerolox.access.rules import Rule, Rules, View
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode


def _look(asked: Request[Any], view: View) -> Iterable[Need]:
    return (cluster(view.cluster, Action.GET),)


def _update(asked: Request[Any], view: View) -> Iterable[Need]:
    return (cluster(view.cluster, Action.UPDATE),)


_LOOKS = ("AUTH_GET_USER", "AUTH_LIST_USER", "AUTH_GET_ACL", "AUTH_LIST_ACL")

BROKER: Rules = {
    code: Rule(_look) if code.name in _LOOKS else Rule(_update, administers=True)
    for code in RequestCode
    if code.name.startswith("AUTH_")
}

"""The tables have a row for every code that is served, and no others."""

from __future__ import annotations

import re

import pytest

from kerolox.access.book import Book
from kerolox.access.guard import Guard
from kerolox.access.options import AccessOptions
from kerolox.front.handlers import Handlers
from kerolox.front.lanes import Lane
from kerolox.front.needs import EVERYBODY, ClusterView
from kerolox.front.requests import Answer
from kerolox.front.rows import Row
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import request_name
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.controlled import running_controlled
from tests.access.test_needs_requests import example_needs
from tests.served import BROKER, BROKER_ROWS, CONTROLLER, CONTROLLER_ROWS, NAMESERVER, NAMESERVER_ROWS, Rules

SERVERS = ["broker", "nameserver", "controller"]


def compare(served: set[int], rules: Rules) -> tuple[list[str], list[str]]:
    """Codes without a rule, and rules without a code."""
    lacking = [request_name(code) for code in sorted(served - set(rules))]
    return lacking, [request_name(code) for code in sorted(set(rules) - served)]


def codes(*handlers: Handlers) -> set[int]:
    return {code for one in handlers for code in one.routes}


async def test_every_code_that_is_served_has_a_rule_and_no_rule_is_for_nothing() -> None:
    """A code without a rule is refused: a new handler without one would serve nobody. A rule without a code
    is one that nobody has thought through."""
    async with running_broker() as alone, running_controlled(brokers=1) as group:
        ports = [alone.broker.ports, (await group.leading()).broker.ports]
        broker = codes(*(door for port in ports for door in (port.handlers, port.vip_handlers)))
        assert compare(broker, BROKER) == ([], [])
        assert compare(codes(alone.nameserver._handlers()), NAMESERVER) == ([], [])
        controller = group.controller
        assert controller is not None
        assert compare(codes(controller._handlers()), CONTROLLER) == ([], [])


async def test_a_code_without_a_rule_is_not_served() -> None:
    handlers = Handlers()
    handlers.guard = Guard(Book(), ClusterView("c"), AccessOptions(), ManualClock())
    with pytest.raises(ValueError, match="code 10 has no rule of access"):
        handlers.add(Code.SEND_MESSAGE, lambda asked: Answer(), None, Lane("send"))
    handlers.add(Code.SEND_MESSAGE, lambda asked: Answer(), None, Lane("send"), EVERYBODY)
    assert set(handlers.routes) == {10}


@pytest.mark.parametrize(
    "rows", [BROKER_ROWS, NAMESERVER_ROWS, CONTROLLER_ROWS], ids=["broker", "nameserver", "controller"]
)
def test_every_row_has_a_description(rows: dict[int, Row]) -> None:
    assert [row.code.name for row in rows.values() if len(row.description) < 10] == []


CHANGING = re.compile("(Create|Update|Delete) on ")  # no right of consumers or producers is enough


@pytest.mark.parametrize(
    "rules", [BROKER, NAMESERVER, CONTROLLER], ids=["broker", "nameserver", "controller"]
)
def test_what_changes_something_administers(rules: Rules) -> None:
    """It is taken from the addresses of adminFrom alone, whether or not anybody signs anything."""
    changing = {code for code in rules if any(CHANGING.match(need) for need in example_needs(code, rules))}
    administering = {code for code, rule in rules.items() if rule.administers}
    assert {request_name(code) for code in changing ^ administering} == set()


def for_everybody(rules: Rules) -> set[int]:
    return {code for code, rule in rules.items() if rule.for_everybody}


def test_what_everybody_may_ask_is_known() -> None:
    """Of 33 and 37 the handlers look at what they find: see tests/broker/access/test_found_later.py."""
    assert for_everybody(BROKER) == {Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.VIEW_MESSAGE_BY_ID, 37}
    assert for_everybody(NAMESERVER) == {Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, 101}
    assert not for_everybody(CONTROLLER)

"""The tables have a row for every code that is served, and no others."""

from __future__ import annotations

import pytest

from kerolox.access.needs.broker import BROKER
from kerolox.access.needs.controller import CONTROLLER
from kerolox.access.needs.kinds import joined
from kerolox.access.needs.nameserver import NAMESERVER
from kerolox.access.rules import EVERYBODY, Rules
from kerolox.front.handlers import Handlers
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import request_name
from kerolox.testing.broker import running_broker
from kerolox.testing.controlled import running_controlled


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


def test_a_code_is_in_one_table_alone() -> None:
    with pytest.raises(ValueError, match="two rules for code 10"):
        joined({Code.SEND_MESSAGE: EVERYBODY}, {10: EVERYBODY})


ADMINISTRATION = {
    *(17, 18, 513, 215, 200, 225, 207, 222, 314, 353, 401, 323, 25),
    *(306, 316, 329, 2001, 2002, 2004, 5001, 200056, 200079),
    *(3001, 3002, 3003, 3006, 3007, 3008, 50, 51, 53),
    *(902, 903, 905, 906, 908, 1008, 910001),
}


def administered(rules: Rules) -> set[int]:
    return {code for code, rule in rules.items() if rule.administers}


def test_what_administers_is_known() -> None:
    """These are taken from the addresses of adminFrom alone, whether or not anybody signs anything."""
    assert administered(BROKER) == ADMINISTRATION
    assert administered(NAMESERVER) == {100, 102, 103, 104, 904, 205, 216, 217, 327, 318}
    assert administered(CONTROLLER) == {1001, 1002, 1003, 1009, 1011, 1013, 904}


def for_everybody(rules: Rules) -> set[int]:
    return {code for code, rule in rules.items() if rule.for_everybody}


def test_what_everybody_may_ask_is_known() -> None:
    """Of 33 and 37 the handlers look at what they find: see tests/broker/access/test_found_later.py."""
    assert for_everybody(BROKER) == {Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.VIEW_MESSAGE_BY_ID, 37}
    assert for_everybody(NAMESERVER) == {Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, 101}
    assert not for_everybody(CONTROLLER)

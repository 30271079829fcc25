from __future__ import annotations

import pytest

from kerolox.errors import Overloaded
from kerolox.protocol.command import Command
from kerolox.protocol.exchange import Exchange


def test_answers_find_their_question_once() -> None:
    exchange = Exchange(in_flight_max=10)
    got: list[object] = []
    exchange.ask(Command(1, opaque=7), got.append, deadline_s=5)
    waiter = exchange.take(7)
    assert waiter is not None
    waiter(Command(0, opaque=7))
    assert len(got) == 1
    assert exchange.take(7) is None
    assert exchange.take(8) is None


def test_opaque_wraps_to_negative_and_skips_those_in_use() -> None:
    exchange = Exchange(in_flight_max=10)
    exchange._next_opaque = 2**31 - 1
    assert exchange.next_opaque() == 2**31 - 1
    exchange.ask(Command(1, opaque=-(2**31)), lambda answer: None, deadline_s=5)
    assert exchange.next_opaque() == -(2**31) + 1


def test_expired_questions_are_taken_out() -> None:
    exchange = Exchange(in_flight_max=10)
    for opaque, deadline_s in ((1, 5.0), (2, 1.0), (3, 2.0)):
        exchange.ask(Command(1, opaque=opaque), lambda answer: None, deadline_s)
    assert [command.opaque for _, command in exchange.take_expired(2.0)] == [2, 3]
    assert len(exchange) == 1
    assert len(exchange.take_all()) == 1
    assert len(exchange) == 0


def test_the_number_in_flight_is_bounded() -> None:
    exchange = Exchange(in_flight_max=1)
    exchange.ask(Command(1, opaque=1), lambda answer: None, 1)
    with pytest.raises(Overloaded, match="the limit is 1"):
        exchange.ask(Command(1, opaque=2), lambda answer: None, 1)

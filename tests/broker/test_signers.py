"""Prepared keys follow the book."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kerolox.access.book import Book
from kerolox.access.guard import LAST_USER, Guard
from kerolox.access.options import AccessOptions, FormTwoUse
from kerolox.broker.remoting.signers import Signers
from kerolox.front.caller import Caller
from kerolox.front.needs import ClusterView
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.signature import sign, signer
from kerolox.testing.clock import ManualClock

FIELDS = {"a": "1"}


class Alice:
    """A caller whose last request was Alice's, if there was any."""

    def __init__(self, name: str | None = "alice") -> None:
        self.data: dict[str, Any] = {} if name is None else {LAST_USER: name}


def signers(book: Book, **options: Any) -> Signers:
    return Signers(
        Guard(book, ClusterView("c"), AccessOptions(authentication=True, **options), ManualClock())
    )


def alice(name: str | None = "alice") -> Caller:
    return cast(Caller, Alice(name))


def test_keys_are_those_of_users_who_may_sign() -> None:
    book = Book()
    known = signers(book)
    assert known.of(alice(None)) is None
    assert known.of(alice()) is None
    book.create_user(bodies.User(username="alice", password="secret"))
    found = known.of(alice())
    assert found is not None
    assert found is known.of(alice())
    assert found.has_signed(sign(FIELDS, b"x", "alice", "secret"), b"x")
    assert not found.has_signed(sign(FIELDS, b"x", "bob", "secret"), b"x")
    assert not found.has_signed(sign(FIELDS, b"x", "alice", "guess"), b"x")
    book.update_user(bodies.User(username="alice", password="another"))
    assert known.of(alice()) == signer("alice", "another")
    book.update_user(bodies.User(username="alice", user_status="disable"))
    assert known.of(alice()) is None
    book.update_user(bodies.User(username="alice", user_status="enable"))
    assert known.of(alice()) == signer("alice", "another")
    book.replace({}, {})
    assert known.of(alice()) is None


@pytest.mark.parametrize(("use", "runs"), [(FormTwoUse.ALL, False), (FormTwoUse.SUPER, True)])
def test_users_whose_requests_need_stamps_have_no_runs(use: FormTwoUse, runs: bool) -> None:
    book = Book()
    book.create_user(bodies.User(username="alice", password="secret"))
    assert (signers(book, form_2=use).of(alice()) is not None) is runs


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(signer("alice", "hidden")) + str(signer("alice", "hidden"))

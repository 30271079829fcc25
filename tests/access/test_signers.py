"""Prepared keys follow the book."""

from __future__ import annotations

from kerolox.access.book import Book
from kerolox.access.signers import Signers
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.signature import sign, signer

FIELDS = {"a": "1"}


def test_keys_are_those_of_users_who_may_sign() -> None:
    book = Book()
    signers = Signers(book)
    assert signers.of(None) is None
    assert signers.of("alice") is None
    book.create_user(bodies.User(username="alice", password="secret"))
    found = signers.of("alice")
    assert found is not None
    assert found is signers.of("alice")
    assert found.has_signed(sign(FIELDS, b"x", "alice", "secret"), b"x")
    assert not found.has_signed(sign(FIELDS, b"x", "bob", "secret"), b"x")
    assert not found.has_signed(sign(FIELDS, b"x", "alice", "guess"), b"x")
    book.update_user(bodies.User(username="alice", password="another"))
    assert signers.of("alice") == signer("alice", "another")
    book.update_user(bodies.User(username="alice", user_status="disable"))
    assert signers.of("alice") is None
    book.update_user(bodies.User(username="alice", user_status="enable"))
    assert signers.of("alice") == signer("alice", "another")
    book.replace({}, {})
    assert signers.of("alice") is None


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(signer("alice", "hidden")) + str(signer("alice", "hidden"))

"""Decisions that are kept are those that would be made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kerolox.access import decisions as module
from kerolox.access.book import Book
from kerolox.access.decisions import Decisions
from kerolox.access.resources import Action, topic
from kerolox.front.caller import Caller
from kerolox.protocol.bodies import access as bodies


class Somebody:
    def __init__(self, address: str) -> None:
        self.address = address
        self.data: dict[str, Any] = {}


def caller(address: str = "127.0.0.1:4711") -> Caller:
    return cast(Caller, Somebody(address))


def book_of(*users: str) -> Book:
    book = Book()
    for name in users:
        book.create_user(bodies.User(username=name, password="secret"))
    return book


def rule(book: Book, name: str, resource: str, decision: str = "Allow", *sources: str) -> None:
    entry = bodies.AclEntry(
        actions=("Pub",), decision=decision, resource=resource, source_ips=sources or None
    )
    book.merge_rules(f"User:{name}", bodies.Acl(policies=(bodies.AclPolicy(entries=(entry,)),)))


SEND = topic("T", Action.PUB)


def test_a_change_of_the_book_counts_at_once() -> None:
    book = book_of("alice")
    decisions, peer = Decisions(book), caller()
    assert not decisions.of("alice", peer, SEND).allowed
    rule(book, "alice", "Topic:T")
    assert decisions.of("alice", peer, SEND).allowed
    assert decisions.of("alice", peer, SEND) is decisions.of("alice", peer, SEND)
    rule(book, "alice", "Topic:T", "Deny")
    assert not decisions.of("alice", peer, SEND).allowed


def test_users_addresses_and_needs_are_told_apart() -> None:
    book = book_of("alice", "bob")
    rule(book, "alice", "Topic:T", "Allow", "10.0.0.0/8")
    decisions = Decisions(book)
    near, far = caller("10.0.0.9:1"), caller("192.168.0.9:1")
    for _ in range(2):
        assert decisions.of("alice", near, SEND).allowed
        assert not decisions.of("bob", near, SEND).allowed
        assert not decisions.of("alice", far, SEND).allowed
        assert not decisions.of("alice", near, topic("T", Action.SUB)).allowed
        assert not decisions.of("alice", near, topic("U", Action.PUB)).allowed


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDS_MAX", 3)
    book = book_of("alice")
    rule(book, "alice", "Topic:T*")
    decisions, peer = Decisions(book), caller()
    for number in range(10):
        assert decisions.of("alice", peer, topic(f"T{number}", Action.PUB)).allowed
        assert len(peer.data["decided"][2]) <= 3

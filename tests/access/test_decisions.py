"""Decisions that are kept are those that would be made."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from kerolox.access import decisions as module
from kerolox.access.book import Book
from kerolox.access.decisions import Decisions
from kerolox.access.guard import Guard
from kerolox.access.options import AccessOptions, Audit
from kerolox.access.resources import topic
from kerolox.front.caller import Caller
from kerolox.front.needs import Action
from kerolox.front.requests import Answer, Request
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pull import PullRequest
from kerolox.testing.clock import ManualClock
from tests.served import BROKER


class View:
    """A server with the groups that are put there."""

    cluster = "DefaultCluster"

    def __init__(self) -> None:
        self.groups: set[str] = set()

    def has_topic(self, name: str) -> bool:
        return name == "T"

    def has_group(self, name: str) -> bool:
        return name in self.groups


class Somebody:
    def __init__(self, address: str) -> None:
        self.address = address
        self.data: dict[str, Any] = {}

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        assert answer.code == ResponseCode.NO_PERMISSION, answer


def caller(address: str = "127.0.0.1:4711") -> Caller:
    return cast(Caller, Somebody(address))


def book_of(*users: str) -> Book:
    book = Book()
    for name in users:
        book.create_user(bodies.User(username=name, password="secret"))
    return book


def rule(book: Book, name: str, resource: str, decision: str = "Allow", *sources: str) -> None:
    entry = bodies.AclEntry(
        actions=("Pub", "Sub"), decision=decision, resource=resource, source_ips=sources or None
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
        assert not decisions.of("alice", near, topic("T", Action.UPDATE)).allowed
        assert not decisions.of("alice", near, topic("U", Action.PUB)).allowed


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    book = book_of("alice")
    rule(book, "alice", "Topic:T*")
    decisions, peer = Decisions(book), caller()
    for number in range(10):
        assert decisions.of("alice", peer, topic(f"T{number}", Action.PUB)).allowed
        assert len(decisions.kept("alice", peer).needs) <= 3
        decisions.keep_allowed("alice", peer, number)
        assert number in decisions.kept("alice", peer).allowed
        assert len(decisions.kept("alice", peer).allowed) <= 3


def test_requests_that_are_allowed_are_of_one_user_and_one_book() -> None:
    book = book_of("alice", "bob")
    decisions, peer = Decisions(book), caller()
    decisions.keep_allowed("alice", peer, 11)
    assert 11 in decisions.kept("alice", peer).allowed
    assert 11 not in decisions.kept("bob", peer).allowed
    decisions.keep_allowed("alice", peer, 11)
    book.delete_user("bob")
    assert 11 not in decisions.kept("alice", peer).allowed


class Pulls:
    """A guard, and somebody who pulls."""

    def __init__(self, **options: Any) -> None:
        self.book = book_of("alice", "bob")
        for resource in ("Topic:T", "Group:g"):
            rule(self.book, "alice", resource)
        self.view = View()
        settings = AccessOptions(authentication=True, authorization=True, **options)
        self.guard = Guard(self.book, self.view, settings, ManualClock())
        self.peer = caller()

    def may(self, name: str | None = "alice", topic: str = "T", group: str = "g", code: int = 11) -> bool:
        header = PullRequest(
            consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0,
            commit_offset=0, suspend_timeout_millis=0, sub_version=0,
        )  # fmt: skip
        asked = Request(self.peer, code, header, b"", 0.0, Command(code))
        asked.identity = name
        return self.guard.allows(asked, BROKER[code])


def test_pulls_are_allowed_for_what_they_name_and_who_asks() -> None:
    pulls = Pulls()
    for _ in range(3):
        assert pulls.may()
        assert not pulls.may(topic="U")
        assert not pulls.may(group="h")
        assert not pulls.may(topic="g", group="T")
        assert not pulls.may("bob")
        assert not pulls.may(None)
        assert not pulls.may(code=RequestCode.UPDATE_AND_CREATE_TOPIC)
    rule(pulls.book, "alice", "Topic:T", "Deny")
    assert not pulls.may()
    rule(pulls.book, "alice", "Topic:T")
    assert pulls.may()
    pulls.book.update_user(bodies.User(username="alice", user_status="disable"))
    assert not pulls.may()


def test_whose_a_retry_topic_is_is_asked_each_time() -> None:
    """``%RETRY%g_T`` is POP's of group g, until there is a group of the name g_T."""
    pulls = Pulls()
    for _ in range(2):
        assert pulls.may(topic="%RETRY%g_T")
    pulls.view.groups.add("g_T")
    assert not pulls.may(topic="%RETRY%g_T")


def test_where_all_is_logged_every_pull_has_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    pulls = Pulls(audit=Audit.ALL)
    for _ in range(3):
        assert pulls.may()
    assert len(caplog.records) == 3 * 2


def test_decisions_about_long_names_are_not_kept() -> None:
    decisions, who = Decisions(book_of("alice")), caller()
    for number in range(20):
        assert not decisions.of("alice", who, topic("x" * (1000 + number), Action.PUB)).allowed
        decisions.keep_allowed("alice", who, (310, "x" * (1000 + number), None))
    kept = decisions.kept("alice", who)
    assert (len(kept.needs), len(kept.allowed)) == (0, 0)
    decisions.of("alice", who, topic("x" * 255, Action.PUB))
    assert len(kept.needs) == 1

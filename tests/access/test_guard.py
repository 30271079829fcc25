"""The guard: who is let in, what strangers hear, and when."""

from __future__ import annotations

import ipaddress
import logging
from typing import Any, cast

import pytest

from kerolox.access.book import Book
from kerolox.access.failures import DELAY_MAX_S, FORGIVEN_S, FREE, WAITING_MAX, Failures, delay_after
from kerolox.access.guard import NOT_KNOWN, Guard, NotKnown
from kerolox.access.options import AccessOptions, Audit
from kerolox.errors import OptionError
from kerolox.front.caller import Caller
from kerolox.front.needs import ClusterView
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, Request
from kerolox.net.signing import Credentials
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.signature import sign
from kerolox.testing.access import ADMIN
from kerolox.testing.clock import ManualClock
from tests.served import NAMESERVER

from .users_kit import add_user

NEAR, FAR = "10.0.0.9:4000", "203.0.113.7:4000"


class Stranger:
    """A caller that keeps what it hears."""

    def __init__(self, address: str = NEAR) -> None:
        self.address = address
        self.data: dict[str, Any] = {}
        self.heard: list[Answer] = []
        self.closed = ""

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        self.heard.append(answer)

    def proof(self, asked: Request[Any]) -> Command:
        return cast(Command, asked.ticket)

    def close(self, reason: str) -> None:
        self.closed = reason


def asked(
    code: int, who: Credentials | None = None, *, caller: Stranger | None = None, topic: str = "T"
) -> Request[Any]:
    fields = {"topic": topic}
    if who is not None:
        fields = sign(fields, b"", who.access_key, who.secret_key)
    command = Command(code, fields=fields)
    header = RouteRequest(topic=topic)
    return Request(cast(Caller, caller or Stranger()), code, header, b"", 0.0, command)


def guard_of(book: Book, clock: ManualClock | None = None, **options: Any) -> Guard:
    settings = AccessOptions(**{"authentication": True, "authorization": True, **options})
    return Guard(book, ClusterView("DefaultCluster"), settings, clock or ManualClock())


@pytest.fixture
def book() -> Book:
    book = Book()
    book.ensure_super(ADMIN.access_key, ADMIN.secret_key)
    return book


ROUTE, WIPE = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.WIPE_WRITE_PERM_OF_BROKER


def test_strangers_hear_one_text_and_the_log_the_reason(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    guard = guard_of(book)
    someone = add_user(book, "someone", {})
    book.replace(
        {
            **book.users,
            "someone": type(book.users["someone"])("someone", someone.secret_key, is_enabled=False),
        },
        {},
    )
    heard = []
    for who in (None, Credentials("nobody", "x"), Credentials("admin", "guessed"), someone):
        caller = Stranger()
        assert not guard.admits(asked(ROUTE, who, caller=caller))
        heard += [(answer.code, answer.remark) for answer in caller.heard]
    assert heard == [(ResponseCode.NO_PERMISSION, NOT_KNOWN)] * 4
    for why in ("no access key", "no such user", "wrong signature", "the user is disabled"):
        assert why in caplog.text
    assert "guessed" not in caplog.text


def test_a_known_user_may_do_what_its_rules_say_and_no_more(book: Book) -> None:
    guard = guard_of(book)
    alice = add_user(book, "alice", {"Topic:T": "Pub"})
    for topic, allowed in (("T", True), ("U", False)):
        request = asked(ROUTE, alice, topic=topic)
        assert guard.admits(request)
        assert guard.allows(request, NAMESERVER[request.code]) is allowed
    request = asked(WIPE, alice)
    assert guard.admits(request)
    assert not guard.allows(request, NAMESERVER[request.code])


def test_what_nobody_serves_is_refused_before_that_is_said(book: Book) -> None:
    guard = guard_of(book)
    alice = add_user(book, "alice", {"Topic:*": "All", "Cluster:*": "All"})
    for who, hears in ((alice, False), (ADMIN, True)):
        request = asked(31_337, who)
        assert guard.admits(request)
        assert guard.allows(request, None) is hears


@pytest.mark.parametrize(
    ("admin_from", "far", "near"), [("", False, True), ("203.0.113.0/24", True, False), ("*", True, True)]
)
def test_where_administration_comes_from(book: Book, admin_from: str, far: bool, near: bool) -> None:
    """Also of those who may do everything, and where nobody signs."""
    guards = (
        guard_of(book, admin_from=admin_from),
        guard_of(book, admin_from=admin_from, authentication=False, authorization=False),
    )
    for guard in guards:
        for address, allowed in ((FAR, far), (NEAR, near)):
            request = asked(WIPE, ADMIN, caller=Stranger(address))
            assert guard.admits(request)
            assert guard.allows(request, NAMESERVER[request.code]) is allowed
        reads = asked(ROUTE, ADMIN, caller=Stranger(FAR))
        assert guard.admits(reads)
        assert guard.allows(reads, NAMESERVER[ROUTE])


def test_an_address_that_is_no_address_is_refused() -> None:
    with pytest.raises(OptionError, match="adminFrom"):
        guard_of(Book(), admin_from="10.0.0.0/8,everywhere")


def test_rules_without_signatures_are_refused() -> None:
    with pytest.raises(OptionError, match="authorizationEnabled"):
        AccessOptions(authorization=True).check_access()


def test_every_decision_is_logged_when_asked_for(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    alice = add_user(book, "alice", {"Topic:T": "Pub"})
    for audit, lines in ((Audit.ALL, 2), (Audit.REFUSED, 1), (Audit.NONE, 0)):
        caplog.clear()
        guard = guard_of(book, audit=audit)
        for topic in ("T", "U"):
            request = asked(ROUTE, alice, topic=topic)
            assert guard.admits(request)
            guard.allows(request, NAMESERVER[request.code])
        assert len(caplog.records) == lines
    assert alice.secret_key not in caplog.text


# --- failures -----------------------------------------------------------------------------------------


def test_who_fails_often_hears_of_it_late() -> None:
    clock = ManualClock()
    failures, caller = Failures(clock), Stranger()
    for _ in range(FREE):
        failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
    assert len(caller.heard) == FREE
    failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
    assert len(caller.heard) == FREE
    other = Stranger(FAR)
    failures.refuse(asked(ROUTE, caller=other), Refusal.of(NotKnown("?")))
    assert len(other.heard) == 1  # nobody else waits for it


async def test_the_answer_comes_after_its_time_and_all_is_forgotten_after_a_while() -> None:
    clock = ManualClock()
    failures, caller = Failures(clock), Stranger()
    for _ in range(FREE + 1):
        failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
    await clock.advance(DELAY_MAX_S)
    assert len(caller.heard) == FREE + 1
    await clock.advance(FORGIVEN_S + 1)
    failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
    assert len(caller.heard) == FREE + 2


def test_who_does_not_wait_is_cut_off() -> None:
    failures, caller = Failures(ManualClock()), Stranger()
    for _ in range(FREE + WAITING_MAX):
        failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
        assert not caller.closed
    failures.refuse(asked(ROUTE, caller=caller), Refusal.of(NotKnown("?")))
    assert "were refused" in caller.closed


def test_delays_grow_to_their_bound() -> None:
    delays = [delay_after(count) for count in range(1, 200)]
    assert delays[:FREE] == [0.0] * FREE
    assert delays == sorted(delays)
    assert delays[-1] == DELAY_MAX_S


def test_as_many_addresses_are_remembered_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kerolox.access.failures.ADDRESSES_MAX", 100)
    failures = Failures(ManualClock())
    for number in range(300):
        address = f"{ipaddress.IPv4Address(0x0A000000 + number)}:1"
        failures.refuse(asked(ROUTE, caller=Stranger(address)), Refusal.of(NotKnown("?")))
    assert len(failures._known) == 100


@pytest.mark.parametrize(
    ("admin_from", "local", "allowed"),
    [("", FAR, True), ("", "203.0.113.8:10911", False), ("10.0.0.0/8", FAR, False)],
)
def test_this_host_may_have_an_address_of_the_internet(
    book: Book, admin_from: str, local: str, allowed: bool
) -> None:
    """Commands there reach a server by its address, which is theirs as well."""
    caller = Stranger(FAR)
    caller.local_address = local  # type: ignore[attr-defined]
    request = asked(WIPE, ADMIN, caller=caller)
    guard = guard_of(book, admin_from=admin_from)
    assert guard.admits(request)
    assert guard.allows(request, NAMESERVER[request.code]) is allowed

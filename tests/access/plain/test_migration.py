"""Accounts of RocketMQ 4 as users and rules of 5.3."""

from __future__ import annotations

from kerolox.access.book import Book, User
from kerolox.access.needs.names import PUB, SUB
from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.plain.addresses import parse_addresses
from kerolox.access.plain.migration import left_over_white, migrate, migrate_into
from kerolox.access.policies import ENTRIES_MAX
from kerolox.front.needs import Kind, Need, Resource

ONE = Account(
    access_key="rocketmq1",
    secret_key="12345678",
    white=parse_addresses("192.168.0.*"),
    default_topic=Perm.PUB,
    topics={"in": Perm.SUB, "closed": Perm.DENY, "both": Perm.PUB | Perm.SUB, "orders*": Perm.SUB},
    groups={"mine": Perm.SUB},
)
ADMIN = Account(access_key="rocketmq2", secret_key="87654321", admin=True)


def test_users_and_rules() -> None:
    users, policies, left_over = migrate([ONE, ADMIN])
    assert users == {
        "rocketmq1": User("rocketmq1", "12345678"),
        "rocketmq2": User("rocketmq2", "87654321", is_super=True),
    }
    rules = policies["rocketmq1"]
    assert sorted(map(str, rules.custom.values())) == [
        "allow Pub/Sub on Topic:both",
        "allow Sub on Group:mine",
        "allow Sub on Topic:in",
        "deny All on Topic:closed",
    ]
    assert sorted(map(str, rules.default.values())) == ["allow Pub on Topic:*", "deny All on Group:*"]
    assert len(left_over) == 2
    assert "'orders*'" in left_over[0]
    assert "whiteRemoteAddress 192.168.0.*" in left_over[1]
    assert "10.0.0.1" in left_over_white(parse_addresses("10.0.0.1"))[0]


def test_no_user_is_made_of_a_name_with_a_meaning() -> None:
    users, policies, left_over = migrate(
        [Account(access_key="User:x", secret_key="12345678", admin=True), ADMIN]
    )
    assert users.keys() == policies.keys() == {"rocketmq2"}
    (line,) = left_over
    assert "User:x: skipped" in line
    assert "another accessKey" in line


def test_the_rules_decide_as_the_account_did() -> None:
    rules = migrate([ONE])[1]["rocketmq1"]

    def may(kind: Kind, name: str, actions: frozenset[object]) -> bool:
        return rules.decide(Need(Resource(kind, name), actions), None).allowed  # type: ignore[arg-type]

    assert may(Kind.TOPIC, "in", SUB)
    assert may(Kind.TOPIC, "both", PUB)
    assert not may(Kind.TOPIC, "closed", PUB)
    assert may(Kind.TOPIC, "unknown", PUB)
    assert not may(Kind.TOPIC, "unknown", SUB)
    assert not may(Kind.TOPIC, "orders-1", SUB)  # the star was no pattern
    assert may(Kind.GROUP, "mine", SUB)
    assert not may(Kind.GROUP, "other", SUB)


def test_denials_are_not_lost_among_too_many_permissions() -> None:
    topics = {f"t{number}": Perm.PUB for number in range(ENTRIES_MAX)} | {"closed": Perm.DENY}
    account = Account(access_key="rocketmq1", secret_key="12345678", default_topic=Perm.PUB, topics=topics)
    _, policies, left_over = migrate([account])
    need = Need(Resource(Kind.TOPIC, "closed"), PUB)
    assert not policies["rocketmq1"].decide(need, None).allowed
    assert "1 permissions" in left_over[0]


def test_who_is_in_the_book_stays_as_he_is() -> None:
    book = Book()
    book.replace({"rocketmq1": User("rocketmq1", "another")}, {})
    made, left_over = migrate_into(book, [ONE, ADMIN])
    assert (made, left_over) == (["rocketmq2"], [])
    assert book.users["rocketmq1"].password == "another"
    assert not book.rules_of("rocketmq1").custom
    assert book.users["rocketmq2"].is_super
    version = book.version
    assert migrate_into(book, [ONE, ADMIN]) == ([], [])
    assert book.version == version

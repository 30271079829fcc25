"""Rules that could be read in two ways, or that match nothing, are refused."""

from __future__ import annotations

import pytest

from kerolox.access.book import Book
from kerolox.access.policies import PolicyType
from kerolox.access.resources import parse_pattern
from kerolox.errors import InvalidRequest, Refused
from kerolox.protocol.bodies.access import Acl, AclEntry, AclPolicy, User

SUBJECT = "User:alice"


def rules(
    *entries: tuple[str, str], type: str = "Custom", sources: tuple[str, ...] | None = None
) -> AclPolicy:
    made = (
        AclEntry(resource=resource, actions=("Pub",), decision=decision, source_ips=sources)
        for resource, decision in entries
    )
    return AclPolicy(policy_type=type, entries=tuple(made))


@pytest.fixture
def book() -> Book:
    book = Book()
    book.create_user(User(username="alice", password="secret"))
    return book


@pytest.mark.parametrize(
    "text", ["Topic:a*b", "Topic:a*b*", "Topic:ab**", "Topic: a", "Topic :a", "Topic:", "Topic"]
)
def test_a_pattern_that_would_match_nothing(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a resource"):
        parse_pattern(text)


@pytest.mark.parametrize(
    "policies",
    [
        (rules(("Topic:a", "Deny"), ("Topic:a", "Allow")),),
        (rules(("Topic:a", "Deny")), rules(("Topic:a", "Allow"))),
        (rules(("Topic:a", "Deny")), rules(("topic:a", "Allow"), type="custom")),
    ],
)
def test_two_entries_for_one_resource(book: Book, policies: tuple[AclPolicy, ...]) -> None:
    with pytest.raises(InvalidRequest, match="two entries for Topic:a"):
        book.merge_rules(SUBJECT, Acl(policies=policies))
    assert book.rules_body(SUBJECT) is None


def test_one_resource_in_both_types(book: Book) -> None:
    both = (rules(("Topic:a", "Deny")), rules(("Topic:a", "Allow"), type="Default"))
    book.merge_rules(SUBJECT, Acl(policies=both))
    assert [len(book.rules_of("alice").of(type)) for type in PolicyType] == [1, 1]


@pytest.mark.parametrize("policies", [None, (), (AclPolicy(policy_type="Custom", entries=()),)])
def test_rules_without_an_entry(book: Book, policies: tuple[AclPolicy, ...] | None) -> None:
    with pytest.raises(InvalidRequest, match="have no entry"):
        book.merge_rules(SUBJECT, Acl(policies=policies))
    assert book.rules_body(SUBJECT) is None


def test_a_blank_address_is_not_everywhere(book: Book) -> None:
    with pytest.raises(InvalidRequest, match="is not an address"):
        book.merge_rules(SUBJECT, Acl(policies=(rules(("Topic:a", "Allow"), sources=("",)),)))


def test_the_last_entry_takes_the_rules_with_it(book: Book) -> None:
    book.merge_rules(SUBJECT, Acl(policies=(rules(("Topic:a", "Deny")),)))
    book.delete_rules(SUBJECT, "Custom", "Topic:a")
    assert book.rules_body(SUBJECT) is None
    with pytest.raises(Refused, match="The acl is not exist"):
        book.delete_rules(SUBJECT, None, None)

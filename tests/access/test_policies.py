"""What the rules of a user decide: by cases, and by properties that hold for all rules."""

from __future__ import annotations

import ipaddress
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.access.book import Book, User
from kerolox.access.guard import Guard, NotAllowed, NotKnown, address_of
from kerolox.access.options import AccessOptions
from kerolox.access.policies import (
    ENTRIES_MAX,
    NONE,
    SOURCES_MAX,
    Address,
    Entry,
    Policies,
    PolicyType,
    entry_body,
    parse_entry,
    parse_policy_type,
    parse_source,
)
from kerolox.access.resources import Pattern, parse_action, parse_pattern, parse_resource, topic
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import InvalidRequest
from kerolox.front.caller import Caller
from kerolox.front.needs import Action, ClusterView, Kind, Need, Resource
from tests.access.needs_kit import asked
from tests.access.users_kit import entry, policies

PUB_T = topic("T", Action.PUB)
HERE = ipaddress.ip_address("10.0.0.9")


def decide(rules: dict[str, str], need: Need = PUB_T, source: Address | None = HERE) -> bool:
    return policies(rules).decide(need, source).allowed


# --- by cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, False),
        ({"Topic:T": "Pub"}, True),
        ({"Topic:T": "All"}, True),
        ({"Topic:T": "Sub"}, False),
        ({"topic:T": "pub"}, True),  # kinds and actions have any case
        ({"Topic:t": "Pub"}, False),  # names have not
        ({"Group:T": "All"}, False),
        ({"Topic:T*": "Pub"}, True),
        ({"Topic:TT*": "Pub"}, False),
        ({"Topic:*": "Pub"}, True),
        ({"*": "Pub"}, True),
        ({"Group:*": "All", "Cluster:*": "All", "Namespace:*": "All"}, False),
        # The narrower counts.
        ({"Topic:T": "Pub", "Topic:*": "!All"}, True),
        ({"Topic:T": "!Pub", "Topic:*": "All"}, False),
        ({"Topic:T*": "!Pub", "Topic:*": "All", "*": "All"}, False),
        ({"Topic:T": "Pub", "*": "!All"}, True),
        ({"Topic:*": "!Pub", "*": "All"}, False),
        # What does not speak of the action says nothing.
        ({"Topic:T": "!Sub", "Topic:*": "Pub"}, True),
    ],
)
def test_a_decision(rules: dict[str, str], expected: bool) -> None:
    assert decide(rules) is expected
    assert decide(dict(reversed(rules.items()))) is expected


def test_of_two_prefixes_the_longer_counts() -> None:
    need = topic("orders-eu", Action.PUB)
    assert not decide({"Topic:orders*": "Pub", "Topic:orders-*": "!Pub"}, need)
    assert decide({"Topic:orders*": "!Pub", "Topic:orders-*": "Pub"}, need)


def test_one_of_the_actions_is_enough_and_one_denied_is_too_much() -> None:
    need = topic("T", Action.SUB, Action.GET)
    assert decide({"Topic:T": "Get"}, need)
    assert not decide({"Topic:T": "!Sub", "Topic:*": "Get"}, need)


def test_what_custom_says_counts_and_default_is_for_the_rest() -> None:
    custom = policies({"Topic:*": "!Pub"})
    both = custom.merged(PolicyType.DEFAULT, list(policies({"Topic:T": "All"}).custom.values()))
    assert not both.decide(PUB_T, HERE).allowed  # narrower, but Default
    sub = both.decide(topic("T", Action.SUB), HERE)
    assert (sub.allowed, sub.type) == (True, PolicyType.DEFAULT)


def test_of_equals_the_one_that_denies_counts() -> None:
    """One list has no two entries for a pattern, so no two that are equal: should it ever have."""
    for first, second in ((True, False), (False, True)):
        entries = [
            Entry(Pattern(None, name, is_prefix=True), frozenset({Action.ALL}), allows)
            for name, allows in (("a", first), ("b", second))
        ]
        assert not Policies({one.pattern: one for one in entries}).decide(PUB_T, HERE).allowed


# --- where from --------------------------------------------------------------------------------------------


def source(text: str) -> Address | None:
    class Somebody:
        address = text
        data: dict[str, Any] = {}

    return address_of(cast(Caller, Somebody()))


@pytest.mark.parametrize(
    ("rule", "address", "expected"),
    [
        ("10.0.0.9", "10.0.0.9:5", True),
        ("10.0.0.9", "10.0.0.8:5", False),
        ("10.0.0.0/8", "10.255.0.1:5", True),
        ("10.1.2.3/8", "10.255.0.1:5", True),
        ("10.0.0.0/8", "11.0.0.1:5", False),
        ("0.0.0.0/0", "11.0.0.1:5", True),
        ("0.0.0.0/0", "[2001:db8::1]:5", False),
        ("2001:db8::/32", "[2001:db8::1]:5", True),
        ("2001:db8::/32", "[2001:db9::1]:5", False),
        ("::1", "[::1]:5", True),
        ("10.0.0.0/8", "[::ffff:10.0.0.9]:5", True),
        ("::ffff:10.0.0.0/104", "10.0.0.9:5", True),
        ("::ffff:10.0.0.9", "[::ffff:10.0.0.9]:5", True),
        ("::ffff:10.0.0.0/104", "11.0.0.9:5", False),
        ("10.0.0.0/8", "in this process", False),
    ],
)
def test_an_entry_counts_from_its_addresses(rule: str, address: str, expected: bool) -> None:
    allows = NONE.merged(PolicyType.CUSTOM, [parse_entry(entry("Topic:T", "Pub", "Allow", rule))])
    assert allows.decide(PUB_T, source(address)).allowed is expected
    both = policies({"Topic:*": "Pub"}).merged(
        PolicyType.CUSTOM, [parse_entry(entry("Topic:T", "Pub", "Deny", "192.0.2.1", rule))]
    )
    assert both.decide(PUB_T, source(address)).allowed is not expected


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.*", "10.0.0.0/33", "a host", "10.0.0.1-9"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address"):
        parse_source(text)


# --- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (entry("Topic:T", "Fly"), "is not an action"),
        (entry("Topic:T", "Any"), "is not an action"),
        (entry("Topic:T", "Pub", "Maybe"), "is not a decision"),
        (entry("Topic:T", "Pub", ""), "is not a decision"),
        (entry("Table:T", "Pub"), "is not a resource"),
        (entry("T", "Pub"), "is not a resource"),
        (entry("Topic:T", "Pub", "Allow", *["10.0.0.1"] * (SOURCES_MAX + 1)), "the limit is"),
    ],
)
def test_what_is_not_known_is_refused(body: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_entry(body)


def test_a_user_has_so_many_entries() -> None:
    many = policies({f"Topic:{number}": "Pub" for number in range(ENTRIES_MAX)})
    assert len(many.merged(PolicyType.CUSTOM, list(policies({"Topic:0": "Sub"}).custom.values())).custom) == (
        ENTRIES_MAX
    )
    with pytest.raises(InvalidRequest, match="use prefixes"):
        many.merged(PolicyType.CUSTOM, list(policies({"Topic:new": "Sub"}).custom.values()))


def test_texts_of_resources() -> None:
    for text in ("*", "Topic:*", "Group:a*", "Cluster:DefaultCluster", "Topic:%RETRY%G", "Topic:a:b"):
        assert str(parse_pattern(text)) == text
    assert parse_resource("topic:T") == Resource(Kind.TOPIC, "T")
    for text in ("*", "Topic:*", "Topic:a*"):
        with pytest.raises(InvalidRequest, match="matches many"):
            parse_resource(text)
    assert parse_action(" pub ") is Action.PUB
    assert parse_policy_type(None) is PolicyType.CUSTOM
    with pytest.raises(InvalidRequest, match="not a policy type"):
        parse_policy_type("Other")


# --- properties --------------------------------------------------------------------------------------------

few = settings(max_examples=50)  # names of three letters: rules meet often
NAMES = st.text("ab%", min_size=1, max_size=3)
KINDS = st.sampled_from(Kind)
ACTIONS = st.frozensets(st.sampled_from(Action), min_size=1, max_size=3)
ASKED = st.frozensets(
    st.sampled_from([one for one in Action if one is not Action.ALL]), min_size=1, max_size=2
)
NETWORKS = st.sampled_from(["10.0.0.0/8", "10.0.0.9", "192.0.2.0/24", "2001:db8::/32", "0.0.0.0/0", "::/0"])
SOURCES = st.none() | st.sampled_from(
    [ipaddress.ip_address(text) for text in ("10.0.0.9", "10.9.9.9", "192.0.2.7", "2001:db8::1")]
)
PATTERNS = st.one_of(
    st.just(Pattern(None, "", is_prefix=True)),
    st.builds(Pattern, KINDS, NAMES, is_prefix=st.booleans()),
    st.builds(Pattern, KINDS, st.just(""), is_prefix=st.just(True)),
)
ENTRIES = st.builds(
    Entry,
    PATTERNS,
    ACTIONS,
    st.booleans(),
    st.lists(NETWORKS.map(parse_source), max_size=2).map(tuple),
)
LISTS = st.lists(ENTRIES, max_size=8).map(lambda found: {one.pattern: one for one in found})
RULES = st.builds(Policies, LISTS, LISTS)
NEEDS = st.builds(Need, st.builds(Resource, KINDS, NAMES), ASKED)


@few
@given(RULES, NEEDS, SOURCES)
def test_what_nobody_allows_is_denied(rules: Policies, need: Need, source: Address | None) -> None:
    decision = rules.decide(need, source)
    allowing = [
        one
        for table in (rules.custom, rules.default)
        for one in table.values()
        if one.allows and one.matches(need, source)
    ]
    if decision.allowed:
        assert decision.entry in allowing
    if not allowing:
        assert not decision.allowed


@few
@given(RULES, NEEDS, SOURCES)
def test_the_entry_that_counts_is_the_narrowest(rules: Policies, need: Need, source: Address | None) -> None:
    decision = rules.decide(need, source)
    custom = [one for one in rules.custom.values() if one.matches(need, source)]
    asked_of = custom or [one for one in rules.default.values() if one.matches(need, source)]
    if not asked_of:
        assert decision.entry is None
        return
    assert decision.entry in asked_of
    exact = [one for one in asked_of if one.pattern.kind is not None and not one.pattern.is_prefix]
    typed = [one for one in asked_of if one.pattern.kind is not None]
    if exact:
        assert [decision.entry] == exact
    elif typed:
        longest = max(len(one.pattern.name) for one in typed)
        assert decision.entry in typed
        assert len(decision.entry.pattern.name) == longest


@few
@given(RULES, NEEDS, SOURCES, st.randoms())
def test_the_order_of_entries_does_not_matter(
    rules: Policies, need: Need, source: Address | None, random: Any
) -> None:
    mixed = [dict(random.sample(list(table.items()), len(table))) for table in (rules.custom, rules.default)]
    assert Policies(*mixed).decide(need, source) == rules.decide(need, source)


@few
@given(RULES, NEEDS, SOURCES, ENTRIES)
def test_one_more_entry_that_denies_allows_nothing_more(
    rules: Policies, need: Need, source: Address | None, more: Entry
) -> None:
    if more.pattern in rules.custom or more.allows:
        return
    after = rules.merged(PolicyType.CUSTOM, [more])
    if after.decide(need, source).allowed:
        assert rules.decide(need, source).allowed


@few
@given(RULES)
def test_entries_are_as_they_were_after_a_way_through_a_file(rules: Policies) -> None:
    for one in rules.custom.values():
        assert parse_entry(entry_body(one)) == one


@few
@given(RULES, NEEDS)
def test_a_user_that_may_do_everything_needs_no_rules_and_a_disabled_one_may_do_nothing(
    rules: Policies, need: Need
) -> None:
    book = Book()
    users = [
        User("root", "s", is_super=True),
        User("alice", "s"),
        User("gone", "s", is_super=True, is_enabled=False),
    ]
    book.replace({user.name: user for user in users}, {user.name: rules for user in users})
    options = AccessOptions(authentication=True, authorization=True)
    guard = Guard(book, ClusterView("c"), options, SYSTEM_CLOCK)

    class Nobody:
        address = "in this process"
        data: dict[str, Any] = {}

    def passes(name: str | None) -> bool:
        request = asked(10)
        request.caller = cast(Caller, Nobody())
        request.identity = name
        try:
            guard.check(request, [need])
        except (NotAllowed, NotKnown):
            return False
        return True

    assert passes("root")
    assert not passes("gone")
    assert not passes("nobody")
    assert not passes(None)
    assert passes("alice") is rules.decide(need, None).allowed


def test_a_refusal_says_what_was_lacking() -> None:
    assert str(NotAllowed("User:alice", PUB_T.resource, HERE, "no matched policies.")) == (
        "User:alice has no permission to access Topic:T from 10.0.0.9, no matched policies."
    )

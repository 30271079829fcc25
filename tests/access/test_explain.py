"""Explanations say what is decided, and why."""

from __future__ import annotations

import ipaddress
import random

from kerolox.access.book import User
from kerolox.access.explain import explain
from kerolox.access.policies import NONE, Entry, Policies, PolicyType, parse_source
from kerolox.access.resources import parse_pattern, topic
from kerolox.front.needs import Action, Kind, Need, Resource

ALICE = User("alice", "secret")
HERE = ipaddress.ip_address("10.0.0.9")


def entry(pattern: str, *actions: Action, allows: bool = True, sources: tuple[str, ...] = ()) -> Entry:
    return Entry(parse_pattern(pattern), frozenset(actions), allows, tuple(map(parse_source, sources)))


def policies(*custom: Entry, default: tuple[Entry, ...] = ()) -> Policies:
    return NONE.merged(PolicyType.CUSTOM, list(custom)).merged(PolicyType.DEFAULT, list(default))


def test_users_that_need_no_rules() -> None:
    need = topic("orders", Action.PUB)
    disabled = explain(User("bob", "s", is_super=True, is_enabled=False), NONE, need, HERE)
    assert (disabled.allowed, disabled.steps) == (False, ())
    assert "disabled" in disabled.why
    told = explain(User("root", "s", is_super=True), NONE, need, HERE)
    assert told.allowed
    assert "Super" in told.why
    assert "has no rules" in explain(ALICE, NONE, need, HERE).why


def test_every_rule_says_why_it_does_or_does_not_decide() -> None:
    rules = policies(
        entry("Topic:orders", Action.SUB),
        entry("Topic:ord*", Action.PUB, allows=False),
        entry("Topic:*", Action.ALL),
        entry("Group:orders", Action.ALL),
        entry("Topic:orde*", Action.PUB, sources=("192.168.0.0/16",)),
        default=(entry("*", Action.ALL),),
    )
    told = explain(ALICE, rules, topic("orders", Action.PUB), HERE)
    assert not told.allowed
    assert "deny Pub on Topic:ord*" in told.why
    assert {str(step.entry.pattern): step.verdict for step in told.steps} == {
        "Topic:orders": "it covers other actions",
        "Topic:ord*": "it decides",
        "Topic:*": "it matches, but a narrower entry decides",
        "Group:orders": "it covers other resources",
        "Topic:orde*": "it does not cover 10.0.0.9",
        "*": "it matches, but Custom comes before Default",
    }
    nowhere = explain(ALICE, rules, topic("orders", Action.PUB), None)
    assert "it covers only some addresses: name the client's with --from" in [
        step.verdict for step in nowhere.steps
    ]
    by_default = explain(ALICE, policies(default=(entry("*", Action.ALL),)), topic("t", Action.PUB), HERE)
    assert by_default.allowed
    assert "Default policy" in by_default.why
    none = explain(ALICE, policies(entry("Topic:x", Action.PUB)), topic("t", Action.PUB), HERE)
    assert "none of the 1 rules" in none.why


def test_an_explanation_never_says_anything_else_than_the_decision() -> None:
    chance = random.Random(16)
    patterns = ["*", "Topic:*", "Group:*", "Topic:a*", "Topic:ab*", "Topic:ab", "Group:ab", "Cluster:c"]
    sources: list[tuple[str, ...]] = [(), ("10.0.0.0/8",), ("10.0.0.9", "::1"), ("192.168.0.0/16",)]

    def some() -> list[Entry]:
        return [
            entry(
                pattern,
                *chance.sample(list(Action), chance.randint(1, 3)),
                allows=chance.random() < 0.5,
                sources=chance.choice(sources),
            )
            for pattern in chance.sample(patterns, chance.randint(0, 4))
        ]

    for _ in range(2000):
        rules = policies(*some(), default=tuple(some()))
        resource = Resource(chance.choice([Kind.TOPIC, Kind.GROUP]), chance.choice(["a", "ab", "abc", "x"]))
        need = Need(resource, frozenset({chance.choice([Action.PUB, Action.SUB, Action.GET])}))
        source = chance.choice([HERE, ipaddress.ip_address("::1"), None])
        decided, told = rules.decide(need, source), explain(ALICE, rules, need, source)
        assert told.allowed == decided.allowed
        assert [step.entry for step in told.steps if step.decides] == [decided.entry] * bool(decided.entry)
        assert len(told.steps) == len(rules.custom) + len(rules.default)

"""Users, rules and requests made up from a number, for :mod:`tests.peers.access_decisions`."""

from __future__ import annotations

import ipaddress
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KINDS = ("Topic", "Group", "Cluster", "Namespace")
ASKED_KINDS = ("Topic", "Group", "Cluster")
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
# Few and alike, so that several rules speak of one resource.
NAMES = ("a", "ab", "abc", "abd", "b", "ba", "A", "n%ab", "%RETRY%ab", "%DLQ%ab", "x_y-z", "é")
HOSTS = (
    "10.0.0.9",
    "10.0.1.9",
    "127.0.0.1",
    "192.168.3.4",
    "8.8.8.8",
    "fe80::9",
    "2001:db8::1",
    "::1",
    "::a00:9",
)
NETWORKS = (
    "10.0.0.9", "10.0.0.0/24", "10.0.0.77/24", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.1", "127.0.0.1/32",
    "192.168.3.0/30", "fe80::/10", "2001:db8::/32", "::/0", "::1/128", "::1",
)  # fmt: skip


@dataclass
class Case:
    users: list[dict[str, str]]
    changes: list[dict[str, str]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    oddity: str | None = None  # what is wrong, or strange, with the only change

    def as_json(self) -> dict[str, Any]:
        requests = [request | {"source": as_java_tells(request["source"])} for request in self.requests]
        return {"users": self.users, "changes": self.changes, "requests": requests}


def as_java_tells(source: str) -> str:
    """The address of a connection as text, as Java's sockets write it."""
    address = ipaddress.ip_address(source)
    if address.version == 4:
        return source
    groups = (address.packed[at : at + 2] for at in range(0, 16, 2))
    return f"[{':'.join(f'{int.from_bytes(group):x}' for group in groups)}]"


# --- well-formed ----------------------------------------------------------------------------------------


def decisions(seed: int, count: int) -> Iterator[Case]:
    """Cases with rules that both take, put and deleted in several steps, and requests."""
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        users = [
            {
                "username": name,
                "userType": chance.choices(("Normal", "Super"), (9, 1))[0],
                "userStatus": chance.choices(("enable", "disable"), (9, 1))[0],
            }
            for name in ("alice", "bob")
        ]
        case = Case(users)
        for _ in range(chance.randint(0, 4)):
            case.changes.append(_change(chance, chance.choice(users)["username"]))
        for _ in range(chance.randint(5, 10)):
            case.requests.append(_request(chance))
        yield case


def _change(chance: random.Random, user: str) -> dict[str, str]:
    subject = f"User:{user}"
    if chance.random() < 0.1:
        return {
            "subject": subject,
            "resource": _pattern(chance),
            "policyType": chance.choice(("Custom", "Default")),
        }
    policies = [
        {"policyType": type, "entries": _entries(chance)}
        for type in chance.choice((("Custom",), ("Default",), ("Custom", "Default"), ("default", "CUSTOM")))
    ]
    return put(subject, policies)


def put(subject: str, policies: object) -> dict[str, str]:
    return {"subject": subject, "body": json.dumps({"subject": subject, "policies": policies})}


def _entries(chance: random.Random) -> list[dict[str, Any]]:
    patterns = sorted({_pattern(chance) for _ in range(chance.randint(1, 6))})
    chance.shuffle(patterns)
    return [entry(chance, resource=pattern) for pattern in patterns]


def entry(chance: random.Random, **given: Any) -> dict[str, Any]:
    actions = ["All"] if chance.random() < 0.2 else chance.sample(ACTIONS, chance.randint(1, 3))
    made: dict[str, Any] = {
        "resource": _pattern(chance),
        "actions": [chance.choice((action, action.lower(), action.upper())) for action in actions],
        "decision": chance.choice(("Allow", "Deny", "allow", "DENY")),
    }
    if chance.random() < 0.3:
        made["sourceIps"] = chance.sample(NETWORKS, chance.randint(1, 2))
    return made | given


def _pattern(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return "*"
    kind = chance.choices(KINDS, (6, 3, 1, 1))[0]
    name = chance.choice(NAMES)
    shape = chance.random()
    if shape < 0.15:
        return f"{kind}:*"
    if shape < 0.6:
        return f"{kind}:{name[: chance.randint(1, len(name))]}*"
    return f"{kind}:{name}"


def _request(chance: random.Random) -> dict[str, Any]:
    return {
        "user": chance.choices(("alice", "bob", "nobody"), (5, 5, 1))[0],
        "kind": chance.choices(ASKED_KINDS, (6, 3, 1))[0],
        "name": chance.choice(NAMES),
        "actions": chance.sample(ACTIONS, chance.choices((1, 2, 3), (6, 3, 1))[0]),
        "source": chance.choice(HOSTS),
    }


# --- odd ------------------------------------------------------------------------------------------------

ENTRY_ODDITIES: dict[str, dict[str, Any]] = {
    "an unknown action beside a known one": {"actions": ["Pub", "Fly"]},
    "an unknown action alone": {"actions": ["Fly"]},
    "the action Any": {"actions": ["Any"]},
    "the action Unknown": {"actions": ["Unknown"]},
    "no actions": {"actions": []},
    "an action with spaces": {"actions": [" Pub "]},
    "no decision": {"decision": None},
    "an unknown decision": {"decision": "Perhaps"},
    "no resource": {"resource": None},
    "a blank resource": {"resource": " "},
    "an unknown kind": {"resource": "Queue:a"},
    "the kind Any": {"resource": "Any:a"},
    "the kind Unknown": {"resource": "Unknown:a"},
    "a kind without a name": {"resource": "Topic:"},
    "a kind without a colon": {"resource": "Topic"},
    "a name without a kind": {"resource": "abc"},
    "a kind in small letters": {"resource": "topic:ab*"},
    "spaces around a name": {"resource": "Topic: a"},
    "spaces around the whole": {"resource": " Topic:a "},
    "a star in the middle": {"resource": "Topic:a*b"},
    "two stars": {"resource": "Topic:a*b*"},
    "two stars at the end": {"resource": "Topic:ab**"},
    "a colon in the name": {"resource": "Topic:a:b"},
    "a blank address": {"sourceIps": [""]},
    "no address that is one": {"sourceIps": ["10.0.0"]},
    "an address with a star": {"sourceIps": ["10.0.0.*"]},
    "a network of a host name": {"sourceIps": ["localhost/8"]},
    "a network too narrow": {"sourceIps": ["10.0.0.0/33"]},
    "a network with a mask": {"sourceIps": ["10.0.0.0/255.0.0.0"]},
    "a network with no width": {"sourceIps": ["10.0.0.0/"]},
    "spaces around an address": {"sourceIps": [" 10.0.0.9 "]},
    "no addresses": {"sourceIps": []},
    "null for addresses": {"sourceIps": None},
}  # fmt: skip


def odd_changes(seed: int) -> Iterator[Case]:
    """One case for each way in which a body may be strange, with requests that show what it came to."""
    chance = random.Random(f"{seed}/odd")
    user = {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    allow_a = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
    deny_a = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Deny"}
    bodies: dict[str, object] = {
        "no policies": [],
        "null for policies": None,
        "a policy without entries": [{"policyType": "Custom", "entries": []}],
        "a policy without entries beside one": [
            {"policyType": "Custom"}, {"policyType": "Default", "entries": [allow_a]},
        ],
        "no policy type": [{"entries": [allow_a]}],
        "an unknown policy type": [{"policyType": "Special", "entries": [allow_a]}],
        "a resource twice, Deny last": [{"policyType": "Custom", "entries": [allow_a, deny_a]}],
        "a resource twice, Deny first": [{"policyType": "Custom", "entries": [deny_a, allow_a]}],
        "a policy type twice, Deny last": [
            {"policyType": "Custom", "entries": [allow_a]}, {"policyType": "Custom", "entries": [deny_a]},
        ],
        "a policy type twice, Deny first": [
            {"policyType": "Custom", "entries": [deny_a]}, {"policyType": "Custom", "entries": [allow_a]},
        ],
    }  # fmt: skip
    for name, change in ENTRY_ODDITIES.items():
        for decision in ("Allow", "Deny"):
            plain = {"resource": "Topic:a", "actions": ["Pub"], "decision": decision}
            bodies[f"{name} ({decision})"] = [{"policyType": "Custom", "entries": [plain | change]}]
    subjects = {
        "an unknown user": "User:nobody", "a subject without a kind": "alice",
        "an unknown kind of subject": "Role:alice", "no subject": "",
        "a subject in small letters": "user:alice", "a subject with spaces": "User: alice",
    }  # fmt: skip
    changes = {name: put("User:alice", body) for name, body in bodies.items()}
    changes |= {
        name: put(subject, [{"policyType": "Custom", "entries": [allow_a]}])
        for name, subject in subjects.items()
    }
    changes["delete rules where there are none"] = {
        "subject": "User:alice",
        "resource": "Topic:a",
        "policyType": "Custom",
    }
    for name, change in changes.items():
        requests = [
            {"user": "alice", "kind": "Topic", "name": topic, "actions": [action], "source": source}
            for topic in ("a", "ab", "abc", "axb", "b")
            for action in ("Pub", "Get")
            for source in ("10.0.0.9", "127.0.0.1", chance.choice(HOSTS))
        ]
        yield Case([user], [change], requests, oddity=name)

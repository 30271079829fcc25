"""Whether our guard decides as Apache's classes do: the same users, rules and requests given to both. (What a
request needs is compared by :mod:`tests.peers.access_needs`.)

The two may differ where Apache's is open, or wrong, and nowhere else: every difference has a name and a
reason here. RocketMQ 5.5.0 has what older releases had not: Deny before Allow among equals (#9784), the order
of patterns (#9462, #9539), and disabled users do not pass. ``make access-decisions`` writes down how many
cases there were, and how many of each difference.
"""

from __future__ import annotations

import argparse
import ipaddress
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerolox.access.book import Book, User
from kerolox.access.guard import Guard
from kerolox.access.options import AccessOptions
from kerolox.access.policies import parse_source
from kerolox.access.resources import parse_action
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.front.needs import Kind, Need, Resource
from kerolox.front.requests import Request
from kerolox.protocol.bodies import access as bodies

from . import access_needs
from .access_cases import Case, as_java_tells, decisions, odd_changes
from .driver import JavaDriver
from .jars import get_jars

BATCH = 200
KINDS = {kind.value: kind for kind in Kind}


# --- ours -----------------------------------------------------------------------------------------------


class _From:
    """A caller, as far as a guard looks at it."""

    def __init__(self, source: str) -> None:
        self.address = f"[{source}]:1234" if ":" in source else f"{source}:1234"
        self.data: dict[str, Any] = {}


def ours(case: Case) -> dict[str, list[str | None]]:
    """What our book and guard say; None is well."""
    book = Book()
    users = (
        User(user["username"], "secret", user["userType"] == "Super", user["userStatus"] == "enable")
        for user in case.users
    )
    book.replace({user.name: user for user in users}, {})
    guard = Guard(book, None, AccessOptions(authentication=True, authorization=True), Clock())  # type: ignore[arg-type]
    return {
        "changes": [failure(lambda each=each: change(book, each)) for each in case.changes],  # type: ignore[misc]
        "decisions": [failure(lambda each=each: check(guard, each)) for each in case.requests],  # type: ignore[misc]
    }


def failure(attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except KeroloxError as error:
        return f"{type(error).__name__} {error.code}: {error}"
    return None


def change(book: Book, change: dict[str, str]) -> None:
    if "body" in change:
        book.merge_rules(change["subject"], bodies.Acl.decode(change["body"].encode()))
    else:
        book.delete_rules(change["subject"], change["policyType"], change["resource"])


def check(guard: Guard, request: dict[str, Any]) -> None:
    asked: Request[Any] = Request(_From(request["source"]), 0, None, b"", 0.0, None)  # type: ignore[arg-type]
    asked.identity = request["user"]
    need = Need(
        Resource(KINDS[request["kind"]], request["name"]),
        frozenset(parse_action(action) for action in request["actions"]),
    )
    guard.check(asked, [need])


# --- differences ----------------------------------------------------------------------------------------

# Why a decision may differ. Each says what is true of the case, not what was decided.
OTHER_FAMILY = "Apache compares addresses of both families as numbers: ::a00:9 is in 10.0.0.0/8"
WRITTEN_OTHERWISE = "Apache compares single addresses as text: ::1 is not what Java calls it"

# What changes ours refuses and Apache's takes, by what is odd about them.
STRICTER = {
    "an unknown action beside a known one": "Apache drops it, and has another rule than was written",
    "the action Unknown": "Apache keeps a rule that matches nothing",
    "the kind Any": "Apache takes Any:a for everything",
    "the kind Unknown": "Apache keeps a rule that matches nothing",
    "a kind without a name": "Apache keeps a rule that matches nothing",
    "a kind without a colon": "Apache keeps a rule that matches nothing",
    "spaces around a name": "Apache keeps a rule that matches nothing",
    "a star in the middle": "Apache keeps a rule that matches nothing",
    "two stars": "Apache takes Topic:a*b* for Topic:a*",
    "two stars at the end": "Apache takes Topic:ab** for Topic:ab*",
    "a network of a host name": "Apache asks the DNS at every decision",
    "an unknown policy type": "Apache takes it for Custom",
    "a resource twice, Deny last": "Apache keeps both; Deny wins since #9784",
    "a resource twice, Deny first": "Apache keeps both; Deny wins since #9784",
    "a policy type twice, Deny last": "Apache keeps both, and asks the first alone",
    "a policy type twice, Deny first": "Apache keeps both, and asks the first alone",
}

# What ours takes although Apache's refuses it: it can mean one thing only.
TAKEN = {
    "an action with spaces": "spaces around a word",
    "spaces around the whole": "spaces around a word",
    "spaces around an address": "spaces around a word",
    "a network with a mask": "10.0.0.0/255.0.0.0 is 10.0.0.0/8",
}


@dataclass
class Difference:
    name: str
    count: int = 0
    ours_allows: int = 0  # of the count, where Apache's does not
    example: dict[str, Any] = field(default_factory=dict)


@dataclass
class Comparison:
    """What came of it."""

    cases: int = 0
    changes: int = 0
    requests: int = 0
    allowed: int = 0  # by both
    denied: int = 0
    differences: dict[str, Difference] = field(default_factory=dict)
    unnamed: list[dict[str, Any]] = field(default_factory=list)

    def note(self, name: str | None, example: dict[str, Any], *, ours_allows: bool) -> None:
        if name is None:
            self.unnamed.append(example)
            return
        difference = self.differences.setdefault(name, Difference(name, example=example))
        difference.count += 1
        difference.ours_allows += ours_allows

    def as_json(self) -> dict[str, Any]:
        return {
            "cases": self.cases, "changes": self.changes, "requests": self.requests,
            "allowed_by_both": self.allowed, "denied_by_both": self.denied,
            "differences": [
                vars(self.differences[name]) for name in sorted(self.differences)
            ],
            "unnamed_differences": self.unnamed,
        }  # fmt: skip


def compare(driver: JavaDriver, cases: Iterable[Case]) -> Comparison:
    result = Comparison()
    for batch in _batches(cases):
        answers = driver.call("access.decide", cases=[case.as_json() for case in batch], timeout=300.0)
        for case, apaches in zip(batch, answers, strict=True):
            _compare(result, case, ours(case), apaches)
    return result


def _compare(
    result: Comparison, case: Case, ours: dict[str, list[str | None]], apaches: dict[str, list[str | None]]
) -> None:
    result.cases += 1
    agree = True
    for change, mine, theirs in zip(case.changes, ours["changes"], apaches["changes"], strict=True):
        result.changes += 1
        if (mine is None) == (theirs is None):
            continue
        agree = False
        name = (STRICTER if theirs is None else TAKEN).get((case.oddity or "").partition(" (")[0])
        shown = {"oddity": case.oddity, "change": change, "ours": mine, "apache": theirs}
        result.note(name and f"{case.oddity}: {name}", shown, ours_allows=mine is None)
    if not agree:
        return  # they have different rules now
    for request, mine, theirs in zip(case.requests, ours["decisions"], apaches["decisions"], strict=True):
        result.requests += 1
        if mine is None and theirs is None:
            result.allowed += 1
        elif mine is not None and theirs is not None:
            result.denied += 1
        else:
            shown = {"case": case.as_json() | {"requests": [request]}, "ours": mine, "apache": theirs}
            result.note(_why(case, request), shown, ours_allows=mine is None)


def _why(case: Case, request: dict[str, Any]) -> str | None:
    """What about this request is known to be decided differently."""
    source = ipaddress.ip_address(request["source"])
    for text in _addresses(case, request["user"]):
        network = parse_source(text)
        if "/" not in text and source in network and text != as_java_tells(request["source"]):
            return WRITTEN_OTHERWISE
        if network.version != source.version and _holds(network, int(source)):
            return OTHER_FAMILY
    return None


def _holds(network: ipaddress.IPv4Network | ipaddress.IPv6Network, number: int) -> bool:
    return int(network.network_address) <= number <= int(network.broadcast_address)


def _addresses(case: Case, user: str) -> Iterator[str]:
    for change in case.changes:
        if change["subject"] != f"User:{user}" or "body" not in change:
            continue
        for policy in json.loads(change["body"])["policies"] or ():
            for entry in policy.get("entries") or ():
                yield from entry.get("sourceIps") or ()


def _batches(cases: Iterable[Case]) -> Iterator[list[Case]]:
    cases = iter(cases)
    while batch := list(itertools.islice(cases, BATCH)):
        yield batch


# --- the run --------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerolox-access-") as folder:
        driver = JavaDriver(get_jars("5x"), Path(folder))
        driver.start()
        try:
            result = compare(
                driver, itertools.chain(odd_changes(options.seed), decisions(options.seed, options.cases))
            )
            needs = {
                name: access_needs.compare(driver, rules) for name, rules in access_needs.SERVERS.items()
            }
        finally:
            driver.finish()
    shown = {
        "apache": driver.jars.version,
        "seed": options.seed,
        "decisions": result.as_json(),
        "needs": {name: compared.as_json() for name, compared in needs.items()},
    }
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text, end="")
    return 1 if result.unnamed or any(compared.unnamed for compared in needs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The blocking twins are what the awaiting classes are, without await.

Every method, parameter, default and annotation is compared, so that neither can change alone. What differs on
purpose is listed with the reason.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

import kerolox
from kerolox import blocking
from kerolox.client.send import transactions

PAIRS = {
    "Client": (kerolox.Client, blocking.Client),
    "Producer": (kerolox.Producer, blocking.Producer),
    "PushConsumer": (kerolox.PushConsumer, blocking.PushConsumer),
    "PullConsumer": (kerolox.PullConsumer, blocking.PullConsumer),
    "Admin": (kerolox.Admin, blocking.Admin),
    "Transaction": (transactions.Transaction, blocking.Transaction),
}
# What await makes of the names of methods.
SPELLED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}

_BY_CLIENT = "the client calls it, on its event loop"
_BY_MEMBERS = "producers and consumers call it, on the event loop"
_BY_PULLS = "pulls and handlers of the consumer call it, on the event loop"
# Names of the awaiting class that have no twin.
WITHOUT_TWIN = {
    "Client": {
        **dict.fromkeys(
            [
                "add_consumer",
                "add_producer",
                "address",
                "ask",
                "check_home",
                "check_open",
                "end_program",
                "heartbeat",
                "is_of_parent",
                "masters",
                "peer",
                "ready_peer",
                "refresh_routes",
                "remove_consumer",
                "remove_producer",
                "replica",
                "retire",
                "spawn",
                "user_name",
                "vip",
                "wire_name",
            ],
            _BY_MEMBERS,
        ),
        **dict.fromkeys(["connected", "closed"], "connections call it, on the event loop"),
    },
    "Producer": {
        **dict.fromkeys(["topics", "route_changed", "check_transaction"], _BY_CLIENT),
        "send_prepared": "transactions of the producer call it",
    },
    "PushConsumer": {
        **dict.fromkeys(
            [
                "topics",
                "route_changed",
                "heartbeat",
                "members_changed",
                "reset_offsets",
                "offsets",
                "running_info",
                "consume_directly",
            ],
            _BY_CLIENT,
        ),
        **dict.fromkeys(
            [
                "arrived",
                "call",
                "failed",
                "handler_of",
                "is_full",
                "load",
                "pulled",
                "save",
                "start_task",
                "unwant",
                "want",
            ],
            _BY_PULLS,
        ),
    },
    "Transaction": dict.fromkeys(("__enter__", "__exit__"), "the producer's context manager is entered"),
}
WITHOUT_TWIN["PullConsumer"] = {
    **{name: why for name, why in WITHOUT_TWIN["PushConsumer"].items() if name in dir(kerolox.PullConsumer)},
    "__anext__": "a blocking loop takes its batches from the generator that __iter__ returns",
}
# Methods of the twin that the awaiting class has not.
ONLY_TWIN = {("Transaction", "state"): "an attribute of the awaiting one"}
# Signatures that are not the same.
OTHERWISE = {
    ("Client", "__init__"): "clock is for tests of the client itself, which run on its event loop",
    ("Producer", "transaction"): "a context manager cannot be awaited into: the twin yields the transaction",
    ("Transaction", "__init__"): "made by the producer, from the awaiting one",
    ("PullConsumer", "__iter__"): "`async for` asks an iterator, `for` a generator",
}


def public(kind: type) -> dict[str, Any]:
    """Methods and properties that users see, and those with special names, as far as they are ours."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("kerolox."):
            continue
        for name, value in vars(base).items():
            if not inspect.isfunction(value) and not isinstance(value, property):
                continue
            if not name.startswith("_") or (name.startswith("__") and name != "__subclasshook__"):
                found[SPELLED.get(name, name)] = value
    return found


def shape(value: Any) -> list[object]:
    """All that a caller or a type checker goes by; overloads too."""
    if isinstance(value, property):
        assert value.fget is not None
        return ["property", inspect.signature(value.fget).return_annotation]
    plain = inspect.unwrap(value)
    return [_parameters(each) for each in (*typing.get_overloads(plain), plain)]


def _parameters(function: Callable[..., object]) -> object:
    signature = inspect.signature(function)
    parameters = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    return parameters, signature.return_annotation


@pytest.mark.parametrize("name", PAIRS)
def test_the_twins_are_the_same_without_await(name: str) -> None:
    awaiting, twin = map(public, PAIRS[name])
    without = WITHOUT_TWIN.get(name, {})
    assert set(awaiting) - set(twin) == set(without), "each name has a twin, or a reason"
    assert {(name, method) for method in set(twin) - set(awaiting)} <= set(ONLY_TWIN)
    for method in sorted(set(awaiting) & set(twin)):
        same = shape(awaiting[method]) == shape(twin[method])
        if (name, method) in OTHERWISE:
            assert not same, f"{name}.{method} has no reason to be listed any more"
        else:
            assert same, f"{name}.{method}:\n{shape(awaiting[method])}\n{shape(twin[method])}"
        assert not inspect.iscoroutinefunction(twin[method])


def test_both_houses_have_the_same_names() -> None:
    """``from kerolox import X`` becomes ``from kerolox.blocking import X``, and nothing is missing."""
    assert set(kerolox.__all__) - set(blocking.__all__) == {"__version__"}
    assert set(blocking.__all__) - set(kerolox.__all__) == {"Transaction"}
    for name in blocking.__all__:
        if name not in PAIRS:
            assert getattr(blocking, name) is getattr(kerolox, name)


def test_importing_them_loads_nothing_of_the_client() -> None:
    program = (
        "import sys, kerolox, kerolox.blocking\n"
        "print([name for name in sys.modules if name.startswith('kerolox')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['kerolox', 'kerolox.blocking']"

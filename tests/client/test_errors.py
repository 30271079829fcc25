"""Errors cross processes: multiprocessing and concurrent.futures pickle them."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kerolox
import kerolox.blocking
from kerolox import DeadLetter, Queue, Retry, Suspend
from kerolox.client import errors
from kerolox.client.admin.calls import NoSuchTopic
from kerolox.errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    OptionError,
    ProtocolError,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.codes import ResponseCode

QUEUE = Queue("orders", "broker-a", 0)
SAMPLES: list[Exception] = [
    KeroloxError("plain"),
    ProtocolError("broken", at=7),
    OptionError("timeout_s", -1, "at least 0"),
    RequestFailed(1, "no", address="127.0.0.1:1", request="SEND"),
    ConnectFailed("127.0.0.1:1", "refused"),
    ConnectionLost("127.0.0.1:1", "reset"),
    RequestTimeout("127.0.0.1:1", "SEND", 3.0),
    Closed("closed"),
    errors.AfterFork("client"),
    errors.OtherLoop("client"),
    errors.TopicNotFound("orders", "127.0.0.1:9876", was_known=True),
    errors.NameServerUnreachable("orders", ["127.0.0.1:9876"], "refused"),
    errors.BrokerUnreachable("broker-a", "127.0.0.1:1", "refused"),
    errors.BrokerLeaving(ResponseCode.GO_AWAY, "going"),
    errors.OffsetGone(QUEUE, 1, 2, 3),
    errors.FollowerLacks(errors.OffsetGone(QUEUE, 1, 2, 3), "broker-a-s"),
    errors.SendFailed("orders", [("broker-a", ConnectionLost("127.0.0.1:1", "reset"))], 1.0, "time is over"),
    errors.SendTimeout("orders", [("broker-a", ConnectionLost("127.0.0.1:1", "reset"))], 3.0, "time is over"),
    errors.SomeFailed([ConnectionLost("127.0.0.1:1", "reset")]),
    errors.NoReply("orders", "id", 3.0),
    errors.NoNameServer("no name server answered"),
    errors.NotFound("there is no group 'billing'"),
    errors.AlreadyThere("topic orders exists"),
    errors.ResendStopped("billing", 3, 1, 0, ConnectionLost("127.0.0.1:1", "reset")),
    errors.NotEverywhere("done at one, and not at the other"),
    errors.NameServerStarting(1, "name server not ready"),
    errors.TopicUnknownAtBroker(ResponseCode.TOPIC_NOT_EXIST, "no topic"),
    NoSuchTopic("oders", "127.0.0.1:9876", " Did you mean orders?"),
    Retry("later", level=3),
    DeadLetter("never"),
    Suspend(2.0, "busy"),
]


def shown(error: Exception) -> dict[str, Any]:
    """All attributes, errors among them by their text."""
    return {name: repr(value) for name, value in vars(error).items()}


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert shown(again) == shown(error)


def exported() -> Iterator[type[Exception]]:
    for name in kerolox.__all__:
        kind = getattr(kerolox, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            yield kind


@pytest.mark.parametrize("kind", list(exported()), ids=lambda kind: kind.__name__)
def test_every_exported_error_can_be_pickled_without_its_constructor(kind: type[Exception]) -> None:
    error = kind.__new__(kind, "text")
    error.args = ("text",)
    error.__dict__["topic"] = "orders"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, str(again), again.topic) == (kind, ("text",), "text", "orders")
    assert getattr(kerolox.blocking, kind.__name__) is kind


# Errors that programs do not import, and why.
NOT_EXPORTED = {
    "Refused": "servers answer with it",
    "NotThere": "servers raise it for a setting; an OptionError",
    "StoredUnsafely": "a producer takes it for a reason to send elsewhere, and returns the receipt",
    "NoSuchTopic": "a TopicNotFound with another text",
    "CutShort": "ends a run over dead letters, which the public call reports as ResendStopped",
    "NotAllSent": "raised by the sender of Spark's sink",
    "NoLeader": "raised by commands about controllers",
    "NamesNeeded": "raised by commands about controllers",
    "SettingsNotChanged": "raised by commands that change settings of servers",
    "ListenFailed": "servers raise it",
    "CannotMake": "servers raise it",
}


def test_every_error_of_the_client_is_exported() -> None:
    for package in ("client", "net"):
        folder = Path(kerolox.__file__).parent / package
        for path in folder.rglob("*.py"):
            if path.stem != "__init__":
                place = path.relative_to(folder.parent).with_suffix("")
                importlib.import_module(f"kerolox.{'.'.join(place.parts)}")
    found: set[type[KeroloxError]] = {KeroloxError}
    while more := {child for kind in found for child in kind.__subclasses__()} - found:
        found |= more
    ours = {
        kind.__name__
        for kind in found
        if kind.__module__ == "kerolox.errors" or kind.__module__.split(".")[1] in ("client", "net")
    }
    assert ours - set(kerolox.__all__) == set(NOT_EXPORTED)


def test_timeouts_and_failed_connections_are_pythons_too() -> None:
    kinds = list(exported())
    assert {kind.__name__ for kind in kinds if issubclass(kind, TimeoutError)} == {
        "NoReply",
        "RequestTimeout",
        "SendTimeout",
    }
    assert {kind.__name__ for kind in kinds if issubclass(kind, ConnectionError)} == {
        "BrokerUnreachable",
        "ConnectFailed",
        "ConnectionLost",
        "NameServerUnreachable",
        "NoNameServer",
    }
    for error in SAMPLES:
        if isinstance(error, OSError):
            assert str(error) == error.args[0]  # not the text of an errno
            assert error.errno is None


async def test_a_program_may_catch_them_as_pythons() -> None:
    with pytest.raises(ConnectionError):
        async with kerolox.Producer("127.0.0.1:1", group="shop") as producer:
            await producer.queues("orders")

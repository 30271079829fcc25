"""Errors cross processes: multiprocessing and concurrent.futures pickle them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import kerolox
from kerolox import DeadLetter, Queue, Retry, Suspend
from kerolox.client import errors
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
    errors.SomeFailed([ConnectionLost("127.0.0.1:1", "reset")]),
    errors.NoReply("orders", "id", 3.0),
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
    error.__dict__["topic"] = "orders"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.topic) == (kind, ("text",), "orders")

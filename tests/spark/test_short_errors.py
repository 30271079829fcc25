from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kerolox.errors import KeroloxError, OptionError
from kerolox.spark.short_errors import HIDE, SHOW, RefusedStream, tells_shortly


@tells_shortly
class Told:
    def call(self, error: Exception) -> None:
        raise error

    def generate(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "")  # put back afterwards
    monkeypatch.delenv(HIDE)


def test_our_errors_in_a_worker_need_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    with pytest.raises(ValueError, match="a fault"):
        Told().call(ValueError("a fault"))
    assert HIDE not in os.environ
    with pytest.raises(KeroloxError, match="known"):
        Told().call(KeroloxError("known"))
    assert os.environ.pop(HIDE)
    rows = Told().generate(KeroloxError("known"))
    assert next(rows) == 1
    assert HIDE not in os.environ
    with pytest.raises(KeroloxError):
        next(rows)
    assert os.environ.pop(HIDE)
    monkeypatch.setenv(SHOW, "1")
    with pytest.raises(KeroloxError):
        Told().call(KeroloxError("known"))
    assert HIDE not in os.environ


def test_elsewhere_nothing_is_set() -> None:
    with pytest.raises(KeroloxError):
        Told().call(KeroloxError("known"))
    assert HIDE not in os.environ


def test_a_stream_that_cannot_be_says_why_whatever_is_asked_first() -> None:
    stream = RefusedStream(OptionError("a", "b", "c"))
    for ask in (stream.prepareForTriggerAvailableNow, stream.getDefaultReadLimit, stream.initialOffset):
        with pytest.raises(OptionError, match="option a = 'b'"):
            ask()
    stream.stop()  # Spark's last call, which must not hide the error

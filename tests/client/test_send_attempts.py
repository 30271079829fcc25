"""Retries of messages, decided without I/O: for any sequence of errors."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kerolox.client.calls.send_attempts import (
    COULD_NOT_HELP,
    PAUSE_LONGEST_S,
    SEND_RULES,
    RouteStep,
    SendAttempt,
    SendRule,
    SendStep,
    rule_of,
)
from kerolox.client.errors import (
    AccessDenied,
    BrokerLeaving,
    BrokerUnreachable,
    NotAllowedThere,
    SendFailed,
    StoredUnsafely,
)
from kerolox.client.messages import Queue, Receipt, SendStatus
from kerolox.errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    Overloaded,
    ProtocolError,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.codes import RETRIABLE_CODES, ResponseCode

RECEIPT = Receipt(SendStatus.FLUSH_DISK_TIMEOUT, "key", "id", Queue("t", "a", 0), 7)
BY_CLASS: list[KeroloxError] = [
    ConnectFailed("a:1", "refused"),
    BrokerUnreachable("a", "a:1", "refused"),
    BrokerLeaving(ResponseCode.GO_AWAY, "bye"),
    ConnectionLost("a:1", "reset"),
    RequestTimeout("a:1", "SEND", 3.0),
    Overloaded("full"),
    StoredUnsafely(RECEIPT, None, "a:1"),
    NotAllowedThere(ResponseCode.NO_PERMISSION, "the broker[a] sending message is forbidden"),
    AccessDenied(ResponseCode.NO_PERMISSION, "unknown user"),
    ProtocolError("no header"),
    Closed("closed"),
]
ERRORS = st.one_of(
    st.sampled_from(BY_CLASS),
    st.sampled_from(sorted(ResponseCode)).map(lambda code: RequestFailed(code, "because")),
)
FAILURES = st.lists(st.tuples(st.sampled_from("abc"), ERRORS, st.floats(0, 2)), min_size=1, max_size=40)
BROKERS = st.sets(st.sampled_from("abc"), min_size=1)


def run(
    attempt: SendAttempt, failures: list[tuple[str, KeroloxError, float]]
) -> tuple[list[tuple[SendAttempt, str, KeroloxError, float, SendStep]], bool]:
    """Return the failures with their steps up to the last attempt; True if the message was given up."""
    steps = []
    now_s = attempt.began_s
    for broker, error, took_s in failures:
        now_s += took_s
        step = attempt.failed(broker, error, now_s)
        steps.append((attempt, broker, error, now_s, step))
        if step.error is not None or step.receipt is not None:
            return steps, True
        attempt = step.attempt
    return steps, False


@given(FAILURES, st.integers(0, 5), st.floats(0.01, 20), st.booleans())
def test_every_send_ends_within_its_limits(
    failures: list[tuple[str, KeroloxError, float]], retries: int, timeout_s: float, is_tied: bool
) -> None:
    steps, is_over = run(SendAttempt("t", retries, timeout_s, 100.0, is_tied), failures)
    for number, (attempt, broker, error, now_s, step) in enumerate(steps, 1):
        rule = rule_of(error)
        assert step.attempt.tried == (*attempt.tried, (broker, error)), "all failures are reported"
        counted = sum(rule_of(each).counted for _, each in step.attempt.tried)
        may_retry = rule.retried_tied if is_tied else rule.retried
        goes_on = may_retry and now_s - 100.0 < timeout_s and counted <= retries
        assert goes_on == (step.error is None and step.receipt is None)
        assert goes_on or number == len(steps)
    assert is_over or len(steps) == len(failures)


@given(FAILURES, st.booleans())
def test_a_message_tied_to_a_queue_is_never_stored_twice(
    failures: list[tuple[str, KeroloxError, float]], is_mistaken: bool
) -> None:
    """A copy behind later messages of the queue would break their order."""
    for *_, step in run(SendAttempt("t", 99, 1000.0, 0.0, is_tied=True), failures)[0]:
        assert not step.maybe_stored or step.error is not None or step.receipt is not None


@given(FAILURES, st.integers(0, 5))
def test_the_last_result_is_a_receipt_if_a_broker_stored_the_message(
    failures: list[tuple[str, KeroloxError, float]], retries: int
) -> None:
    steps, is_over = run(SendAttempt("t", retries, 10.0, 0.0), failures)
    if not is_over:
        return
    attempt, _, error, now_s, step = steps[-1]
    if any(isinstance(each, StoredUnsafely) for _, each in step.attempt.tried):
        assert (step.receipt, step.error) == (RECEIPT, None)
    elif isinstance(step.error, SendFailed):
        assert step.error.tried == step.attempt.tried
        assert isinstance(step.error, TimeoutError) == (now_s >= 10.0 and rule_of(error).retried)
        assert step.error.elapsed_s == now_s
        assert step.error.retriable == error.retriable
    else:
        assert step.error is error, "an error of the message itself, at the first broker"
        assert not attempt.tried
        assert not rule_of(error).retried


@given(FAILURES, BROKERS, st.floats(0, 30))
def test_an_untried_broker_is_asked_at_once_and_a_tried_one_after_a_pause(
    failures: list[tuple[str, KeroloxError, float]], brokers: set[str], now_s: float
) -> None:
    attempt = SendAttempt("t", 9, 10.0, 0.0)
    assert attempt.pause_s(brokers, now_s) == 0
    for broker, error, _ in failures:
        attempt = attempt.and_tried(broker, error)
    pause_s = attempt.pause_s(brokers, now_s)
    if brokers - set(attempt.brokers):
        assert pause_s == 0
    else:
        assert 0 <= pause_s <= PAUSE_LONGEST_S
        assert now_s + pause_s <= max(now_s, 10.0), "no pause goes beyond the timeout"
        assert pause_s > 0 or now_s >= 10.0


def test_pauses_double() -> None:
    attempt = SendAttempt("t", 9, 10.0, 0.0)
    pauses = []
    for _ in range(6):
        attempt = attempt.and_tried("a", BY_CLASS[0])
        pauses.append(attempt.pause_s(["a"], 0.0))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def test_the_table_covers_the_codes_that_servers_may_take_back() -> None:
    assert {int(code) for code in SEND_RULES if isinstance(code, int)} == RETRIABLE_CODES - {
        ResponseCode.GO_AWAY
    }
    for kind, rule in SEND_RULES.items():
        assert rule.retried >= rule.retried_tied
        assert not (rule.retried_tied and rule.maybe_stored), kind
    assert rule_of(RequestFailed(ResponseCode.MESSAGE_ILLEGAL, "too large")) == SendRule(False, False)
    assert rule_of(BY_CLASS[1]) == rule_of(BY_CLASS[0]), "a kind of ConnectFailed"
    assert rule_of(NotAllowedThere(ResponseCode.NO_PERMISSION, "")).retried, "another broker may allow it"
    assert not rule_of(AccessDenied(ResponseCode.NO_PERMISSION, "")).retried


@pytest.mark.parametrize("is_assumed", [True, False])
def test_a_message_for_a_missing_queue_is_sent_to_another_one(is_assumed: bool) -> None:
    wrong = RequestFailed(ResponseCode.SYSTEM_ERROR, "request queueId[3] is illegal")
    step = SendAttempt("t", 1, 3.0, 0.0).failed("a", wrong, 0.1, mistaken=True, is_assumed=is_assumed)
    assert step.error is None
    assert not step.maybe_stored
    assert step.route is (RouteStep.FORGET if is_assumed else RouteStep.KEEP)


def test_reasons() -> None:
    away, lost, illegal = BY_CLASS[0], BY_CLASS[3], RequestFailed(ResponseCode.MESSAGE_ILLEGAL, "too large")
    first = SendAttempt("t", 0, 3.0, 0.0).failed("a", away, 1.0).attempt  # waits for a restart
    for error, now_s, why in (
        (lost, 1.0, "no retries are left"),
        (away, 3.0, "the timeout of 3 s has expired"),
        (illegal, 1.0, COULD_NOT_HELP),
    ):
        assert f"2 tries ({why})" in str(first.failed("b", error, now_s).error)
    assert SendAttempt("t", 0, 3.0, 0.0).failed("b", illegal, 1.0).error is illegal

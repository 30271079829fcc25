"""Settings that clients get."""

from __future__ import annotations

from kerolox.protocol.bodies.groups import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    GroupRetryPolicy,
    RetryPolicyType,
)
from kerolox.protocol.grpc.messages import ClientType, make
from kerolox.proxy.settings import answer_settings, pause_ms


def test_a_producer() -> None:
    sent = make("Settings", client_type=ClientType.PRODUCER)
    sent.publishing.topics.add(name="T")
    sent.publishing.max_body_size = 1 << 27
    sent.request_timeout.FromSeconds(3)
    answer = answer_settings(sent, None)
    assert answer.WhichOneof("pub_sub") == "publishing"
    assert (answer.publishing.max_body_size, answer.publishing.validate_message_type) == (4 << 20, True)
    assert [topic.name for topic in answer.publishing.topics] == ["T"]
    policy = answer.backoff_policy
    assert (policy.max_attempts, policy.WhichOneof("strategy")) == (3, "exponential_backoff")
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert answer.request_timeout.seconds == 3
    assert answer.HasField("metric")
    assert not answer.metric.on


def consumer(kind: ClientType, **subscription: int) -> object:
    sent = make("Settings", client_type=kind)
    sent.subscription.group.name = "g"
    for name, value in subscription.items():
        setattr(sent.subscription, name, value)
    return sent


def test_a_push_consumer_of_an_unknown_group() -> None:
    answer = answer_settings(consumer(ClientType.PUSH_CONSUMER, receive_batch_size=5), None)
    subscription = answer.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (False, 32)
    assert subscription.long_polling_timeout.seconds == 20
    policy = answer.backoff_policy
    assert policy.max_attempts == 17
    pauses = [pause.seconds for pause in policy.customized_backoff.next]
    assert (pauses[:3], pauses[-1], len(pauses)) == ([1, 5, 10], 7200, 18)


def test_a_simple_consumer_keeps_its_polling_time() -> None:
    sent = make("Settings", client_type=ClientType.SIMPLE_CONSUMER)
    sent.subscription.group.name = "g"
    sent.subscription.long_polling_timeout.FromSeconds(7)
    assert answer_settings(sent, None).subscription.long_polling_timeout.seconds == 7


def test_the_settings_of_the_group_count() -> None:
    policy = GroupRetryPolicy(
        type=RetryPolicyType.EXPONENTIAL,
        exponential_retry_policy=ExponentialRetry(initial_ms=2000, multiplier=3, pause_ms_max=10_000),
    )
    group = GroupConfig(consume_message_orderly=True, retry_max_times=3, group_retry_policy=policy)
    answer = answer_settings(consumer(ClientType.PUSH_CONSUMER), group)
    assert answer.subscription.fifo
    assert answer.backoff_policy.max_attempts == 4
    assert answer.backoff_policy.exponential_backoff.multiplier == 3
    assert [pause_ms(group, attempt) for attempt in (1, 2, 3, 99)] == [2000, 6000, 10_000, 10_000]
    custom = GroupConfig(
        group_retry_policy=GroupRetryPolicy(customized_retry_policy=CustomizedRetry(pauses_ms=(1, 2)))
    )
    assert [pause_ms(custom, attempt) for attempt in (1, 2, 3)] == [1, 2, 2]

"""Settings that the service answers to a client's settings."""

from __future__ import annotations

from kerolox.protocol.bodies.groups import CustomizedRetry, GroupConfig, RetryPolicyType
from kerolox.protocol.grpc.messages import ClientType, make
from kerolox.protocol.grpc.schema import Message
from kerolox.proxy.messages import BODY_BYTES_MAX

PRODUCER_ATTEMPTS = 3
RECEIVE_BATCH = 32
POLLING_S = 20
LITE_QUOTA = 2000
LITE_TOPIC_BYTES = 64

CONSUMERS = frozenset({
    ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER,
    ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER,
})  # fmt: skip
SIMPLE = frozenset({ClientType.SIMPLE_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})


def answer_settings(sent: Message, group: GroupConfig | None) -> Message:
    """Return the settings with which a client works: its own, with the limits of the service and of its
    group."""
    made = make("Settings")
    made.CopyFrom(sent)
    made.metric.on = False
    if made.WhichOneof("pub_sub") == "publishing":
        made.publishing.max_body_size = BODY_BYTES_MAX
        made.publishing.validate_message_type = True
        policy = made.backoff_policy
        policy.Clear()
        policy.max_attempts = PRODUCER_ATTEMPTS
        policy.exponential_backoff.initial.FromMilliseconds(10)
        policy.exponential_backoff.max.FromMilliseconds(1000)
        policy.exponential_backoff.multiplier = 2
        return made
    subscription = made.subscription
    if not subscription.receive_batch_size:
        subscription.receive_batch_size = RECEIVE_BATCH
    if not subscription.long_polling_timeout.seconds:
        subscription.long_polling_timeout.FromSeconds(POLLING_S)
    if made.client_type not in SIMPLE:
        subscription.receive_batch_size = RECEIVE_BATCH
        subscription.long_polling_timeout.FromSeconds(POLLING_S)
    subscription.fifo = group is not None and group.consume_message_orderly
    if made.client_type in (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER):
        subscription.lite_subscription_quota = LITE_QUOTA
        subscription.max_lite_topic_size = LITE_TOPIC_BYTES
    _set_policy(made.backoff_policy, group or GroupConfig())
    return made


def _set_policy(policy: Message, group: GroupConfig) -> None:
    policy.Clear()
    policy.max_attempts = max_attempts(group)
    configured = group.group_retry_policy
    if configured.type is RetryPolicyType.EXPONENTIAL and configured.exponential_retry_policy is not None:
        exponential = configured.exponential_retry_policy
        policy.exponential_backoff.initial.FromMilliseconds(exponential.initial_ms)
        policy.exponential_backoff.max.FromMilliseconds(exponential.pause_ms_max)
        policy.exponential_backoff.multiplier = exponential.multiplier
        return
    for pause_ms in pauses_ms(group):
        policy.customized_backoff.next.add().FromMilliseconds(pause_ms)


def max_attempts(group: GroupConfig) -> int:
    """Return how often a message is delivered before it becomes a dead letter."""
    return group.retry_max_times + 1


def pauses_ms(group: GroupConfig) -> tuple[int, ...]:
    """Return the pauses between deliveries, by attempt; the last one repeats."""
    return (group.group_retry_policy.customized_retry_policy or CustomizedRetry()).pauses_ms


def pause_ms(group: GroupConfig, attempt: int) -> int:
    """Return the pause after this attempt, which counts from 1."""
    configured = group.group_retry_policy
    if configured.type is RetryPolicyType.EXPONENTIAL and configured.exponential_retry_policy is not None:
        exponential = configured.exponential_retry_policy
        pause: int = exponential.initial_ms * exponential.multiplier ** min(attempt - 1, 32)
        return min(pause, exponential.pause_ms_max)
    pauses = pauses_ms(group)
    return pauses[min(attempt, len(pauses)) - 1]

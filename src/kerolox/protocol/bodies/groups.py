"""Settings of consumer groups."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body, WireEnum
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.header import wire

# The attribute by which our broker tells why it let a group consume no more: so every tool can show it.
WHY_DISABLED = "kerolox.disabled"


class RequestMode(WireEnum):
    """How a group gets its messages when the broker divides the queues."""

    PULL = "PULL"
    POP = "POP"


class RetryPolicyType(WireEnum):
    """How the pause before the next try is found."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


class ExponentialRetry(
    Body, frozen=True, kw_only=True, rename=wire(initial_ms="initial", pause_ms_max="max")
):
    """Each pause so many times the last one."""

    initial_ms: int = 5000
    multiplier: int = 2
    pause_ms_max: int = 7_200_000


class CustomizedRetry(Body, frozen=True, kw_only=True, rename=wire(pauses_ms="next")):
    """A list of pauses. The default is the delay levels from 1 s to 2 h."""

    pauses_ms: tuple[int, ...] = (
        *(1000, 5000, 10_000, 30_000),
        *(60_000 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
    )


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """Pauses between tries of a message."""

    customized_retry_policy: CustomizedRetry | None = None
    exponential_retry_policy: ExponentialRetry | None = None
    type: RetryPolicyType = RetryPolicyType.CUSTOMIZED


class SimpleSubscription(Body, frozen=True, kw_only=True):
    """A subscription kept with the group's settings."""

    expression: str | None = None
    expression_type: str | None = None
    topic: str = ""
    version: int = 0


class GroupConfig(Body, frozen=True, kw_only=True):
    """The settings of one group (Java: SubscriptionGroupConfig)."""

    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: tuple[SimpleSubscription, ...] | None = None
    which_broker_when_consume_slowly: int = 1


class GroupConfigTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, and the broker's file."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, GroupConfig] = {}


class GroupConfigList(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: tuple[GroupConfig, ...] = ()


class GroupForbidden(Body, frozen=True, kw_only=True):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str | None = None
    readable: bool | None = None
    topic: str | None = None


class SetRequestMode(Body, frozen=True, kw_only=True):
    """Body of SET_MESSAGE_REQUEST_MODE."""

    consumer_group: str | None = None
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: int = 0
    topic: str | None = None


class RequestModeTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE: topic → group → mode."""

    message_request_mode_map: dict[str, dict[str, SetRequestMode]] = {}

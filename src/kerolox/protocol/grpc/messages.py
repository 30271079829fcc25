"""Messages of the service ``apache.rocketmq.v2.MessagingService``."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kerolox.protocol.grpc.schema import Message, message_classes

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"

_CLASSES = message_classes(
    PACKAGE,
    """
    FilterExpression: 1 type int32; 2 expression string
    ExponentialBackoff: 1 initial Duration; 2 max Duration; 3 multiplier float
    CustomizedBackoff: 1 next Duration[]
    RetryPolicy: 1 max_attempts int32; 2 exponential_backoff ExponentialBackoff|strategy; 3 customized_backoff CustomizedBackoff|strategy
    Resource: 1 resource_namespace string; 2 name string
    SubscriptionEntry: 1 topic Resource; 2 expression FilterExpression
    Address: 1 host string; 2 port int32
    Endpoints: 1 scheme int32; 2 addresses Address[]
    Broker: 1 name string; 2 id int32; 3 endpoints Endpoints
    MessageQueue: 1 topic Resource; 2 id int32; 3 permission int32; 4 broker Broker; 5 accept_message_types int32[]
    Digest: 1 type int32; 2 checksum string
    DeadLetterQueue: 1 topic string; 2 message_id string
    SystemProperties: 1 tag string?; 2 keys string[]; 3 message_id string; 4 body_digest Digest; 5 body_encoding int32; 6 message_type int32; 7 born_timestamp Timestamp; 8 born_host string; 9 store_timestamp Timestamp?; 10 store_host string; 11 delivery_timestamp Timestamp?; 12 receipt_handle string?; 13 queue_id int32; 14 queue_offset int64?; 15 invisible_duration Duration?; 16 delivery_attempt int32?; 17 message_group string?; 18 trace_context string?; 19 orphaned_transaction_recovery_duration Duration?; 20 dead_letter_queue DeadLetterQueue?; 21 lite_topic string?; 22 priority int32?
    Message: 1 topic Resource; 2 user_properties map; 3 system_properties SystemProperties; 4 body bytes
    Assignment: 1 message_queue MessageQueue
    Status: 1 code int32; 2 message string
    UA: 1 language int32; 2 version string; 3 platform string; 4 hostname string
    Publishing: 1 topics Resource[]; 2 max_body_size int32; 3 validate_message_type bool
    Subscription: 1 group Resource?; 2 subscriptions SubscriptionEntry[]; 3 fifo bool?; 4 receive_batch_size int32?; 5 long_polling_timeout Duration?; 6 lite_subscription_quota int32?; 7 max_lite_topic_size int32?
    Metric: 1 on bool; 2 endpoints Endpoints?
    Settings: 1 client_type int32?; 2 access_point Endpoints?; 3 backoff_policy RetryPolicy?; 4 request_timeout Duration?; 5 publishing Publishing|pub_sub; 6 subscription Subscription|pub_sub; 7 user_agent UA; 8 metric Metric; 9 client_properties map
    OffsetOption: 1 policy int32|offset_type; 2 offset int64|offset_type; 3 tail_n int64|offset_type; 4 timestamp int64|offset_type
    QueryRouteRequest: 1 topic Resource; 2 endpoints Endpoints
    QueryRouteResponse: 1 status Status; 2 message_queues MessageQueue[]
    SendMessageRequest: 1 messages Message[]
    SendResultEntry: 1 status Status; 2 message_id string; 3 transaction_id string; 4 offset int64; 5 recall_handle string
    SendMessageResponse: 1 status Status; 2 entries SendResultEntry[]
    QueryAssignmentRequest: 1 topic Resource; 2 group Resource; 3 endpoints Endpoints
    QueryAssignmentResponse: 1 status Status; 2 assignments Assignment[]
    ReceiveMessageRequest: 1 group Resource; 2 message_queue MessageQueue; 3 filter_expression FilterExpression; 4 batch_size int32; 5 invisible_duration Duration?; 6 auto_renew bool; 7 long_polling_timeout Duration?; 8 attempt_id string?
    ReceiveMessageResponse: 1 status Status|content; 2 message Message|content; 3 delivery_timestamp Timestamp|content
    AckMessageEntry: 1 message_id string; 2 receipt_handle string; 3 lite_topic string?
    AckMessageRequest: 1 group Resource; 2 topic Resource; 3 entries AckMessageEntry[]
    AckMessageResultEntry: 1 message_id string; 2 receipt_handle string; 3 status Status
    AckMessageResponse: 1 status Status; 2 entries AckMessageResultEntry[]
    ForwardMessageToDeadLetterQueueRequest: 1 group Resource; 2 topic Resource; 3 receipt_handle string; 4 message_id string; 5 delivery_attempt int32; 6 max_delivery_attempts int32; 7 lite_topic string?
    ForwardMessageToDeadLetterQueueResponse: 1 status Status
    HeartbeatRequest: 1 group Resource?; 2 client_type int32
    HeartbeatResponse: 1 status Status
    EndTransactionRequest: 1 topic Resource; 2 message_id string; 3 transaction_id string; 4 resolution int32; 5 source int32; 6 trace_context string
    EndTransactionResponse: 1 status Status
    PrintThreadStackTraceCommand: 1 nonce string
    ReconnectEndpointsCommand: 1 nonce string
    ThreadStackTrace: 1 nonce string; 2 thread_stack_trace string?
    VerifyMessageCommand: 1 nonce string; 2 message Message
    VerifyMessageResult: 1 nonce string
    RecoverOrphanedTransactionCommand: 1 message Message; 2 transaction_id string
    NotifyUnsubscribeLiteCommand: 1 lite_topic string
    TelemetryCommand: 1 status Status?; 2 settings Settings|command; 3 thread_stack_trace ThreadStackTrace|command; 4 verify_message_result VerifyMessageResult|command; 5 recover_orphaned_transaction_command RecoverOrphanedTransactionCommand|command; 6 print_thread_stack_trace_command PrintThreadStackTraceCommand|command; 7 verify_message_command VerifyMessageCommand|command; 8 reconnect_endpoints_command ReconnectEndpointsCommand|command; 9 notify_unsubscribe_lite_command NotifyUnsubscribeLiteCommand|command
    NotifyClientTerminationRequest: 1 group Resource?
    NotifyClientTerminationResponse: 1 status Status
    ChangeInvisibleDurationRequest: 1 group Resource; 2 topic Resource; 3 receipt_handle string; 4 invisible_duration Duration; 5 message_id string; 6 lite_topic string?; 7 suspend bool?
    ChangeInvisibleDurationResponse: 1 status Status; 2 receipt_handle string
    RecallMessageRequest: 1 topic Resource; 2 recall_handle string
    RecallMessageResponse: 1 status Status; 2 message_id string
    SyncLiteSubscriptionRequest: 1 action int32; 2 topic Resource; 3 group Resource; 4 lite_topic_set string[]; 5 version int64?; 6 offset_option OffsetOption?
    SyncLiteSubscriptionResponse: 1 status Status
    """,  # noqa: E501
)


def make(name: str, /, **fields: Any) -> Message:
    """Return a message of this class."""
    return _CLASSES[name](**fields)


def parse(name: str, data: bytes) -> Message:
    """Return the message of this class that the bytes hold. Raises ValueError if they hold none."""
    try:
        return _CLASSES[name].FromString(data)
    except Exception as error:  # DecodeError, whose module differs between the implementations of protobuf
        raise ValueError(f"{len(data)} bytes are no {name}: {error}") from error


class Code(IntEnum):
    """Codes of `Status`, which every response begins with."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_LITE_TOPIC = 40020
    INVALID_CLIENT_PROPERTIES = 40021
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    FAILED_TO_CONSUME_MESSAGE = 60000


class MessageType(IntEnum):
    """Types of messages, and of the topics that accept them."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class ClientType(IntEnum):
    """Kinds of clients."""

    UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class Permission(IntEnum):
    """Rights of clients at a queue."""

    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    """Languages of a filter."""

    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    """Kinds of addresses."""

    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


class DigestType(IntEnum):
    """Algorithms of a body's digest."""

    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class Encoding(IntEnum):
    """Encodings of a body."""

    IDENTITY = 1
    GZIP = 2


class Resolution(IntEnum):
    """Ends of a transaction."""

    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    """Reasons why a client ends a transaction."""

    CLIENT = 1
    SERVER_CHECK = 2

"""Options of clients and producers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kerolox.client.addresses import split_addresses
from kerolox.client.environment import SIGNATURE_V2, Keys, find_keys, find_switch, find_tls
from kerolox.client.ids import DEFAULT_INSTANCE
from kerolox.errors import OptionError
from kerolox.net.tls import ClientTls
from kerolox.protocol.compression import COMPRESS_FROM_BYTES, LEVEL
from kerolox.protocol.flags import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from kerolox.protocol.frame import JSON
from kerolox.protocol.limits import MESSAGE_BODY_BYTES_MAX
from kerolox.protocol.reserved import TEMPLATE_TOPIC, TRACE_TOPIC

NAMESERVER_VARIABLE = "NAMESRV_ADDR"


@dataclass(frozen=True)
class ClientOptions:
    """Options of a client: addresses, identity, timeouts."""

    # --- addresses
    nameservers: str | Sequence[str] = ""  # "host:port;host:port"; empty: the variable NAMESRV_ADDR
    vip_channel: bool = False  # use the broker's second port (its port minus 2) for sends and queries

    # --- identity
    instance: str = DEFAULT_INSTANCE  # clients of one machine with equal names are one client for brokers
    unit: str = ""
    unit_mode: bool = False
    namespace: str = ""  # prefix of topics and groups: ns%topic
    namespace_v2: str = ""  # 5.x: sent as a separate field instead
    # Missing values are read from the environment (environment.py): secrets do not belong in code.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)  # of temporary keys
    secret_key_file: str = ""  # file that contains only the secret key
    keys_file: str = ""  # file with lines accessKey: NAME and secretKey: TEXT, as RocketMQ's tools.yml
    # Sign in form 2 as well, which servers may require (their setting signatureV2). None: as the variable
    # KEROLOX_SIGNATURE_V2 says, default off.
    signature_v2: bool | None = None
    tls: ClientTls | None = None
    environment: bool = True  # False: use only these options

    # --- intervals and timeouts
    route_refresh_s: float = 30.0
    heartbeat_s: float = 30.0
    heartbeat_v2: bool = False  # 5.x: send subscriptions only after a change
    request_timeout_s: float = 3.0
    connect_timeout_s: float = 3.0

    encoding: int = JSON  # of command headers: frame.JSON or frame.BINARY

    def __post_init__(self) -> None:
        for name in ("route_refresh_s", "heartbeat_s", "request_timeout_s", "connect_timeout_s"):
            if getattr(self, name) <= 0:
                raise OptionError(name, getattr(self, name), "a number of seconds over 0")
        around = os.environ if self.environment else {}
        keys = find_keys(
            Keys(self.access_key, self.secret_key, self.security_token),
            secret_key_file=self.secret_key_file,
            keys_file=self.keys_file,
            environment=around,
        )
        for name in keys.__struct_fields__:
            object.__setattr__(self, name, getattr(keys, name))
        if self.signature_v2 is None:
            object.__setattr__(self, "signature_v2", find_switch(SIGNATURE_V2, environment=around))
        if self.tls is None:
            object.__setattr__(self, "tls", find_tls({}, environment=around))

    def addresses(self) -> list[str]:
        """Return the addresses of the name servers."""
        given = self.nameservers or os.environ.get(NAMESERVER_VARIABLE, "")
        text = given if isinstance(given, str) else ";".join(given)
        if not text.strip():
            raise OptionError(
                "nameservers", given, f"host:port of a name server, or {NAMESERVER_VARIABLE} set"
            )
        return split_addresses(text)


COMPRESSIONS = {
    "zlib": COMPRESSION_ZLIB,
    "lz4": COMPRESSION_LZ4,
    "zstd": COMPRESSION_ZSTD,
}


@dataclass(frozen=True)
class ProducerOptions:
    """Options of a producer."""

    # --- timeouts and retries
    timeout_s: float = 3.0  # of a send with all its attempts
    try_timeout_s: float = 0.0  # of one attempt; 0: the remaining time
    retries: int = 2  # further attempts, at other brokers first; unreachable brokers do not count
    retry_not_ok: bool = False  # retry elsewhere if stored, but not flushed or replicated in time
    avoid_slow_brokers: bool = True  # prefer other brokers for a while after a failure or a slow response

    # --- messages
    message_bytes_max: int = MESSAGE_BODY_BYTES_MAX  # the broker's maxMessageSize; of batches too
    compression: str = "zlib"  # zlib, lz4, zstd; empty: none
    compression_level: int = LEVEL
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    template_topic: str = TEMPLATE_TOPIC  # template of new topics; empty: do not create topics
    template_queues: int = 4  # maximum number of queues per broker for a new topic

    # --- many messages
    window: int = 1024  # of send_many: maximum number of requests in flight
    linger_s: float | None = None  # time to collect sends into a batch; None: no batches
    linger_bytes_max: int = 128 * 1024  # size at which a batch is sent at once
    linger_count_max: int = 1000

    trace: bool = False  # write a trace record for every message
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise OptionError("timeout_s", self.timeout_s, "a number of seconds over 0")
        if self.retries < 0:
            raise OptionError("retries", self.retries, "0 or more")
        if self.compression and self.compression not in COMPRESSIONS:
            raise OptionError("compression", self.compression, f"one of {', '.join(COMPRESSIONS)}, or empty")
        if self.window < 1:
            raise OptionError("window", self.window, "1 or more")
        if self.linger_s is not None and self.linger_s < 0:
            raise OptionError("linger_s", self.linger_s, "0 or more seconds, or None")

    @property
    def compression_kind(self) -> int:
        return COMPRESSIONS.get(self.compression, 0)

"""The options of clients, and of producers."""

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
    """How a client finds its cluster and speaks to it."""

    # --- where
    nameservers: str | Sequence[str] = ""  # "host:port;host:port"; empty: the variable NAMESRV_ADDR
    vip_channel: bool = False  # send and ask over the broker's second port (its own minus 2)

    # --- who
    instance: str = DEFAULT_INSTANCE  # clients of one machine with the same name count as one
    unit: str = ""
    unit_mode: bool = False
    namespace: str = ""  # put before topics and groups: ns%topic
    namespace_v2: str = ""  # 5.x: sent beside the names instead
    # What is not given here is taken from the environment (environment.py): code is no place for secrets.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)  # of temporary keys
    secret_key_file: str = ""  # that has the secret key, and nothing else
    keys_file: str = ""  # of lines accessKey: NAME and secretKey: TEXT, as RocketMQ's tools.yml
    # Sign in form 2 as well, which servers may ask for (their setting signatureV2). None: by the variable
    # KEROLOX_SIGNATURE_V2, else not.
    signature_v2: bool | None = None
    tls: ClientTls | None = None
    environment: bool = True  # False: go by these options alone

    # --- how often, how long
    route_refresh_s: float = 30.0
    heartbeat_s: float = 30.0
    heartbeat_v2: bool = False  # 5.x: repeat what groups want only when it changed
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
        """The name servers."""
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
    """How a producer sends."""

    # --- how long, how often
    timeout_s: float = 3.0  # of a send, over all its tries
    try_timeout_s: float = 0.0  # of one try; 0: all the time that is left
    retries: int = 2  # further tries, at other brokers first; a broker that is not there does not count
    retry_not_ok: bool = False  # try elsewhere when stored, but not flushed or replicated in time
    avoid_slow_brokers: bool = True  # prefer others for a while after a failure or a slow answer

    # --- what is sent
    message_bytes_max: int = MESSAGE_BODY_BYTES_MAX  # the broker's maxMessageSize; of batches too
    compression: str = "zlib"  # zlib, lz4, zstd; empty: none
    compression_level: int = LEVEL
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    template_topic: str = TEMPLATE_TOPIC  # new topics are made after it; empty: do not make any
    template_queues: int = 4  # at most so many queues per broker for a new topic

    # --- many at once
    window: int = 1024  # of send_many: so many wait for answers at a time
    linger_s: float | None = None  # collect sends for so long into one batch; None: do not
    linger_bytes_max: int = 128 * 1024  # send the batch at the latest when it has grown this large
    linger_count_max: int = 1000

    trace: bool = False  # tell the trace topic of every message sent
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

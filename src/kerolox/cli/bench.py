"""``kerolox bench``: RocketMQ's benchmark programs, with the same flags and result lines.

The threads of RocketMQ's benchmark are asyncio tasks here, each with one message in flight. As in RocketMQ,
all tasks share one connection to a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, command, echo, output
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

app = typer.Typer(
    help="Measure send and consume rates, with the flags of RocketMQ's benchmark programs.",
    no_args_is_help=True,
)

ASYNC_IN_FLIGHT = 1024
ACCESS_KEY, SECRET_KEY = "rocketmq2", "12345678"  # defaults of RocketMQ's benchmark

TopicOption = Annotated[str, typer.Option("-t", "--topic", help="Topic name.")]
IntervalOption = Annotated[
    int, typer.Option("-ri", "--reportInterval", help="Milliseconds between reports.", min=1)
]
TraceOption = Annotated[
    str, typer.Option("-m", "--msgTraceEnable", help="true: trace messages to RMQ_SYS_TRACE_TOPIC.")
]
AclOption = Annotated[str, typer.Option("-a", "--aclEnable", help="true: sign requests.")]
AccessKeyOption = Annotated[str, typer.Option("-ak", "--accessKey", help="Access key, with -a true.")]
SecretKeyOption = Annotated[
    str, typer.Option("-sk", "--secretKey", help="Secret key, with -a true.", envvar="KEROLOX_SECRET_KEY")
]
QuantityOption = Annotated[
    int,
    typer.Option(
        "-q", "--messageQuantity", help="Stop after this number of messages; 0: run until Ctrl-C.", min=0
    ),
]


# --- send -----------------------------------------------------------------------------------------


@command(app, "send", "kerolox bench send -n 127.0.0.1:9876 -t BenchmarkTest -w 64 -s 128 -q 100000")
def send(
    topic: TopicOption = "BenchmarkTest",
    threads: Annotated[
        int, typer.Option("-w", "--threadCount", help="Number of concurrent messages in flight.", min=1)
    ] = 64,
    size: Annotated[int, typer.Option("-s", "--messageSize", help="Body size, bytes.", min=1)] = 128,
    batch: Annotated[
        int, typer.Option("-b", "--batchSize", help="Messages per batch; 1: no batches.", min=1)
    ] = 1,
    keys: Annotated[str, typer.Option("-k", "--keyEnable", help="true: set a key.")] = "false",
    property_size: Annotated[
        int, typer.Option("-p", "--propertySize", help="Size of user properties, bytes.", min=0)
    ] = 0,
    tags: Annotated[
        int, typer.Option("-l", "--tagCount", help="Number of different tags; 0: none.", min=0)
    ] = 0,
    quantity: QuantityOption = 0,
    delay: Annotated[str, typer.Option("-d", "--delayEnable", help="true: delay messages.")] = "false",
    delay_level: Annotated[
        int, typer.Option("-e", "--delayLevel", help="Delay level, with -d true.", min=1)
    ] = 1,
    asynchronous: Annotated[
        str,
        typer.Option(
            "-y", "--asyncEnable", help=f"true: send asynchronously, with {ASYNC_IN_FLIGHT} in flight."
        ),
    ] = "false",
    compress: Annotated[
        str, typer.Option("-c", "--compressEnable", help="true: compress large bodies.")
    ] = "false",
    compress_type: Annotated[str, typer.Option("-ct", "--compressType", help="ZLIB, LZ4 or ZSTD.")] = "ZLIB",
    compress_level: Annotated[
        int, typer.Option("-cl", "--compressLevel", help="Compression level.", min=0, max=22)
    ] = 5,
    compress_from: Annotated[
        int, typer.Option("-ch", "--compressOverHowMuch", help="Smallest compressed body, bytes.", min=0)
    ] = 4096,
    trace: TraceOption = "false",
    acl: AclOption = "false",
    access_key: AccessKeyOption = ACCESS_KEY,
    secret_key: SecretKeyOption = SECRET_KEY,
    interval_ms: IntervalOption = 10_000,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Send messages at full speed. Prints rates and response times."""
    from kerolox.load.senders import PRODUCER_GROUP, Compression, Senders, tracing
    from kerolox.protocol.message import OutgoingMessage

    is_async = truth("-y", asynchronous)
    count = ASYNC_IN_FLIGHT if is_async else threads
    has_key = truth("-k", keys)
    level = delay_level if truth("-d", delay) else 0
    if batch > 1 and level:
        raise OptionError("-b", batch, "1 with -d true: a batch cannot be delayed")
    is_compressed = truth("-c", compress)
    if batch > 1 and is_compressed:
        raise OptionError("-b", batch, "1 with -c true: messages of a batch are not compressed")
    compression = Compression.named(compress_type, compress_level, compress_from) if is_compressed else None
    keys_of = (access_key, secret_key) if truth("-a", acl) else None
    is_traced = truth("-m", trace)
    echo(
        f"topic: {topic}, threadCount: {1 if is_async else threads}, messageSize: {size}, "
        + (f"batchSize: {batch}, " if batch > 1 else "")
        + f"keyEnable: {keys}, propertySize: {property_size}, tagCount: {tags}, "
        f"messageQuantity: {quantity}, delayEnable: {delay}, delayLevel: {delay_level}, "
        f"asyncEnable: {asynchronous}, msgTraceEnable: {trace}, aclEnable: {acl}, "
        f"compressEnable: {compress}, "
        f"reportInterval: {interval_ms}",
        err=json,
    )
    body = ("0123456789abcdefghijklmnopqrstuvwxyz" * (size // 36 + 1))[:size].encode()

    def message(now_ms: int) -> OutgoingMessage:
        return OutgoingMessage(
            topic=topic,
            body=body,
            tag=f"tag{now_ms % tags}" if tags else "",
            keys=(str(now_ms // 1000),) if has_key else (),
            properties=user_properties(property_size),
            delay_level=level,
        )

    async def work(admin: AdminCalls) -> None:
        if keys_of is not None:
            sign_requests(admin, *keys_of)
        async with AsyncExitStack() as stack:
            tracer = None
            if is_traced:
                tracer = await stack.enter_async_context(
                    tracing(nameserver, PRODUCER_GROUP, "PRODUCE", keys_of)
                )
            say, done = _printing(json)
            await Senders(admin, topic, message, batch, quantity, say, done, compression, tracer).run(
                count, interval_ms
            )

    _until_interrupted(nameserver, work)


def user_properties(size_bytes: int) -> dict[str, str]:
    """Return the user properties that RocketMQ's benchmark makes for this size."""
    found: dict[str, str] = {}
    length = 0
    while length < size_bytes:
        name, value = f"prop{len(found)}", f"hello{len(found)}"
        found[name] = value
        length += len(name) + len(value)
    return found


# --- consume --------------------------------------------------------------------------------------


@command(app, "consume", "kerolox bench consume -n 127.0.0.1:9876 -t BenchmarkTest -g benchmark_consumer")
def consume(
    topic: TopicOption = "BenchmarkTest",
    threads: Annotated[
        int,
        typer.Option("-w", "--threadCount", help="No effect; accepted for compatibility.", min=1),
    ] = 20,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.")] = "benchmark_consumer",
    suffix: Annotated[
        str, typer.Option("-p", "--groupPrefixEnable", help="true: add a suffix to the group name.")
    ] = "false",
    filter_type: Annotated[str, typer.Option("-f", "--filterType", help="TAG or SQL92.")] = "TAG",
    expression: Annotated[
        Path | None, typer.Option("-e", "--expression", help="File with the filter. Default: no filter.")
    ] = None,
    fail_rate: Annotated[
        float,
        typer.Option("-r", "--failRate", help="Share of messages to fail and retry, 0 to 1.", min=0, max=1),
    ] = 0.0,
    trace: TraceOption = "false",
    acl: AclOption = "false",
    access_key: AccessKeyOption = ACCESS_KEY,
    secret_key: SecretKeyOption = SECRET_KEY,
    quantity: QuantityOption = 0,
    interval_ms: IntervalOption = 10_000,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Consume a topic from the group's offsets, as the only member. Prints rates and delays."""
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.load.consumers import Consumers
    from kerolox.load.senders import tracing

    if filter_type not in ("TAG", "SQL92"):
        raise OptionError("-f", filter_type, "TAG or SQL92")
    if truth("-p", suffix):
        group = f"{group}_{SYSTEM_CLOCK.wall_ms() % 100}"
    wanted = "*" if expression is None else expression.read_text(encoding="utf-8").strip()
    echo(
        f"topic: {topic}, threadCount {threads}, group: {group}, suffix: {suffix}, "
        f"filterType: {filter_type}, expression: {wanted}, msgTraceEnable: {trace}, aclEnable: {acl}, "
        f"reportInterval: {interval_ms}",
        err=json,
    )
    keys_of = (access_key, secret_key) if truth("-a", acl) else None
    is_traced = truth("-m", trace)

    async def work(admin: AdminCalls) -> None:
        if keys_of is not None:
            sign_requests(admin, *keys_of)
        async with AsyncExitStack() as stack:
            tracer = None
            if is_traced:
                tracer = await stack.enter_async_context(tracing(nameserver, group, "CONSUME", keys_of))
            say, done = _printing(json)
            consumers = Consumers(
                admin, topic, group, filter_type, wanted, quantity, say, done, fail_rate, tracer
            )
            await consumers.run(interval_ms)

    _until_interrupted(nameserver, work)


# --- both -----------------------------------------------------------------------------------------


def truth(flag: str, text: str) -> bool:
    """Parse ``true`` or ``false``, the values of RocketMQ's flags."""
    if text.lower() not in ("true", "false"):
        raise OptionError(flag, text, "true or false")
    return text.lower() == "true"


def sign_requests(admin: AdminCalls, access_key: str, secret_key: str) -> None:
    from kerolox.client.cluster.signing import Signing
    from kerolox.client.options import ClientOptions

    options = ClientOptions(access_key=access_key, secret_key=secret_key)
    admin.dialer.handlers.hooks.append(Signing(options))


def _printing(json: bool) -> tuple[Callable[[str], None], Callable[[object], None]]:
    """Return functions that print a line about the progress, and the figures of the run.

    With ``json``, lines go to stderr and the figures to stdout; without, the last line has the figures.
    """
    return partial(echo, err=json), output(json).show if json else lambda figures: None


def _until_interrupted(addresses: str, work: Callable[[AdminCalls], Coroutine[Any, Any, None]]) -> None:
    try:
        run_admin(addresses, work)
    except KeyboardInterrupt:
        pass

"""``kerolox bench``: RocketMQ's benchmark programs, with their flags and the words of their results.

What the original calls threads are tasks here: each has one message on its way. All of them share one
connection to a broker, as in the original.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import one_line_errors
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.client.admin import Admin

app = typer.Typer(
    help="Measure sending and consuming, with the flags of RocketMQ's benchmark programs.",
    no_args_is_help=True,
)

ASYNC_IN_FLIGHT = 1024

TopicOption = Annotated[str, typer.Option("-t", "--topic", help="Topic name.")]
IntervalOption = Annotated[
    int, typer.Option("-ri", "--reportInterval", help="Milliseconds between reports.", min=1)
]
QuantityOption = Annotated[
    int,
    typer.Option("-q", "--messageQuantity", help="Stop after so many messages; 0 runs until Ctrl-C.", min=0),
]


# --- send -----------------------------------------------------------------------------------------


@app.command(
    "send", epilog="Example: kerolox bench send -n 127.0.0.1:9876 -t BenchmarkTest -w 64 -s 128 -q 100000"
)
@one_line_errors
def send(
    topic: TopicOption = "BenchmarkTest",
    threads: Annotated[
        int, typer.Option("-w", "--threadCount", help="Messages on their way at once.", min=1)
    ] = 64,
    size: Annotated[int, typer.Option("-s", "--messageSize", help="Bytes of a body.", min=1)] = 128,
    batch: Annotated[
        int, typer.Option("-b", "--batchSize", help="Messages of a batch; 1 sends them singly.", min=1)
    ] = 1,
    keys: Annotated[str, typer.Option("-k", "--keyEnable", help="true: messages have a key.")] = "false",
    property_size: Annotated[
        int, typer.Option("-p", "--propertySize", help="Bytes of user properties.", min=0)
    ] = 0,
    tags: Annotated[int, typer.Option("-l", "--tagCount", help="Different tags; 0 for none.", min=0)] = 0,
    quantity: QuantityOption = 0,
    delay: Annotated[str, typer.Option("-d", "--delayEnable", help="true: messages are delayed.")] = "false",
    delay_level: Annotated[int, typer.Option("-e", "--delayLevel", help="By this level.", min=1)] = 1,
    asynchronous: Annotated[
        str,
        typer.Option(
            "-y", "--asyncEnable", help=f"true: send on without waiting, with {ASYNC_IN_FLIGHT} on their way."
        ),
    ] = "false",
    interval_ms: IntervalOption = 10_000,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
) -> None:
    """Send messages as fast as they are answered. Prints rates and response times."""
    from kerolox.cli.bench_load import Senders
    from kerolox.protocol.message import Message

    is_async = truth("-y", asynchronous)
    count = ASYNC_IN_FLIGHT if is_async else threads
    has_key = truth("-k", keys)
    level = delay_level if truth("-d", delay) else 0
    if batch > 1 and level:
        raise OptionError("-b", batch, "1 with -d true: a batch cannot be delayed")
    typer.echo(
        f"topic: {topic}, threadCount: {1 if is_async else threads}, messageSize: {size}, "
        + (f"batchSize: {batch}, " if batch > 1 else "")
        + f"keyEnable: {keys}, propertySize: {property_size}, tagCount: {tags}, "
        f"messageQuantity: {quantity}, delayEnable: {delay}, delayLevel: {delay_level}, "
        f"asyncEnable: {asynchronous}, reportInterval: {interval_ms}"
    )
    body = ("0123456789abcdefghijklmnopqrstuvwxyz" * (size // 36 + 1))[:size].encode()

    def message(now_ms: int) -> Message:
        return Message(
            topic=topic,
            body=body,
            tag=f"tag{now_ms % tags}" if tags else "",
            keys=(str(now_ms // 1000),) if has_key else (),
            properties=user_properties(property_size),
            delay_level=level,
        )

    async def work(admin: Admin) -> None:
        await Senders(admin, topic, message, batch, quantity).run(count, interval_ms)

    _until_interrupted(nameserver, work)


def user_properties(size_bytes: int) -> dict[str, str]:
    """As many as the original makes for this size: names and values until they are longer."""
    found: dict[str, str] = {}
    length = 0
    while length < size_bytes:
        name, value = f"prop{len(found)}", f"hello{len(found)}"
        found[name] = value
        length += len(name) + len(value)
    return found


# --- consume --------------------------------------------------------------------------------------


@app.command(
    "consume",
    epilog="Example: kerolox bench consume -n 127.0.0.1:9876 -t BenchmarkTest -g benchmark_consumer",
)
@one_line_errors
def consume(
    topic: TopicOption = "BenchmarkTest",
    threads: Annotated[
        int,
        typer.Option("-w", "--threadCount", help="Of no effect: messages are counted as they come.", min=1),
    ] = 20,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.")] = "benchmark_consumer",
    suffix: Annotated[
        str, typer.Option("-p", "--groupPrefixEnable", help="true: a suffix makes the group a new one.")
    ] = "false",
    filter_type: Annotated[str, typer.Option("-f", "--filterType", help="TAG or SQL92.")] = "TAG",
    expression: Annotated[
        Path | None, typer.Option("-e", "--expression", help="File with the filter; none takes everything.")
    ] = None,
    quantity: QuantityOption = 0,
    interval_ms: IntervalOption = 10_000,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
) -> None:
    """Consume all queues of a topic from where the group is, alone. Prints rates and delays."""
    from kerolox.cli.bench_load import Consumers
    from kerolox.clock import SYSTEM_CLOCK

    if filter_type not in ("TAG", "SQL92"):
        raise OptionError("-f", filter_type, "TAG or SQL92")
    if truth("-p", suffix):
        group = f"{group}_{SYSTEM_CLOCK.wall_ms() % 100}"
    wanted = "*" if expression is None else expression.read_text(encoding="utf-8").strip()
    typer.echo(
        f"topic: {topic}, threadCount {threads}, group: {group}, suffix: {suffix}, "
        f"filterType: {filter_type}, expression: {wanted}, reportInterval: {interval_ms}"
    )

    async def work(admin: Admin) -> None:
        await Consumers(admin, topic, group, filter_type, wanted, quantity).run(interval_ms)

    _until_interrupted(nameserver, work)


# --- both -----------------------------------------------------------------------------------------


def truth(flag: str, text: str) -> bool:
    """The original's flags take ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise OptionError(flag, text, "true or false")
    return text.lower() == "true"


def _until_interrupted(addresses: str, work: Callable[[Admin], Coroutine[Any, Any, None]]) -> None:
    try:
        run_admin(addresses, work)
    except KeyboardInterrupt:
        pass

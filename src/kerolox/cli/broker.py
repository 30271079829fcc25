"""``kerolox broker``"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import broker_followers, broker_promote, broker_upkeep
from kerolox.cli.output import JsonFlag, one_line_errors
from kerolox.cli.serving import (
    ListenOption,
    LogLevel,
    LogLevelOption,
    ParentOption,
    PrintConfigFlag,
    listen_address,
    load_options,
    log_to_stderr,
    print_options,
    serve_until_told,
)
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.options import Options

EXAMPLE = "Example: kerolox broker -c broker.conf -n 127.0.0.1:9876 --store /var/lib/kerolox"


app = typer.Typer(help="Run a broker, or administer running brokers.")
app.command("followers", epilog=broker_followers.EXAMPLE)(broker_followers.show)
app.command("status", epilog=broker_upkeep.STATUS_EXAMPLE)(broker_upkeep.status)
app.command("settings", epilog=broker_upkeep.SETTINGS_EXAMPLE)(broker_upkeep.settings)
app.command("drain", epilog=broker_upkeep.DRAIN_EXAMPLE)(broker_upkeep.drain)
app.command("undrain", epilog=broker_upkeep.UNDRAIN_EXAMPLE)(broker_upkeep.undrain)
app.command("expire", epilog=broker_upkeep.EXPIRE_EXAMPLE)(broker_upkeep.expire)
app.command("promote", epilog=broker_promote.EXAMPLE)(broker_promote.promote)


@app.callback(epilog=EXAMPLE, invoke_without_command=True)
@one_line_errors
def serve(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", "-c", help="Properties file, such as RocketMQ's broker.conf."),
    ] = None,
    listen: ListenOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the broker.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory of the store.", metavar="DIR", file_okay=False)
    ] = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver", "-n", help="Name server addresses, separated by ';'.", metavar="HOST:PORT"
        ),
    ] = None,
    advertised_host: Annotated[
        str | None, typer.Option(help="Address advertised to clients. Default: detected.", metavar="HOST")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set any option by RocketMQ's key. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    print_config: PrintConfigFlag = False,
    json: JsonFlag = False,
    log_level: LogLevelOption = LogLevel.INFO,
    parent: ParentOption = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT. The commands below administer running brokers."""
    if context.invoked_subcommand is not None:
        return
    from kerolox.broker.broker import Broker
    from kerolox.broker.options import BrokerOptions
    from kerolox.net.loop import run

    host, port = (None, None) if listen is None else listen_address(listen)
    flags = merged(
        by_key(BrokerOptions, settings or []),
        BrokerOptions,
        {
            "bind_address": ("--listen", host),
            "listen_port": ("--listen", port),
            "broker_name": ("--name", name),
            "store_path": ("--store", None if store is None else str(store)),
            "nameservers": ("--nameserver", nameserver),
            "advertised_host": ("--advertised-host", advertised_host),
            # Options changed at run time are saved to the file they were read from, as in RocketMQ.
            "config_path": ("--config-file", None if config_file is None else str(config_file)),
        },
    )
    loaded = load_options(BrokerOptions, config_file, flags)
    if print_config:
        print_options(loaded, json)
        return
    log_to_stderr(log_level)
    loaded.warn_unknown()
    run(serve_until_told("broker", Broker(loaded.options), parent=parent))


def merged(
    chosen: Mapping[str, Any], options: type[Options], flags: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """Merge values of ``--set`` with flags (option name → flag and value; None for an unused flag).

    Raises OptionError when both set one option to different values.
    """
    from kerolox.options import specs

    used = {name: (flag, value) for name, (flag, value) in flags.items() if value is not None}
    keys = {spec.name: spec.key for spec in specs(options)}
    for name, (flag, value) in used.items():
        if name in chosen and chosen[name] != value:
            raise OptionError(
                "--set", f"{keys[name]}={chosen[name]}", f"one value; {flag} sets it to {value!r}. Remove one"
            )
    return {**chosen, **{name: value for name, (_, value) in used.items()}}


def refuse_own(settings: list[str], own: Mapping[str, str]) -> None:
    """Raise OptionError if ``--set`` names an option that the command controls by a separate flag."""
    for text in settings:
        key = text.partition("=")[0].strip()
        if key in own:
            raise OptionError("--set", text, own[key])


def by_key(options: Any, settings: list[str]) -> dict[str, Any]:
    """Parse ``key=value`` texts into values by option name; the last value of a key wins."""
    from kerolox.options import NO_EFFECT, is_rocketmqs, meant, refuse_absent, specs

    known = {spec.key: spec for spec in specs(options)}
    found: dict[str, Any] = {}
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise OptionError("--set", text, "key=value")
        refuse_absent(options, key, value, "--set")
        if key not in known:
            expected = f"a key that --print-config shows.{meant(key, known)}"
            if is_rocketmqs(key):
                expected = f"an option with an effect; this one is {NO_EFFECT}. Remove it"
            raise OptionError("--set", text, expected)
        found[known[key].name] = known[key].parse(value, "--set")
    return found

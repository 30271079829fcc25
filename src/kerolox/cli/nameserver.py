"""``kerolox nameserver``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

if TYPE_CHECKING:
    from kerolox.controller.controller import Controller
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.options import Loaded

EXAMPLE = "Example: kerolox nameserver -c namesrv.conf --listen 0.0.0.0:9876"


@one_line_errors
def serve(
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", "-c", help="Properties file, such as RocketMQ's namesrv.conf."),
    ] = None,
    listen: ListenOption = None,
    print_config: PrintConfigFlag = False,
    json: JsonFlag = False,
    log_level: LogLevelOption = LogLevel.INFO,
    parent: ParentOption = None,
) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.net.loop import run

    host, port = (None, None) if listen is None else listen_address(listen)
    # Options changed at run time are saved to the file they were read from, as in RocketMQ.
    store_path = None if config_file is None else str(config_file)
    flags: dict[str, Any] = {"bind_address": host, "listen_port": port, "config_store_path": store_path}
    loaded = load_options(NamesrvOptions, config_file, flags)
    controller = None
    if loaded.options.enable_controller_in_namesrv:
        controller = _controller(loaded, config_file, {k: v for k, v in flags.items() if k != "listen_port"})
    if print_config:
        print_options(loaded, json)
        return
    log_to_stderr(log_level)
    loaded.warn_unknown()
    run(serve_until_told("nameserver", NameServer(loaded.options, controller=controller), parent=parent))


def _controller(
    nameserver: Loaded[NamesrvOptions], config_file: Path | None, flags: dict[str, Any]
) -> Controller:
    """Return the controller configured in the name server's file. Keys of both are valid in that file."""
    from kerolox.controller.controller import Controller
    from kerolox.controller.options import ControllerOptions
    from kerolox.options import specs

    loaded = load_options(ControllerOptions, config_file, flags)
    for spec in specs(ControllerOptions):
        nameserver.unknown.pop(spec.key, None)
    return Controller(loaded.options)

"""``kerolox controller``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerolox.cli import controller_admin
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

EXAMPLE = "Example: kerolox controller --listen 0.0.0.0:9878 --store /var/lib/kerolox-controller"

app = typer.Typer(help="Run a controller, or administer the brokers under it.")
app.command("status", epilog=controller_admin.STATUS_EXAMPLE)(controller_admin.status)
app.command("elect", epilog=controller_admin.ELECT_EXAMPLE)(controller_admin.elect)
app.command("settings", epilog=controller_admin.SETTINGS_EXAMPLE)(controller_admin.settings)
app.command("clean", epilog=controller_admin.CLEAN_EXAMPLE)(controller_admin.clean)


@app.callback(epilog=EXAMPLE, invoke_without_command=True)
@one_line_errors
def serve(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", "-c", help="Properties file, such as RocketMQ's controller.conf."),
    ] = None,
    listen: ListenOption = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory of the controller's state.", metavar="DIR", file_okay=False)
    ] = None,
    print_config: PrintConfigFlag = False,
    json: JsonFlag = False,
    log_level: LogLevelOption = LogLevel.INFO,
    parent: ParentOption = None,
) -> None:
    """Run a controller until SIGTERM or SIGINT. It elects the masters of broker groups.

    The commands below administer running controllers.
    """
    if context.invoked_subcommand is not None:
        return
    from kerolox.controller.controller import Controller
    from kerolox.controller.options import ControllerOptions
    from kerolox.net.loop import run

    host, port = (None, None) if listen is None else listen_address(listen)
    flags = {
        "bind_address": host,
        "listen_port": port,
        "store_path": None if store is None else str(store),
        # Options changed at run time are saved to the file they were read from, as in RocketMQ.
        "config_store_path": None if config_file is None else str(config_file),
    }
    loaded = load_options(ControllerOptions, config_file, flags)
    if print_config:
        print_options(loaded, json)
        return
    log_to_stderr(log_level)
    loaded.warn_unknown()
    run(serve_until_told("controller", Controller(loaded.options), parent=parent))

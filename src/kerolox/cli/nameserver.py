"""``kerolox nameserver``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerolox.cli.output import JsonFlag, one_line_errors
from kerolox.cli.serving import (
    LogLevel,
    listen_address,
    load_options,
    log_to_stderr,
    print_options,
    serve_until_told,
)

EXAMPLE = "Example: kerolox nameserver -c namesrv.conf --listen 0.0.0.0:9876"


@one_line_errors
def serve(
    config_file: Annotated[
        Path | None, typer.Option("--config-file", "-c", help="RocketMQ's namesrv.conf, a properties file.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where to listen; port 0 takes a free one.", metavar="HOST:PORT")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every option and its source, and exit.")
    ] = False,
    json: JsonFlag = False,
    log_level: Annotated[LogLevel, typer.Option(help="What to log, on stderr.")] = LogLevel.INFO,
    parent: Annotated[int | None, typer.Option(hidden=True, help="Stop when this process ends.")] = None,
) -> None:
    """Run a name server until SIGTERM or SIGINT."""
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.net.loop import run

    host, port = (None, None) if listen is None else listen_address(listen)
    # Options changed while running go to the file they came from, as in RocketMQ.
    store_path = None if config_file is None else str(config_file)
    loaded = load_options(
        NamesrvOptions,
        config_file,
        {"bind_address": host, "listen_port": port, "config_store_path": store_path},
    )
    if print_config:
        print_options(loaded, json)
        return
    log_to_stderr(log_level)
    loaded.warn_unknown()
    run(serve_until_told("nameserver", NameServer(loaded.options), parent=parent))

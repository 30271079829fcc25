"""``kerolox version``"""

from __future__ import annotations

import typer

from kerolox.cli.output import JsonFlag, OutputTable, echo, one_line_errors, output

EXAMPLE = "Example: kerolox version --json"


def show_short(asked: bool) -> None:
    """``kerolox --version``"""
    if asked:
        import kerolox

        echo(f"kerolox {kerolox.__version__}")
        raise typer.Exit


@one_line_errors
def show(json: JsonFlag = False) -> None:
    """Show the versions of kerolox, Python, the platform and the protocol."""
    import platform

    import kerolox
    from kerolox.compiled import CORE
    from kerolox.net.loop import LOOP_NAME
    from kerolox.protocol.codes import VERSION, version_name

    protocol = version_name(VERSION).removeprefix("V").replace("_", ".")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    core = "pure Python" if CORE is None else "compiled"
    document = {
        "kerolox": kerolox.__version__,
        "python": python,
        "platform": platform.platform(terse=True),
        "eventLoop": LOOP_NAME,
        "core": core,
        "protocol": protocol,
        "protocolVersion": VERSION,
    }
    rows = [
        ("kerolox", kerolox.__version__),
        ("Python", python),
        ("platform", document["platform"]),
        ("event loop", LOOP_NAME),
        ("core", core),
        ("protocol", f"RocketMQ {protocol} (version {VERSION})"),
    ]
    output(json).show(document, OutputTable(("part", "version"), rows))

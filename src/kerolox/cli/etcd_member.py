"""``kerolox etcd-member``, which ``kerolox cluster up`` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerolox.cli.output import JsonFlag, echo, one_line_errors
from kerolox.cli.serving import ParentOption, say_ready


@one_line_errors
def serve(
    config_file: Annotated[Path, typer.Option("--config-file", "-c", help="Settings of the member.")],
    parent: ParentOption = None,
    json: JsonFlag = False,
) -> None:
    """Run one member of an etcd cluster on this machine."""
    from functools import partial

    from kerolox.net.loop import run
    from kerolox.protocol.bodies.properties_text import read_properties
    from kerolox.supervise.etcd import prepare_member, run_member

    member = prepare_member(read_properties(config_file.read_bytes()), notice=partial(echo, err=True))
    run(run_member(member, parent, partial(say_ready, "etcd-member")))

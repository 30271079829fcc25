"""``kerolox pipeline``"""

from __future__ import annotations

import typer

from kerolox.cli import (
    pipeline_archive,
    pipeline_audit,
    pipeline_compact,
    pipeline_rebuild,
    pipeline_replay,
    pipeline_run,
    pipeline_transfer,
)

_HELP = "Archive, process and repair topics and stores on Spark. Needs: pip install 'kerolox\\[spark]'."

app = typer.Typer(
    help=_HELP,
    epilog="Example: kerolox pipeline archive --topic orders --to /data/archive --once",
    no_args_is_help=True,
)


@app.callback(help=_HELP)
def pipeline() -> None:
    """Keep the commands a group."""


app.command("archive", epilog=pipeline_archive.EXAMPLE)(pipeline_archive.archive)
app.command("audit", epilog=pipeline_audit.EXAMPLE)(pipeline_audit.audit)
app.command("compact", epilog=pipeline_compact.COMPACT_EXAMPLE)(pipeline_compact.compact)
app.command("expire", epilog=pipeline_compact.EXPIRE_EXAMPLE)(pipeline_compact.expire)
app.command("rebuild", epilog=pipeline_rebuild.EXAMPLE)(pipeline_rebuild.rebuild)
app.command("split", epilog=pipeline_transfer.SPLIT_EXAMPLE)(pipeline_transfer.split)
app.command("merge", epilog=pipeline_transfer.MERGE_EXAMPLE)(pipeline_transfer.merge)
app.command("replay", epilog=pipeline_replay.EXAMPLE)(pipeline_replay.replay)
app.command("run", epilog=pipeline_run.RUN_EXAMPLE)(pipeline_run.run)
app.command("check", epilog=pipeline_run.CHECK_EXAMPLE)(pipeline_run.check)

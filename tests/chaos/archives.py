"""Archives killed at random while a producer sends, and a file that says what came of it.

``python -m tests.chaos.archives --kills 30``: so many kills of the command for S3 and for Iceberg each, half
of Iceberg's with a SQL catalog and half with Apache's REST catalog; kills of workers and JVMs come on top.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tempfile
import time
from pathlib import Path

from .__main__ import progress
from .archive_story import ArchiveStory, ArchiveTally

KINDS = ("parquet on s3", "iceberg by sql", "iceberg by rest")


def victims(kind: str, kills: int, seed: int) -> list[str]:
    """So many kills of the command; for every three a worker's, for every ten a JVM's."""
    chance = random.Random(f"victims-{kind}-{seed}")
    chosen = [chance.choice(("command", "command", "command with all its processes")) for _ in range(kills)]
    chosen += ["worker"] * (kills // 3) + ["jvm"] * (kills // 10)
    chance.shuffle(chosen)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.archives", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of the command, for S3 and for Iceberg each")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    result: dict[str, object] = _before(args.out)
    result |= {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "command": "kerolox pipeline archive --follow --interval 0.1s --master local[2]",
    }
    for kind in args.kind or KINDS:
        kills = args.kills
        if kind.startswith("iceberg"):
            kills = kills // 2 + (kills % 2 if kind == "iceberg by sql" else 0)
        tally = ArchiveTally()
        with tempfile.TemporaryDirectory(prefix="kerolox-chaos-archive-") as folder:
            story = ArchiveStory(Path(folder) / "story", kind, args.seed, tally)
            story.run(victims(kind, kills, args.seed))
        progress(f"{kind}: {tally.dump()}")
        result[kind.replace(" ", "_")] = tally.dump()
        if args.out is not None:  # after each: an hour of kills is not to be lost with the next one
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    progress(f"{time.monotonic() - began_s:.0f} s")


def _before(out: Path | None) -> dict[str, object]:
    """What a run of other kinds has written."""
    if out is None or not out.exists():
        return {}
    found: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()

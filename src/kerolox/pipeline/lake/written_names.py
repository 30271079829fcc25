"""Names of the files that flows write: they begin with the time of writing.

All table formats keep the names of files, so upkeep finds the hour of a file in each of them. The name of a
joined file has the time of the newest file in it, which is of the same hour.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kerolox.pipeline.lake.table_file import LakeFile

ABANDONED_MS: Final = 86_400_000  # age at which a file that no commit names is of a killed run
_NAME: Final = re.compile(r"(\d{13})-.+\.parquet").fullmatch
_UNFINISHED: Final = re.compile(r"\.?(\d{13})-.+\.(parquet|tmp)").fullmatch


def written_name(now_ms: int, stem: str) -> str:
    return f"{now_ms:013d}-{stem}.parquet"


def joined_path(files: Sequence[LakeFile]) -> str:
    """Return a new path for a file with the rows of these files, which are in one folder."""
    folder = files[0].path.rpartition("/")[0]
    newest = max(written_ms(file.path) or 0 for file in files)
    name = written_name(newest, f"joined-{os.urandom(6).hex()}")
    return f"{folder}/{name}" if folder else name


def written_ms(path: str) -> int | None:
    """Return the time in a file's name; None if no flow wrote it."""
    found = _NAME(path.rsplit("/", 1)[-1])
    return int(found[1]) if found else None


def abandoned(path: str, now_ms: int) -> bool:
    """Return True for a file that is not committed, or a document that is not complete, of a killed run."""
    found = _UNFINISHED(path.rsplit("/", 1)[-1])
    return found is not None and int(found[1]) < now_ms - ABANDONED_MS


def hour_of(time_ms: int) -> dict[str, Any]:
    """Return date and hour of a file that was written at this time."""
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    return {"date": at.strftime("%Y-%m-%d"), "hour": at.hour}

"""Removal of old snapshots of an Iceberg table, and of metadata files that nothing refers to.

Every commit writes manifests, a list of them and the table's document before the catalog accepts it. A run
that is killed at that point, or between expiring a snapshot and deleting its files, leaves some behind;
their names do not differ from those of a commit in progress. So a run notes each unreferenced file with the
time it was first seen, and deletes files that were seen more than a day ago: no commit takes so long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kerolox.pipeline.lake.iceberg_storage import metadata_storage
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.staging import OWN_FOLDER
from kerolox.pipeline.lake.storage import Storage

SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
SNAPSHOT_AGE_MS: Final = 86_400_000  # for running readers; Iceberg's default of five days keeps more
SEEN: Final = f"{OWN_FOLDER}/unnamed.json"  # file names, and when each was first seen
WAIT_MS: Final = 86_400_000
MANIFESTS: Final = ".avro"
DOCUMENTS: Final = ".metadata.json"


def forget_old(
    table: IcebergTable, notes: Storage, options: Mapping[str, Any], now_ms: int, keep_ms: int
) -> int:
    """Expire old snapshots with their files. Returns the number of other files removed.

    Snapshots are kept for the table's ``history.expire.max-snapshot-age-ms``, by default a day, but at most
    for the time for which the table keeps rows.
    """
    told = table.table.metadata.properties.get(SNAPSHOT_AGE)
    table.expire_snapshots(now_ms - min(int(told or SNAPSHOT_AGE_MS), max(0, keep_ms)))
    metadata = metadata_storage(table, options)
    return 0 if metadata is None else remove_unnamed(table, metadata, notes, now_ms)


def remove_unnamed(table: IcebergTable, metadata: Storage, notes: Storage, now_ms: int) -> int:
    """Delete unreferenced files that were first seen long enough ago, and return how many there were.

    ``metadata``: the folder of the table's metadata. ``notes``: the folder for the list of files seen.
    """
    endings = (MANIFESTS, DOCUMENTS) if table.drops_documents else (MANIFESTS,)
    # Listed first: a file committed meanwhile is not in the list, or the table refers to it.
    listed = [file.path for file in metadata.files() if "/" not in file.path and file.path.endswith(endings)]
    table.load()
    known = {path.rsplit("/", 1)[-1] for path in table.reachable()}
    unnamed = [name for name in listed if name not in known]
    before = _seen(notes)
    seen = {name: before.get(name, now_ms) for name in unnamed}
    gone = [name for name, first_ms in seen.items() if now_ms - first_ms > WAIT_MS]
    metadata.delete(gone)
    left = {name: first_ms for name, first_ms in seen.items() if name not in gone}
    if left:
        if left != before:
            notes.put(SEEN, json.dumps(left).encode())
    elif before:
        notes.delete([SEEN])
    return len(gone)


def _seen(notes: Storage) -> dict[str, int]:
    try:
        found = json.loads(notes.read(SEEN))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): int(first_ms) for name, first_ms in found.items()}

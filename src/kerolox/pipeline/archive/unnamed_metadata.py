"""Removal of metadata files of an Iceberg table that nothing refers to.

Every commit writes manifests, a list of them and the table's document before the catalog accepts it. A run
that is killed at that point, or between expiring a snapshot and deleting its files, leaves some behind;
their names do not differ from those of a commit in progress. So a run notes each unreferenced file with the
time it was first seen, and deletes files that were seen more than a day ago: no commit takes so long.
"""

from __future__ import annotations

import json
from typing import Final

from kerolox.pipeline.archive.staging import OWN_FOLDER
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.storage import Storage

SEEN: Final = f"{OWN_FOLDER}/unnamed.json"  # file names, and when each was first seen
WAIT_MS: Final = 86_400_000
MANIFESTS: Final = ".avro"
DOCUMENTS: Final = ".metadata.json"


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

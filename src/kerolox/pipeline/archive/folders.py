"""Folder of an archive for each message: by topic, store time and the chosen partitions.

Partitions other than topic and time (a tag, a property) are columns of the files as well. Their folders only
let readers skip files, so nothing is lost if a value cannot be a folder name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.errors import OptionError
from kerolox.spark.columns import COLUMNS
from kerolox.spark.records import PropertyPairs

HOUR_US = 3_600_000_000
PARTITIONS = ("topic", "date", "hour")  # default
TAG = "tag"
PROPERTY = "property."
WHOLE_DAY = -1  # instead of an hour
FOLDERS_MAX = 1000  # per task; more would mean files of a few rows each
VALUE_BYTES_MAX = 200  # in a folder name; file systems allow 255, including the column's name
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # folder name for null in Hive, Spark and others
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,40}").fullmatch


def check_partitions(given: tuple[str, ...], properties: str) -> None:
    """Raise OptionError for partitions that an archive cannot have."""
    if not given:
        return
    option, text = "partition-by", ",".join(given)
    begin = 3 if given[2:3] == ("hour",) else 2
    if given[:begin] != PARTITIONS[:begin]:
        raise OptionError(option, text, "topic,date or topic,date,hour first")
    taken = {*COLUMNS, *PARTITIONS, TAG}
    for each in given[begin:]:
        name = each.removeprefix(PROPERTY)
        if each == TAG:
            continue
        if name == each or not _NAME(name):
            raise OptionError(option, text, f"tag, or {PROPERTY}NAME with letters, digits and _, after that")
        if name.lower() in taken:
            raise OptionError(option, text, f"another property: an archive already has a column {name}")
        if properties == "none":
            raise OptionError(option, text, "no property: --properties none does not read them")
    if len({each.lower() for each in given}) < len(given):
        raise OptionError(option, text, "each partition only once")


def folder_of(
    topic: str, date: str, hour: int, names: Sequence[str] = (), values: Sequence[str | None] = ()
) -> str:
    """Return the folder of an hour or a day, in the layout that Hive, Spark and others read."""
    folder = f"topic={quote(topic, safe='')}/date={date}"
    if hour != WHOLE_DAY:
        folder += f"/hour={hour:02d}"
    for name, value in zip(names, values, strict=True):
        folder += f"/{name}={NO_VALUE if value is None else quote(value, safe='')}"
    return folder


class FolderPlace(NamedTuple):
    """Folder of a row: its hour and the values of the chosen partitions."""

    hour: int  # hours since 1970; for a whole day, its first hour
    values: tuple[str | None, ...] = ()  # of the chosen partitions


def places_of(
    batch: pa.RecordBatch, chosen: Sequence[str], *, by_hour: bool
) -> tuple[list[FolderPlace], npt.NDArray[np.int64]]:
    """Return the distinct folders of the rows, and for each row the number of its folder."""
    times = np.asarray(batch.column(batch.schema.get_field_index("store_timestamp")).view(pa.int64()))
    step = HOUR_US if by_hour else 24 * HOUR_US
    first = int(times.min()) // step
    if not chosen and first == int(times.max()) // step:  # the usual case: all rows in one folder
        return [FolderPlace(first * (step // HOUR_US))], np.zeros(len(times), np.int64)
    hours = times // HOUR_US
    if not by_hour:
        hours -= hours % 24
    low = int(hours.min())
    codes: list[npt.NDArray[np.int64]] = [hours - low]
    known: list[list[str | None]] = []
    for name in chosen:
        texts = pc.dictionary_encode(_chosen(batch, name), null_encoding="encode")
        codes.append(np.asarray(texts.indices).astype(np.int64))
        known.append([_fitting(value) for value in texts.dictionary.to_pylist()])
    rows, inverse = np.unique(np.stack(codes), axis=1, return_inverse=True)
    found = [
        FolderPlace(low + row[0], tuple(each[at] for each, at in zip(known, row[1:], strict=True)))
        for row in rows.T.tolist()
    ]
    # All values that cannot be folder names share one folder.
    numbers = {place: number for number, place in enumerate(dict.fromkeys(found))}
    return list(numbers), np.array([numbers[place] for place in found], np.int64)[inverse.reshape(-1)]


def _chosen(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == TAG:
        return batch.column(batch.schema.get_field_index("tags"))
    packed = batch.column(batch.schema.get_field_index("properties"))
    name = name.removeprefix(PROPERTY)
    if packed.type == pa.string():
        return PropertyPairs.of(packed).pick(name)
    return pc.map_lookup(packed, name, "last")


def _fitting(value: str | None) -> str | None:
    """Return the value if it can be a folder name, else None. The file has the value in any case."""
    return value if value and len(quote(value, safe="")) <= VALUE_BYTES_MAX else None

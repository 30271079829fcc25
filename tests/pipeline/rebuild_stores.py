"""Logs with everything in them that has a rule of its own when queues and index are made."""

from __future__ import annotations

import random
from pathlib import Path

from kerolox.store.offline.layout import Layout, find_layout
from kerolox.store.options import StoreOptions
from tests.spark.store_maker import StoreMaker

FILE_BYTES = 1 << 16
LONG_TOPIC = "%RETRY%" + "g" * 150  # takes a wide topic length
TOPICS = ("orders", "payments", "SCHEDULE_TOPIC_XXXX", LONG_TOPIC, "batched")
_FLAGS = (*[0] * 20, 0x4, 0x8, 0xC)  # prepared, committed, rolled back


def mixed_log(root: Path, seed: int, count: int = 1500, *, first_file: int = 0) -> StoreMaker:
    """Delays, transactions, batches in one record, light queues, wide hosts, lost messages, topics that began
    anew: the log only, without queues."""
    chance = random.Random(seed)
    maker = StoreMaker(root, FILE_BYTES)
    offsets: dict[tuple[str, int], int] = {}
    for number in range(count):
        topic, queue_id = chance.choice(TOPICS), chance.randrange(3)
        properties = {"UNIQ_KEY": f"{number:032X}"}
        if chance.random() < 0.5:
            properties["KEYS"] = " ".join(f"k{chance.randrange(500)}" for _ in range(chance.randrange(1, 4)))
        if chance.random() < 0.5:
            properties["TAGS"] = chance.choice(("x", "yé", "zz"))
        if topic.startswith("SCHEDULE"):
            properties["DELAY"] = str(chance.randrange(1, 20))
        flag = chance.choice(_FLAGS)
        offset = offsets.get((topic, queue_id), 0)
        if chance.random() < 0.003:
            offset += chance.randrange(1, 5)  # some were lost
        if chance.random() < 0.002:
            offset = 0  # the topic was deleted
        taken = 1
        if flag == 0 and topic == "batched" and chance.random() < 0.05:
            flag, taken, properties["INNER_NUM"] = 0xC0, 4, "4"
        if topic == "orders" and chance.random() < 0.05:
            light = offsets.get(("%LMQ%x", 0), 0)
            offsets["%LMQ%x", 0] = light + 1
            properties |= {"INNER_MULTI_DISPATCH": "%LMQ%x", "INNER_MULTI_QUEUE_OFFSET": str(light)}
        in_no_queue = flag & 0xC in (0x4, 0xC)
        if not in_no_queue:
            offsets[topic, queue_id] = offset + taken
        maker.add(
            topic,
            chance.randbytes(chance.randrange(300)),
            queue_id,
            properties=properties,
            ipv6=chance.random() < 0.1,
            sys_flag=flag,
            queue_offset=0 if in_no_queue else offset,
            queued=False,
        )
    maker.queues.clear()
    maker.write(first_file=first_file)
    return maker


def layout_of(root: Path) -> Layout:
    """The sizes these logs have, with small files for queues and index."""
    options = StoreOptions(
        store_path=str(root),
        commit_log_file_bytes=FILE_BYTES,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=700,
        light_queues=True,
        fill_light_queues=True,
    )
    return find_layout(root, options)


def content(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }

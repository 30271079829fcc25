"""How far behind streaming queries are, in the words of Spark's Kafka connector.

Sources in Python cannot give Spark metrics of their own: ``metrics`` of a source is always empty there. What
they can give is the latest offset, which a query's progress shows as it is; so ours tells in it how far
behind the batch is, and :func:`fill_metrics` puts figures where dashboards look for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from kerolox.spark.offsets import QueueOffsets, StreamOffset, is_marked

P = TypeVar("P", bound=dict[str, Any])


def behind(latest: Mapping[Any, int], ends: Mapping[Any, int]) -> dict[str, float]:
    """Messages behind the end of a queue: of the average queue, the worst, the best, and all together."""
    counts = [max(0, end - ends.get(queue, end)) for queue, end in latest.items()]
    if not counts:
        return {}
    total = sum(counts)
    return {"avg": round(total / len(counts), 1), "max": max(counts), "min": min(counts), "sum": total}


def fill_metrics(progress: P) -> P:
    """Fill in ``metrics`` of the rocketmq sources of a progress: ``fill_metrics(query.lastProgress)``.

    ``avgOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``minOffsetsBehindLatest`` over all queues,
    ``offsetsRead`` (more than rows, where a filter chose among them), and ``group``, under which the broker
    is told of the progress. All are texts, as everywhere in Spark. Other sources stay as they are.
    """
    for source in progress["sources"]:
        end = _mark(source.get("endOffset"))
        if end is None:
            continue
        start, latest = _mark(source.get("startOffset")), _mark(source.get("latestOffset"))
        begins: QueueOffsets = (start.places if start else {}) | end.begins
        figures: dict[str, float | str] = {
            f"{name}OffsetsBehindLatest": value
            for name, value in behind(latest.places if latest else {}, end.places).items()
            if name != "sum"
        }
        figures["offsetsRead"] = sum(max(0, at - begins.get(queue, at)) for queue, at in end.places.items())
        figures["group"] = end.group
        texts = {name: str(value) for name, value in figures.items()}
        source["metrics"] = {**source.get("metrics", {}), **texts}
    return progress


def _mark(text: object) -> StreamOffset | None:
    try:
        form = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return StreamOffset.decode(form) if isinstance(form, dict) and is_marked(form) else None

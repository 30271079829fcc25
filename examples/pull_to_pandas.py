"""Read a topic into a pandas DataFrame, batch by batch, from a point in time to its end, without await.

Needs pandas (`pip install pandas`). Run a broker (`kerolox up`), then:  python examples/pull_to_pandas.py
"""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta

import pandas as pd

from kerolox.blocking import Message, Producer, PullConsumer, PullOptions

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def send_readings(count: int) -> None:
    with Producer(NAMESERVER, group="sensors") as producer:
        producer.send_many(
            Message(
                "readings", json.dumps({"sensor": f"s-{n % 5}", "celsius": random.gauss(20, 3)}), tags="temp"
            )
            for n in range(count)
        )


def read(topic: str, since: timedelta) -> pd.DataFrame:
    frames: list[pd.DataFrame] = []
    with PullConsumer(NAMESERVER, group="notebook", options=PullOptions(auto_commit=False)) as consumer:
        queues = consumer.queues(topic)
        ends = {queue: consumer.bounds(queue)[1] for queue in queues}
        starts = consumer.offsets_for_time(queues, datetime.now(UTC) - since)
        consumer.assign([queue for queue in queues if starts[queue] < ends[queue]])
        for queue in consumer.assignment:
            consumer.seek(queue, starts[queue])
        left = set(consumer.assignment)
        while left and (batch := consumer.poll(timeout_s=10)):
            frame = pd.DataFrame.from_records([json.loads(message.body) for message in batch])
            frame["stored"] = pd.to_datetime(
                [message.store_timestamp for message in batch], unit="ms", utc=True
            )
            frames.append(frame)
            consumer.done(batch)  # room for more; without commit() the group's progress stays as it was
            if batch.next_offset >= ends[batch.queue]:
                left.discard(batch.queue)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def main() -> None:
    send_readings(10_000)
    readings = read("readings", since=timedelta(hours=1))
    print(f"{len(readings)} readings")
    print(readings.groupby("sensor")["celsius"].describe().round(2))


if __name__ == "__main__":
    main()

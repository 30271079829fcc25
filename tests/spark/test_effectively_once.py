"""What makes a repeated task send only what is missing, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from kerolox.client.sockets.lines import Sending, SendLine
from kerolox.client.sockets.sending import SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import ConnectionLost, KeroloxError, OptionError
from kerolox.protocol.command import Command
from kerolox.spark.sink.effectively_once import Beginning, NotTheSameRows, Stored, ends_of
from kerolox.spark.sink.notes import LocalFolder, Notes, RemoteFolder, open_folder
from kerolox.spark.sink.outgoing import Encoder
from kerolox.spark.sink.requests import Packer
from kerolox.spark.sink.row_ids import RowIds
from kerolox.testing.threads import BrokerThread
from tests.spark.sinking import stored, texts

NewTopic = Callable[..., str]


@pytest.fixture
def sender(broker: BrokerThread) -> Iterator[SocketSender]:
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as made:
        yield made


class Task:
    """Attempts of one task."""

    def __init__(self, sender: SocketSender, topic: str, partition: int = 0) -> None:
        self.sender = sender
        self.topic = topic
        self.ids = RowIds("job/1", partition)
        self.beginning = Beginning("job/1", 0, ends_of(sender, [topic]))

    def run(self, bodies: list[str], keys: list[str] | None = None, *, again: bool = True) -> Stored:
        known = Stored(self.sender, self.beginning, self.ids, "g", 0.02)
        self.sender.find_missing = known.missing_of
        columns = {"body": pa.array(bodies, pa.string())}
        if keys is not None:
            columns["keys"] = pa.array(keys, pa.string())
        packer = Packer(self.sender.send, batch_bytes=2_000)
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        for topic, queue, rows in Encoder(self.ids, topic=self.topic).groups(batch, self.sender.queues):
            packer.add(topic, queue, known.missing(topic, rows) if again else rows)
        packer.finish()
        self.sender.finish()
        if again:
            known.check(0)
        return known


def test_the_second_attempt_sends_the_rest(broker: BrokerThread, sender: SocketSender, topic: str) -> None:
    rows = [f"row {number}" for number in range(300)]
    Task(sender, topic, partition=1).run(rows, again=False)  # another task's rows count for nothing here
    task = Task(sender, topic)
    task.run(rows[:120], again=False)
    assert task.run(rows).skipped == 120
    assert task.run(rows).skipped == 300
    assert Counter(texts(broker.nameserver_address, topic)) == Counter(rows * 2)


def test_rows_may_come_in_another_order_and_equal_ones_count_each(
    broker: BrokerThread, sender: SocketSender, topic: str
) -> None:
    rows = ["same"] * 5 + [f"row {number}" for number in range(50)]
    keys = [f"k{number % 3}" for number in range(len(rows))]
    task = Task(sender, topic)
    task.run(rows[:30], keys[:30], again=False)
    assert task.run(rows[::-1], keys[::-1]).skipped == 30
    messages = stored(broker.nameserver_address, topic)
    found = Counter((message.text, message.properties["KEYS"]) for message in messages)
    assert found == Counter(zip(rows, keys, strict=True))
    assert len({message.msg_id for message in messages}) == len(rows)


def test_other_rows_than_before_are_found_out(sender: SocketSender, topic: str) -> None:
    task = Task(sender, topic)
    task.run(["a", "b", "c"], again=False)
    with pytest.raises(NotTheSameRows, match="sent 2 rows that this attempt did not get"):
        task.run(["a", "x", "y"])


def test_a_lost_answer_is_looked_up(
    broker: BrokerThread, sender: SocketSender, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3]
    whole = SendLine.pull

    def pull(self: SendLine) -> Iterable[tuple[Sending, Command]]:
        for found in whole(self):
            if left[0]:
                left[0] -= 1
                self.waiting[-1] = found[0]
                raise ConnectionLost(self.address, "cut in the test")
            yield found

    monkeypatch.setattr(SendLine, "pull", pull)
    rows = [f"row {number}" for number in range(500)]
    Task(sender, topic).run(rows, again=False)
    assert left == [0]
    assert texts(broker.nameserver_address, topic) == sorted(rows)


def test_without_offsets_the_time_says_where_to_look(
    broker: BrokerThread, sender: SocketSender, topic: str
) -> None:
    from kerolox.clock import SYSTEM_CLOCK

    task = Task(sender, topic)
    task.beginning = Beginning("job/1", SYSTEM_CLOCK.wall_ms())
    task.run(["a", "b"], again=False)
    assert task.run(["a", "b", "c"]).skipped == 2
    assert texts(broker.nameserver_address, topic) == ["a", "b", "c"]


def test_a_topic_that_is_not_there_yet(broker: BrokerThread, sender: SocketSender, topic: str) -> None:
    task = Task(sender, topic + "-new")
    assert task.run(["a", "b"]).skipped == 0
    assert task.run(["a", "b"]).skipped == 2
    assert texts(broker.nameserver_address, topic + "-new") == ["a", "b"]


# --- notes --------------------------------------------------------------------------------------------


def checkpoint(path: Path) -> Path:
    (path / "offsets").mkdir(parents=True)
    (path / "metadata").write_text('{"id":"the-query"}')
    for batch in (8, 9, 10):
        (path / "offsets" / f"{batch}").write_text(f'v1\n{{"batchTimestampMs":{batch}00}}\n{{}}')
        (path / "offsets" / f".{batch}.crc").touch()
    return path


@pytest.mark.parametrize("kind", ["local", "uri", "remote"])
def test_notes_stay_in_the_checkpoint(tmp_path: Path, kind: str) -> None:
    path = checkpoint(tmp_path / "check point")
    folder = {
        "local": lambda: open_folder(str(path)),
        "uri": lambda: open_folder(path.as_uri()),
        "remote": lambda: RemoteFolder(fs.LocalFileSystem(), str(path)),
    }[kind]()
    notes = Notes(folder)
    assert (notes.batch(), notes.query(), notes.started_ms(10)) == (10, "the-query", 1000)
    assert notes.find(10) is None
    made = Beginning("the-query/10", 1000, {"t": {"broker-a": {"0": 7}}})
    notes.keep(10, made)
    assert Notes(LocalFolder(str(path))).find(10) == made
    notes.finish(10)
    again = notes.find(10)
    assert again is not None
    assert again.done
    notes.finish(110)
    assert notes.find(10) is None


def test_a_checkpoint_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="since effectively-once keeps notes there"):
        open_folder("dbfs:/somewhere")
    with pytest.raises(KeroloxError, match="has no offset log"):
        Notes(open_folder(str(tmp_path))).batch()

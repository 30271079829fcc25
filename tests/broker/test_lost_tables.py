"""Tables that were lost, emptied or damaged: made again from the store, or the start is refused."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.properties import DELAY
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import Report, verify
from kerolox.store.options import StoreOptions
from kerolox.store.tables.table import TableBroken, TableLost
from kerolox.testing.broker import SMALL, running_broker
from tests.broker.talk import Talk, subscribed, until

CONFIG = Path("store") / "config"
Ruin = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def hollow(path: Path) -> None:
    path.write_bytes(b"{}")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


RUINS = [remove, empty, hollow, zero]


def ruin(directory: Path, name: str, how: Ruin) -> None:
    """The table and its backup."""
    for path in (directory / CONFIG / name, directory / CONFIG / f"{name}.bak"):
        if path.exists():
            how(path)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A store with 30 messages in six queues of two topics, and a group half-way through them."""
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await running.create_topic("Orders", queues=4)
        await running.create_topic("Bills", queues=2)
        for number in range(30):
            topic, queues = ("Orders", 4) if number % 3 else ("Bills", 2)
            assert (await talk.send(topic, b"%d" % number, queue_id=number % queues)).code == 0
        await talk.heartbeat("billing", subscribed("Orders"))
        for queue_id in range(4):
            running.broker.tables.offsets.commit("Orders", "billing", queue_id, 2)
    return tmp_path


def look(directory: Path) -> Report:
    return verify(find_layout(directory / "store", StoreOptions(**SMALL)))


def without_crc(text: str) -> str:
    """As another broker saves a table: nobody can tell whether it was damaged."""
    return re.sub(r',\s*"keroloxCrc32": \d+', "", text)


async def bodies(talk: Talk) -> set[bytes]:
    queues = [("Orders", 4), ("Bills", 2)]
    return {
        message.body
        for topic, count in queues
        for queue_id in range(count)
        for message in await talk.messages(topic, queue_id)
    }


def mended(directory: Path) -> str:
    result = CliRunner().invoke(app, ["store", "repair", str(directory / "store"), "--tables", "--yes"])
    assert result.exit_code == 0, result.output
    return result.output


# --- topics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RUINS, ids=lambda how: how.__name__)
async def test_topics_are_made_again_from_the_queues(
    directory: Path, how: Ruin, caplog: pytest.LogCaptureFixture
) -> None:
    ruin(directory, "topics.json", how)
    (finding,) = look(directory).findings
    assert (finding.kind, finding.path) == ("table: lost", str(directory / CONFIG / "topics.json"))
    assert finding.next == f"kerolox store repair {directory / 'store'} --tables"
    with caplog.at_level(logging.ERROR):
        async with running_broker(directory=directory) as running, Dialer() as dialer:
            assert await bodies(Talk(dialer, running)) == {b"%d" % number for number in range(30)}
            config = running.broker.tables.topics.find("Orders")
            assert config is not None
            assert (config.read_queue_nums, config.write_queue_nums) == (4, 4)
            assert running.broker.tables.topics.find("SCHEDULE_TOPIC_XXXX") is not None
    (line,) = [record.getMessage() for record in caplog.records if "topics_rebuilt" in record.getMessage()]
    assert "topics=2 queues=6" in line
    assert "kerolox topic update" in line
    assert look(directory).clean


async def test_a_table_without_one_topic_counts_as_lost(directory: Path) -> None:
    ruin(directory, "topics.json", lambda path: path.write_text('{"topicConfigTable":{}}') and None)
    async with running_broker(directory=directory) as running:
        assert running.broker.tables.topics.find("Bills") is not None


async def test_a_topic_made_since_the_backup_is_added_to_it(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert (await Talk(dialer, running).send("Newest")).code == 0
    path = directory / CONFIG / "topics.json"
    assert "Newest" not in path.with_name("topics.json.bak").read_text()
    path.write_bytes(path.read_bytes()[:1000])
    (finding,) = look(directory).findings
    assert finding.kind == "table: backup"
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert len(await Talk(dialer, running).messages("Newest")) == 1
    assert "backup_used" in caplog.text
    assert "topics_rebuilt" in caplog.text


@pytest.mark.parametrize(
    ("found", "wrong", "why"),
    [
        ('"readQueueNums": 4', '"readQueueNums": -4', "'Orders' has -4 queues"),
        ('"writeQueueNums": 4', '"writeQueueNums": 4000000', "'Orders' has 4000000 queues"),
        ('"topicName": "Orders"', '"topicName": "Orderz"', "'Orders' has the name 'Orderz'"),
        ('"readQueueNums": 4', '"readQueueNums": "x"', "readQueueNums"),
    ],
)
async def test_settings_that_make_no_sense_are_named(
    directory: Path, found: str, wrong: str, why: str
) -> None:
    for path in (directory / CONFIG / "topics.json", directory / CONFIG / "topics.json.bak"):
        start, at, rest = path.read_text().partition('"Orders": {')
        path.write_text(without_crc(start + at + rest.replace(found, wrong, 1)))
    (finding,) = look(directory).findings
    assert finding.kind == "table: broken"
    assert why in finding.what
    with pytest.raises(TableBroken, match="kerolox store repair"):
        async with running_broker(directory=directory):
            pass
    assert "topics.json: created empty, with 2 topics" in mended(directory)
    assert (directory / CONFIG / "topics.json.broken").exists()
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert len(await bodies(Talk(dialer, running))) == 30


# --- groups -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RUINS, ids=lambda how: how.__name__)
async def test_groups_are_made_again_from_offsets_and_retry_topics(
    directory: Path, how: Ruin, caplog: pytest.LogCaptureFixture
) -> None:
    ruin(directory, "subscriptionGroup.json", how)
    (finding,) = look(directory).findings
    assert finding.kind == "table: lost"
    async with running_broker(directory=directory, auto_create_groups=False) as running:
        assert running.broker.membership.groups.find("billing") is not None
        assert running.broker.tables.offsets.offset("Orders", "billing", 0) == 2
    assert "groups_rebuilt" in caplog.text


# --- offsets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", RUINS, ids=lambda how: how.__name__)
async def test_lost_offsets_stop_the_start_until_somebody_decides(directory: Path, how: Ruin) -> None:
    ruin(directory, "consumerOffset.json", how)
    (finding,) = look(directory).findings
    assert finding.kind == "table: lost"
    with pytest.raises(TableLost, match=r"consumerOffset\.json was lost: .* --tables") as refused:
        async with running_broker(directory=directory):
            pass
    assert "Restore it from a backup" in str(refused.value)
    mended(directory)
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert running.broker.tables.offsets.offset("Orders", "billing", 0) == -1
        assert len(await bodies(Talk(dialer, running))) == 30


async def test_with_all_tables_gone_the_start_is_refused(directory: Path) -> None:
    shutil.rmtree(directory / CONFIG)
    assert "table: lost" in [note.kind for note in look(directory).notes]
    with pytest.raises(TableLost, match="no table is left"):
        async with running_broker(directory=directory):
            pass
    mended(directory)
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert len(await bodies(Talk(dialer, running))) == 30
    assert look(directory).clean


async def test_offsets_outside_of_their_queue_are_named(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / CONFIG / "consumerOffset.json"
    table = json.loads(without_crc(path.read_text()))
    table["offsetTable"]["Orders@billing"] |= {"1": 5000, "2": -7}
    path.write_text(json.dumps(table))
    found = look(directory).findings
    assert [finding.kind for finding in found] == ["table: offset"] * 2
    assert found[0].what == "group billing is at 5000 of 6 in Orders queue 1"
    assert "kerolox group reset billing Orders" in found[0].next
    async with running_broker(directory=directory):
        pass
    (line,) = [r.getMessage() for r in caplog.records if "offsets_outside_of_queues" in r.getMessage()]
    assert "count=2" in line
    assert "Orders@billing queue 1: 5000 of 6" in line


async def test_an_offset_with_a_flipped_digit_is_not_believed(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would skip messages. The one saved before it is taken, and some messages come again."""
    async with running_broker(directory=directory) as running:
        running.broker.tables.offsets.commit("Orders", "billing", 1, 3)
    path = directory / CONFIG / "consumerOffset.json"
    text = path.read_text()
    assert '"1": 3' in text
    path.write_text(text.replace('"1": 3', '"1": 5'))
    (finding,) = look(directory).findings
    assert finding.kind == "table: backup"
    assert "does not match its checksum" in finding.what
    async with running_broker(directory=directory) as running:
        assert running.broker.tables.offsets.offset("Orders", "billing", 1) == 2
    assert "backup_used" in caplog.text


# --- the others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("marks", [True, False], ids=["with marks", "without"])
async def test_lost_progress_of_delays_is_found_by_marks_or_stops_the_start(
    tmp_path: Path, marks: bool
) -> None:
    async with running_broker(directory=tmp_path, delay_levels="1s 1h") as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        for level in (1, 2):
            assert (await talk.send("T", properties={DELAY: str(level)})).code == 0
        await until(lambda: running.broker.store.queues.max_offset("T", 0) == 1)
    ruin(tmp_path, "delayOffset.json", remove)
    if not marks:
        (tmp_path / "store" / "kerolox.delays").unlink()
        with pytest.raises(TableLost, match="delayed messages"):
            async with running_broker(directory=tmp_path, delay_levels="1s 1h"):
                pass
        mended(tmp_path)
    async with running_broker(directory=tmp_path, delay_levels="1s 1h") as running:
        # With the marks nothing comes again; without them what was delivered does, as the command said.
        copies = 1 if marks else 2
        await until(lambda: running.broker.store.queues.max_offset("T", 0) == copies)
        assert [level.next_offset for level in running.broker.later.delays.levels] == [1, 0]


@pytest.mark.parametrize("name", ["timermetrics", "transactionMetrics", "consumerFilter.json"])
async def test_broken_figures_do_not_stop_the_start(
    directory: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (directory / CONFIG / name, directory / CONFIG / f"{name}.bak"):
        path.write_bytes(b"\x07garbage")
    (note,) = [note for note in look(directory).notes if note.kind == "table: broken"]
    assert note.path.endswith(name)
    async with running_broker(directory=directory) as running, Dialer() as dialer:
        assert len(await bodies(Talk(dialer, running))) == 30
    assert f"table_dropped path={directory / CONFIG / name}" in caplog.text
    assert (directory / CONFIG / f"{name}.broken").read_bytes() == b"\x07garbage"


async def test_a_new_store_has_no_tables_and_misses_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        assert (await Talk(dialer, running).send("T")).code == ResponseCode.SUCCESS
    assert look(tmp_path).clean
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

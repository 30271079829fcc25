from __future__ import annotations

import pytest

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import OptionError
from kerolox.sizes import size_bytes
from kerolox.spark.option_table import (
    CLUSTER,
    Option,
    OptionTable,
    cluster_options,
    flag,
    moment,
    number,
    span,
)
from kerolox.spark.sink.options import SINK
from kerolox.spark.source.options import SOURCE, Start, read_wanted

NEEDED = {"nameserver": "127.0.0.1:9876", "topic": "orders"}


def refused(mode: str = "streaming", **options: str) -> str:
    with pytest.raises(OptionError) as raised:
        read_wanted({**NEEDED, **{key.lower(): value for key, value in options.items()}}, mode)
    return str(raised.value)


def test_defaults() -> None:
    wanted = read_wanted(NEEDED, "streaming")
    assert (wanted.topics, wanted.start, wanted.group) == (("orders",), Start(word="latest"), "spark_reader")
    assert (wanted.fail_on_data_loss, wanted.expression, wanted.patience_s) == (True, "*", 60)
    assert read_wanted(NEEDED, "batch").start == Start(word="earliest")
    assert read_wanted(NEEDED, "batch").end == Start(word="latest")


def test_names_are_known_in_any_case_and_by_other_names() -> None:
    wanted = read_wanted({"NameServer": "h:1;h:2", "topics": "a, b,a", "subExpression": "x || y"}, "batch")
    assert (wanted.nameserver, wanted.topics, wanted.tags) == ("h:1;h:2", ("a", "b"), frozenset("xy"))
    assert "one of its names" in refused(topics="b")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"startingOfsets": "latest"},
            "expected startingOffsets, perhaps; the options of the rocketmq source are",
        ),
        ({"subscribe": "orders"}, "expected topic, the name of this option in the rocketmq source"),
        ({"kafka.bootstrap.servers": "h:1"}, "expected nameserver"),
        ({"path": "orders"}, "expected topic"),
        ({"zzz": "1"}, "expected the options of the rocketmq source are nameserver"),
        ({"topicPattern": "o.*"}, "only one of topic, topicPattern"),
        ({"tags": "a", "sql92": "a > 1"}, "only one of tags, sql92"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "only one of startingOffsets"),
        ({"startingOffsets": "yesterday"}, "expected earliest, latest, group, or {"),
        ({"startingOffsets": '{"t": 1}'}, "brokers of t: expected an object"),
        ({"startingTimestamp": "noon"}, "milliseconds since 1970"),
        (
            {"endingOffsets": "latest"},
            "expected a batch query (spark.read) with it. Remove it: a stream",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "a number of messages (out of range)"),
        ({"maxOffsetsPerTrigger": "many"}, "a number of messages"),
        ({"maxBytesPerTrigger": "64q"}, "bytes, or 64m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "at most maxOffsetsPerTrigger = 5"),
        ({"maxTriggerDelayMs": "9"}, "minOffsetsPerTrigger to be given as well"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"properties": "json"}, "map, string or none"),
        ({"group": "no good"}, "a name of letters"),
        ({"startingOffsets": "group"}, "group to be given as well: a new query has none before"),
        ({"tags": "||"}, "tags with || between them"),
        ({"sql92": "a >"}, "a condition ("),
        ({"accessKey": "me"}, "the option secretKey or secretKeyFile"),
        ({"secretKey": "s"}, "accessKey and secretKey, or neither"),
        ({"keysFile": "/nowhere"}, "keysFile = '/nowhere': expected a file that can be read"),
        ({"tlsCa": "x.pem"}, "tls = true to be given as well"),
        ({"queueIds": "0,x"}, "numbers with commas"),
    ],
)
def test_refused_with_what_to_write_instead(given: dict[str, str], said: str) -> None:
    assert said in refused(**given)


def test_what_a_batch_query_cannot_be_told() -> None:
    assert "a streaming query (spark.readStream) with it. Remove it" in refused(
        "batch", maxOffsetsPerTrigger="5"
    )
    assert "nothing lies before that" in refused("batch", endingOffsets="earliest")


def test_needed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(OptionError, match="one of topic, topicPattern"):
        read_wanted({"nameserver": "h:1"}, "batch")
    with pytest.raises(OptionError, match="NAMESRV_ADDR"):
        read_wanted({"topic": "t"}, "batch")
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876")
    assert read_wanted({"topic": "t"}, "batch").nameserver == "env:9876"
    with pytest.raises(OptionError, match=r"topicPattern.*regular expression"):
        read_wanted({"nameserver": "h:1", "topicpattern": "("}, "batch")


def test_namespaces_go_before_topics_groups_and_offsets() -> None:
    given = {**NEEDED, "namespace": "ns", "startingoffsets": '{"orders": {"a": {"0": 3}}}', "group": "g"}
    wanted = read_wanted(given, "batch")
    assert (wanted.topics, wanted.group) == (("ns%orders",), "ns%g")
    assert wanted.start.offsets == {Queue("ns%orders", "a", 0): 3}


def test_secrets_are_not_told() -> None:
    table = OptionTable("a table", Option("secretKey", number(1), "a number", "secret", secret=True))
    for name in ("secretkey", "secretkeys"):
        with pytest.raises(OptionError) as raised:
            table.parse({name: "hunter2"})
        assert "hunter2" not in str(raised.value)
    assert "hunter2" not in refused(secretKey="hunter2")


def test_what_spark_adds_can_be_passed_over() -> None:
    table = OptionTable("a table", Option("a", number(1), "a number", "it"))
    assert table.parse({"a": "3", "checkpointlocation": "x"}, ignore=["checkpointlocation"])["a"] == 3


def test_tables_are_refused_with_what_works() -> None:
    """CREATE TABLE is told everything, but its SELECT nothing: better said when the table is made."""
    assert "CREATE TEMPORARY VIEW" in refused(**{"own": "1", "option.topic": "orders"})


def test_the_cluster() -> None:
    values = OptionTable("x", *CLUSTER).parse(
        {"nameserver": "h:1", "tls": "true", "tlsca": "ca.pem", "accesskey": "me", "secretkey": "s",
         "requesttimeoutms": "1500"}
    )  # fmt: skip
    options = cluster_options(values)
    assert options.tls is not None
    assert (options.tls.ca, options.access_key, options.request_timeout_s) == ("ca.pem", "me", 1.5)


def test_values() -> None:
    assert [flag(text) for text in ("true", "No", "1")] == [True, False, True]
    assert [size_bytes(text) for text in ("64m", "1k", "7", "2GB", "10b")] == [64 << 20, 1024, 7, 2 << 30, 10]
    assert moment("2026-01-31T12:00:00+01:00") == moment("2026-01-31T11:00:00") == 1769857200000
    assert moment("1769857200000") == 1769857200000


def test_lengths_of_time() -> None:
    read = span(1, 90_000_000)
    written = ("60000", "60s", "1m", "1 minute", "0.5h", "250ms", "1d", "2 Hours", "1h30m")
    assert [read(text) for text in written] == [
        60_000, 60_000, 60_000, 60_000, 1_800_000, 250, 86_400_000, 7_200_000, 5_400_000,
    ]  # fmt: skip
    for wrong in ("", "m", "15 q", "-5s", "1h 30", "0s", "99d"):
        with pytest.raises(ValueError):
            read(wrong)
    delayed = {**NEEDED, "minoffsetspertrigger": "9", "maxtriggerdelay": "15m"}  # as Kafka's source has it
    assert read_wanted(delayed, "streaming").trigger_delay_s == 900
    wanted = read_wanted(
        {**NEEDED, "retryforms": "15m", "discoveryintervalms": "30s", "idlewaitms": "0.2s"}, "streaming"
    )
    assert (wanted.patience_s, wanted.discovery_s, wanted.idle_wait_s) == (900, 30, 0.2)
    assert "or with a unit: 500ms, 30s, 15m" in refused(retryForMs="soon")


def test_every_option_in_milliseconds_takes_units() -> None:
    for table in (SOURCE, SINK):
        for option in table.options:
            if option.key.endswith("Ms"):
                assert option.read("2s") == 2_000, option.key


def test_how_long_ago() -> None:
    now_ms = SYSTEM_CLOCK.wall_ms()
    for text in ("15m", "15m ago", "15 minutes ago"):
        assert now_ms - 900_000 <= moment(text) <= SYSTEM_CLOCK.wall_ms() - 900_000


def test_times_by_topic_and_queue() -> None:
    given = '{"orders": 5, "clicks": {"a": {"0": "2026-01-31T12:00:00+01:00", "1": 7}}}'
    times = read_wanted(
        {**NEEDED, "startingoffsetsbytimestamp": given, "namespace": "ns"}, "streaming"
    ).start.times
    assert times is not None
    queues = [Queue("ns%orders", "a", 0), Queue("ns%clicks", "a", 0), Queue("ns%clicks", "a", 1)]
    assert [times.of(queue) for queue in queues] == [5, 1769857200000, 7]
    assert times.of(Queue("ns%clicks", "b", 0)) is None
    for wrong, said in (
        ("5", "topics: expected an object, found 5"),
        ("{}", "empty"),
        ('{"orders": "noon"}', '"noon" of orders is not a time'),
        ('{"orders": true}', "true of orders is not a time"),
        ('{"orders": {"a": {"x": 5}}}', "queue 'x' of orders/a is no number"),
        ('{"orders": {"a": 5}}', "queues of orders/a: expected an object"),
    ):
        assert said in refused(startingOffsetsByTimestamp=wrong)
    assert "a batch query" in refused(endingOffsetsByTimestamp=given)
    assert "only one of startingTimestamp" in refused(startingTimestamp="5", startingOffsetsByTimestamp=given)
    assert "startingTimestamp to be given as well" in refused(startingOffsetsByTimestampStrategy="error")
    assert "latest or error" in refused(startingTimestamp="5", startingOffsetsByTimestampStrategy="earliest")


def test_every_option_is_described() -> None:
    rows = SOURCE.describe()
    assert len({row[0] for row in rows}) == len(rows) > 30
    assert all(key and expected and about for key, expected, _, about in rows)

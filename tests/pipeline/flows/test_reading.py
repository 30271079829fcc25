"""Pipeline files: what is wrong is named by file, line and path, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.pipeline.flows.definition import LakeSink, Pipeline, SparkSink, TopicSource, Trigger
from kerolox.pipeline.flows.document import Document, PipelineInvalid
from kerolox.pipeline.flows.plan import make_plan, rows_of, text_graph
from kerolox.pipeline.flows.reading import read_pipeline
from kerolox.pipeline.flows.sql_names import tables_in

GOOD = """\
name: shop
storage: ${DIR}/state
nameserver: 127.0.0.1:9876
sources:
  orders: {topic: orders, options: {startingOffsets: earliest}}
steps:
  paid: {sql: "SELECT keys, body FROM orders WHERE tags = 'paid'"}
sinks:
  table: {from: paid, format: parquet, path: "${DIR}/paid"}
"""


def read(folder: Path, text: str, **given: str) -> tuple[Pipeline, Document]:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return read_pipeline(file, given or {"DIR": "/data"}, {"SECRET": "tops3cret"})


def problems(folder: Path, text: str, **given: str) -> list[str]:
    """Without the folder."""
    try:
        pipeline, document = read(folder, text, **given)
        make_plan(pipeline, document)
    except PipelineInvalid as error:
        return [str(each).removeprefix(f"{folder}/") for each in error.problems]
    return [str(each).removeprefix(f"{folder}/") for each in document.problems]


def test_a_file_becomes_typed(tmp_path: Path) -> None:
    pipeline, document = read(tmp_path, GOOD + "trigger: every 10s\nretry: {tries: 3, wait: 500ms}\n")
    assert pipeline.storage == "/data/state"
    assert isinstance(pipeline.sources["orders"], TopicSource)
    assert isinstance(pipeline.sinks["table"], LakeSink)
    assert (pipeline.trigger.every_s, pipeline.retry.tries, pipeline.retry.wait) == (10.0, 3, 0.5)
    assert [pipeline.retry.wait_s(n) for n in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 60.0]
    plan = make_plan(pipeline, document)
    assert plan.order == ["orders", "paid"]
    assert plan.needed("sink table") == {"paid", "orders"}
    assert ("sink", "table", "parquet table", "/data/paid", "paid") in rows_of(plan)
    assert "└── paid (SQL SELECT" in text_graph(plan)
    assert not document.problems


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format: parquet", "format: parqet", '9: sinks.table.format: "parqet": did you mean "parquet"?'),
        ("format: parquet", "format: icberg", '9: sinks.table.format: "icberg": did you mean "iceberg"?'),
        ("path:", "pat:", '9: sinks.table.pat: unknown key: did you mean "path"?'),
        ("from: paid", "from: payed", '9: sinks.table.from: there is no source or step "payed": did you'),
        ("FROM orders", "FROM ordrs", '7: steps.paid.sql: there is no source or step "ordrs": did you mean'),
        ("FROM orders", "FROM paid", "7: steps.paid: steps read each other in a cycle: paid → paid"),
        ("storage:", "storrage:", '2: storrage: unknown key: did you mean "storage"?'),
        ("name: shop", "name: 7up", "1: name: '7up': expected letters, digits and _"),
        ("  table: {from: paid,", "  table: {", "9: sinks.table: the key from is missing"),
        ("{topic: orders,", "{", "5: sources.orders: the kind is missing. Add one of the keys topic,"),
        ("${DIR}/state", "${NOT}/state", "2: storage: NOT is not set. Use --set NOT=..., or"),
        ("orders: {topic", "orders: 5\n  other: {topic", "5: sources.orders: expected keys, not 5"),
        ("sinks:", "sinks: [", "this is not YAML"),
        ("name: shop", "name: shop\nname: shop", "2: name: the key name occurs twice"),
        ("name: shop", "name: shop\ntrigger: 10", "2: trigger: '10': expected once, continuous, or a span"),
        ("name: shop", "name: shop\nretry: {tries: -1}", "2: retry.tries: expected `int` >= 0"),
        ("earliest}", "earliest, secretKey: abc}", "options.secretKey: this is a literal secret"),
    ],
)  # fmt: skip
def test_slips_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    assert any(said in each and each.startswith("pipeline.yaml:") for each in found), found


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("format: parquet", "format: parqet").replace("topic: orders", "topik: orders")
    assert len(problems(tmp_path, text + "trigger: now\n")) == 3


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("{rows: {min: 1}, of: tabel}", 'checks.c.of: there is no sink "tabel": did you mean "table"?'),
        ("{of: table}", "checks.c: expected one of rows, not_null, unique, fresh, where, total; found none"),
        ("{rows: {min: 1}, where: a, of: table}", "found rows, where"),
        ("{rows: {min: 1}, of: table, then: set_aside}", "set_aside needs a check of rows"),
        ("{where: a, of: table, then: set_aside}", "set_aside needs bad_rows"),
        ("{where: a, of: table, then: wan}", 'checks.c.then: "wan": did you mean "warn"?'),
        ("{fresh: {column: a, within: 10}, of: table}", "checks.c.fresh.within: 10 is not a span of time"),
    ],
)
def test_checks_that_cannot_be(tmp_path: Path, check: str, said: str) -> None:
    assert any(said in each for each in problems(tmp_path, f"{GOOD}checks:\n  c: {check}\n"))


def test_what_nothing_uses_is_a_warning(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD.replace("sources:", "sources:\n  other: {topic: other}"))
    assert found == ["pipeline.yaml:5: sources.other: no sink uses it"]


def test_variables(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3same\n")
    text = GOOD.replace(
        "earliest}", "earliest, secretKey: '${SECRET}', securityToken: '${file:key}', group: '${G:-g}$${x}'}"
    )
    pipeline, document = read(tmp_path, text, DIR="/x")
    source = pipeline.sources["orders"]
    assert isinstance(source, TopicSource)
    assert source.options["secretKey"] == "tops3cret"
    assert source.options["securityToken"] == "s3same"
    assert source.options["group"] == "g${x}"
    assert document.hide("tops3cret or s3same") == "******** or ********"
    said = problems(tmp_path, text, DIR="/x", SECRET="seen")
    assert any("other users see command lines" in each for each in said)
    assert any(
        "--set OTHER: the file has no ${OTHER}" in each
        for each in problems(tmp_path, GOOD, DIR="", OTHER="1")
    )


def test_formats_of_spark_are_no_slips(tmp_path: Path) -> None:
    pipeline, _ = read(tmp_path, GOOD.replace("format: parquet, path", "format: orc, path"))
    assert isinstance(pipeline.sinks["table"], SparkSink)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select x from a, b AS c, `d` e where x in (select y from f)", ["a", "b", "d", "f"]),
        ("SELECT 'from x' FROM a -- from z\n JOIN b ON a.i = b.i LEFT JOIN c USING (i)", ["a", "b", "c"]),
        ("WITH t AS (SELECT 1 FROM a) SELECT * FROM t JOIN (SELECT * FROM b) u", ["a", "b"]),
        ("SELECT * FROM range(5) UNION ALL SELECT * FROM a", ["a"]),
    ],
)
def test_tables_of_a_query(sql: str, names: list[str]) -> None:
    assert tables_in(sql) == names


@pytest.mark.parametrize(
    ("text", "shown"),
    [("once", "once"), ("every 10s", "every 10 s"), ("5m", "every 300 s"), ("continuous",) * 2],
)
def test_triggers(text: str, shown: str) -> None:
    assert Trigger.read(text).text() == shown

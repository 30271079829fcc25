"""HTML page of an audit: verdict, places of problems, checks, and charts of the traffic.

The page is a single file without scripts or external resources. It follows the reader's choice of light or
dark, and explains its terms for readers who receive it by mail and have never seen an audit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

from kerolox.pipeline import charts
from kerolox.pipeline.audit import finding_kinds as kinds
from kerolox.pipeline.audit.finding_kinds import KINDS, FindingKind, TableRow
from kerolox.pipeline.audit.findings import duration
from kerolox.pipeline.page_style import STYLE
from kerolox.sizes import size_text

if TYPE_CHECKING:
    from kerolox.pipeline.audit.audit import Audit

ROWS_SHOWN = 50
STEPS_MAX = 240  # steps of a time axis
_WIDTHS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10_080)

# Characters that are not allowed in a page; topic names and tags may contain any.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

WORDS: Final = (
    ("Commit log", "The files with all messages of a broker, in the order of arrival."),
    ("Topic and queue", "Producers send to a topic. It has several queues; each message is in one of them."),
    ("Consume queue", "The index of a queue: log offsets of its messages. Consumers read by it."),
    ("Queue offset", "The position of a message in its queue: 0, 1, 2 and so on."),
    ("Tag", "A label set by the producer. Consumers can filter by it."),
    ("Unique key", "The message id that the producer's client sets before it sends a message."),
    ("Retry", "A failed message is delivered again later, through the topic %RETRY% plus the group's name."),
    ("Dead letter", "A message that failed too often. It is kept in the topic %DLQ% plus the group's name."),
    ("Half message", "A transactional message before its commit: stored, but not delivered to consumers."),
    ("Store", "The directory of one broker with its commit log, consume queues and tables."),
)  # fmt: skip

Cell = Callable[[TableRow], str]


def page(made: Audit) -> str:
    """Return the HTML page."""
    sections = [
        _verdict(made),
        _where(made),
        _checked(made),
        _rates(made),
        _latency(made),
        _sizes(made),
        _topics(made),
        _retries(made),
        _notes(made),
        _explained(made),
    ]
    body = "\n".join(section for section in sections if section)
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta name="color-scheme" content="light dark"/><title>{escape(made.headline)}</title>'
        f"<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )
    return _NOT_ALLOWED.sub("·", text)


# --- the verdict --------------------------------------------------------------------------------------


def _verdict(made: Audit) -> str:
    mood = "bad" if made.problems else "good"
    what = "stores" if len(made.stores) > 1 else "store"
    scope = [f"{len(made.stores)} {what}", f"{len(made.topics)} topics", size_text(made.bytes_read)]
    if made.first_ms:
        scope.append(f"stored {time_text(made.first_ms)} to {time_text(made.last_ms)} UTC")
    limits = []
    if made.topics_wanted:
        limits.append(f"only topic {', '.join(made.topics_wanted)}")
    if made.since_ms is not None:
        limits.append(f"stored since {time_text(made.since_ms)}")
    if made.until_ms is not None:
        limits.append(f"stored before {time_text(made.until_ms)}")
    by_kind = [(kind, made.findings.count(kind)) for kind in KINDS if made.findings.count(kind)]
    parts = "".join(
        f'<li><a href="#{kind.name}">{count:,} × {escape(kind.title.lower())}</a></li>'
        for kind, count in by_kind
    )
    paths = "".join(f"<li><code>{escape(store.root)}</code></li>" for store in made.stores)
    return (
        f'<header class="{mood}"><p class="kind">Audit of message stores</p><h1>{escape(made.headline)}</h1>'
        + (f"<ul class='where'>{parts}</ul>" if parts else "<p>Every check below passed.</p>")
        + f"<p>{escape(', '.join(scope))}{escape('; ' + ', '.join(limits) if limits else '')}.</p>"
        + f"<ul class='paths'>{paths}</ul>"
        + f"<p class='small'>Made {time_text(made.made_ms)} UTC in {made.seconds:.1f} s.</p></header>"
    )


def _where(made: Audit) -> str:
    parts = [_findings(made, kind) for kind in KINDS if made.findings.count(kind)]
    return f"<section><h2>Where</h2>{''.join(parts)}</section>" if parts else ""


def _findings(made: Audit, kind: FindingKind) -> str:
    rows, count = made.findings.problems(kind), made.findings.count(kind)
    more = ""
    if count > ROWS_SHOWN:
        all_ = f"All are in tables/{kind.name}.parquet."
        more = f"<p class='small'>The first {ROWS_SHOWN} of {count:,}. {all_}</p>"
    return (
        f'<h3 id="{kind.name}">{escape(kind.title)} <span class="count">{count:,}</span></h3>'
        f"<p>{escape(kind.meaning)}</p>{_finding_table(made, rows[:ROWS_SHOWN])}{more}"
        f'<p class="next"><b>Next:</b> {escape(kind.next)}</p>'
    )


def _finding_table(made: Audit, rows: Sequence[TableRow]) -> str:
    heads: list[tuple[str, Cell]] = []
    if len(made.stores) > 1:
        heads.append(("Broker", lambda row: _text(row.get("broker"))))
    if any(row.get("topic") for row in rows):
        heads.append(("Topic", lambda row: _text(row.get("topic"))))
    if any(row.get("queue_id") is not None for row in rows):
        heads.append(("Queue", lambda row: _text(row.get("queue_id"))))
    heads.append(("What", lambda row: _text(row.get("what"))))
    heads.append(("File and byte", _file))
    return _table(heads, rows)


def _file(row: TableRow) -> str:
    if not row.get("file"):
        return ""
    at = row.get("file_offset")
    where = "" if at is None else f" <span class='at'>@ {at}</span>"
    return f"<code>{escape(row['file'])}</code>{where}"


def _checked(made: Audit) -> str:
    found = made.findings
    log, queues = f"{size_text(made.bytes_read)} of log", f"{made.queues:,} queues"
    checks = [
        ("Every record is complete and at its physical offset", log, kinds.DAMAGED_LOG),
        ("Every body matches its checksum", f"{made.bodies:,} bodies", kinds.BODY_CHECKSUM),
        ("Every queue entry has the offset, size and tag of its message", f"{made.entries:,} entries",
         kinds.WRONG_ENTRIES),
        ("Every message is in its queue", queues, kinds.MISSING_ENTRIES),
        ("Every entry in a queue has a message", queues, kinds.LONELY_ENTRIES),
        ("Queue offsets have no gaps", queues, kinds.GAPS),
        ("No queue offset is used twice", queues, kinds.TAKEN),
        ("No message is stored twice, by its unique key", f"{made.messages:,} messages", kinds.DUPLICATES),
        ("No transaction is left open", f"{made.halves:,} half messages", kinds.OPEN_HALVES),
        ("No group gives up many messages", "dead letters", kinds.DEAD_LETTERS),
    ]  # fmt: skip
    rows = []
    for what, amount, kind in checks:
        count = found.count(kind)
        mark = (
            f'<td class="no"><a href="#{kind.name}">{count:,} ✗</a></td>'
            if count
            else '<td class="yes">✓</td>'
        )
        rows.append(f"<tr>{mark}<td>{escape(what)}</td><td class='n'>{escape(amount)}</td></tr>")
    left = []
    if made.under_way:
        left.append(f"{made.under_way:,} messages were not yet in their queue when the audit read them.")
    if made.halves_young:
        left.append(f"{made.halves_young:,} transactions were less than a minute old.")
    if any(store.unsettled for store in made.stores):
        left.append("A store was in use or not stopped cleanly: its newest part was not checked.")
    tail = f"<p class='small'>{escape(' '.join(left))}</p>" if left else ""
    return f"<section><h2>What was checked</h2><table class='checks'>{''.join(rows)}</table>{tail}</section>"


# --- the traffic --------------------------------------------------------------------------------------


def _rates(made: Audit) -> str:
    if not made.minutes:
        return ""
    first, width, count = steps([row["minute"] for row in made.minutes])
    names = [
        row["topic"] for row in made.topics if any(each["topic"] == row["topic"] for each in made.minutes)
    ]
    if any(row["topic"] == "" for row in made.minutes):
        names.append("")
    messages = {name: [0.0] * count for name in names}
    sizes = {name: [0.0] * count for name in names}
    for row in made.minutes:
        at = (row["minute"] - first) // width
        messages[row["topic"]][at] += row["messages"] / width
        sizes[row["topic"]][at] += row["bytes"] / width
    shown = [name or "all others" for name in names]
    per = "minute" if width == 1 else f"minute, mean of {width} minutes"
    start, step = first * 60_000, width * 60_000
    parts = []
    for title, unit, table, text, ticks in (
        ("Messages", "messages a minute, by UTC", messages, charts.short, charts.nice_ticks),
        ("Bytes stored", "bytes a minute, by UTC", sizes, size_text, charts.byte_ticks),
    ):
        series = [charts.Series(label, table[name]) for label, name in zip(shown, names, strict=True)]
        chart = charts.layers(start, step, series, title, text, ticks, unit=unit)
        parts.append(f"<h3>{title} per {per}</h3>{chart}")
    return f"<section><h2>Rates</h2>{charts.legend(shown)}{''.join(parts)}</section>"


def _latency(made: Audit) -> str:
    if not made.latency:
        return ""
    first, width, count = steps([row["minute"] for row in made.latency_minutes])
    middle: list[float | None] = [None] * count
    high: list[float | None] = [None] * count
    for row in made.latency_minutes:
        at = (row["minute"] - first) // width
        middle[at] = max(middle[at] or 0, row["p50"])
        high[at] = max(high[at] or 0, row["p99"])
    names = ("half of the messages were faster (p50)", "99 of 100 were faster (p99)")
    series = [charts.Series(names[0], middle), charts.Series(names[1], high)]
    edges = [row["up_to"] for row in made.latency_steps]
    columns = charts.columns(
        [_edge(edge) for edge in edges],
        [row["messages"] for row in made.latency_steps],
        "Messages by latency",
        unit="messages",
    )
    chart = charts.curves(
        first * 60_000, width * 60_000, series, "Latency", duration, unit="latency, by UTC", powers=True
    )
    rows = sorted(made.latency, key=lambda row: -row["p99"])[:ROWS_SHOWN]
    table = _table(
        [
            ("Topic", lambda row: _text(row["topic"])),
            ("Messages", lambda row: f"{row['messages']:,}"),
            *((title, _ms(name)) for title, name in (
                ("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p99_9"), ("longest", "most")
            )),
        ],
        rows,
    )  # fmt: skip
    return (
        "<section><h2>From born to stored</h2><p>The time between the born time set by the producer and the "
        "store time set by the broker, by their two clocks. Delayed, retried and transactional messages and "
        "resent dead letters are not included: they wait on purpose.</p>"
        "<h3>By minute (the highest in each step)</h3>"
        f"{charts.legend(names, strokes=True)}"
        f"{chart}<h3>Messages by latency</h3>{columns}{table}</section>"
    )


def _ms(name: str) -> Cell:
    return lambda row: duration(row[name])


def _edge(edge: int) -> str:
    return "≤ 0" if edge == 0 else f"≤ {duration(edge)}"


def _sizes(made: Audit) -> str:
    if not made.size_steps:
        return ""
    chart = charts.columns(
        [f"≤ {size_text(row['up_to'])}" for row in made.size_steps],
        [row["messages"] for row in made.size_steps],
        "Messages by size of their body",
        unit="messages",
    )
    return f"<section><h2>Sizes</h2><h3>Messages by size of their body</h3>{chart}</section>"


def _topics(made: Audit) -> str:
    if not made.topics:
        return ""
    spread = {row["topic"]: row for row in made.sizes}
    tags: dict[str, int] = {}
    for row in made.tags:
        tags[row["topic"]] = tags.get(row["topic"], 0) + (1 if row["tag"] else 0)
    heads: list[tuple[str, Cell]] = [
        ("Topic", lambda row: _text(row["topic"])),
        ("Messages", lambda row: f"{row['messages']:,}"),
        ("Stored", lambda row: size_text(row["bytes"])),
        ("Body p50", lambda row: size_text(spread[row["topic"]]["p50"])),
        ("Body p99", lambda row: size_text(spread[row["topic"]]["p99"])),
        ("Largest", lambda row: size_text(spread[row["topic"]]["most"])),
        ("Tags", lambda row: f"{tags.get(row['topic'], 0):,}"),
        (
            "Busiest minute",
            lambda row: f"{row['peak_messages']:,} at {time_text(row['peak_minute'] * 60_000)[:16]}",
        ),
    ]
    with_tag = [row for row in made.tags if row["tag"]][:ROWS_SHOWN]
    tag_table = _table(
        [
            ("Topic", lambda row: _text(row["topic"])),
            ("Tag", lambda row: _text(row["tag"])),
            ("Messages", lambda row: f"{row['messages']:,}"),
            ("Stored", lambda row: size_text(row["bytes"])),
            ("Busiest minute", heads[-1][1]),
        ],
        with_tag,
    )
    more = (
        f"<p class='small'>The first {ROWS_SHOWN} of {len(made.topics):,}.</p>"
        if len(made.topics) > ROWS_SHOWN
        else ""
    )
    tagged = f"<h3>Tags</h3>{tag_table}" if with_tag else ""
    return f"<section><h2>Topics</h2>{_table(heads, made.topics[:ROWS_SHOWN])}{more}{tagged}</section>"


def _retries(made: Audit) -> str:
    parts = []
    for kind in (kinds.DEAD_LETTERS, kinds.RETRIES):
        rows = made.findings.rows[kind.name]
        if not rows:
            continue
        rows = sorted(rows, key=lambda row: -row["messages"])
        labels = [f"{row['consumer_group']} ← {row['topic']}" for row in rows[:20]]
        chart = charts.bars(labels, [row["messages"] for row in rows[:20]], kind.title)
        heads: list[tuple[str, Cell]] = [
            ("Consumer group", lambda row: _text(row["consumer_group"])),
            ("Topic", lambda row: _text(row["topic"])),
            ("Messages", lambda row: f"{row['messages']:,}"),
            ("Share", lambda row: "" if row["share"] is None else f"{row['share']:.2%}"),
            ("Most tries", lambda row: _text(row["reconsume_times_max"])),
            ("Most frequent tag", lambda row: _text(row["tag"])),
            (
                "Busiest minute",
                lambda row: f"{row['peak_messages']:,} at {row['peak_minute']:%Y-%m-%d %H:%M}",
            ),
        ]
        parts.append(
            f"<h3>{escape(kind.title)}</h3><p>{escape(kind.meaning)}</p>{chart}"
            f"{_table(heads, rows[:ROWS_SHOWN])}"
        )
    return f"<section><h2>Retries and dead letters</h2>{''.join(parts)}</section>" if parts else ""


def _notes(made: Audit) -> str:
    rows = [
        row
        for kind in KINDS
        if kind not in (kinds.RETRIES, kinds.DEAD_LETTERS)
        for row in made.findings.notes(kind)
    ]
    if not rows:
        return ""
    table = _finding_table(made, rows[:ROWS_SHOWN])
    return f"<section><h2>Worth knowing</h2><p>Facts that are not problems.</p>{table}</section>"


def _explained(made: Audit) -> str:
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS)
    names = ", ".join(f"{kind.name}" for kind in KINDS)
    return (
        f"<section><h2>Words</h2><dl>{words}</dl><h2>Tables</h2><p>Beside this page, in "
        f"<code>tables/</code>, every finding is a row of a Parquet file by its kind ({escape(names)}); "
        "<code>volume.parquet</code> has messages and bytes by broker, topic, tag and minute, and "
        "<code>latency.parquet</code>, <code>latency_by_minute.parquet</code> and "
        "<code>sizes.parquet</code> the percentiles. Percentiles are exact, by nearest rank. Times are "
        "UTC.</p></section>"
    )


# --- cells --------------------------------------------------------------------------------------------


def steps(minutes: Iterable[int]) -> tuple[int, int, int]:
    """Cut a time axis into steps; return the first minute, minutes per step, and number of steps."""
    low, high = min(minutes := list(minutes)), max(minutes)
    span = high - low + 1
    width = next((each for each in _WIDTHS_MIN if span <= each * STEPS_MAX), -(-span // STEPS_MAX))
    first = low // width * width
    return first, width, (high - first) // width + 1


def _table(heads: Sequence[tuple[str, Cell]], rows: Sequence[TableRow]) -> str:
    top = "".join(f"<th>{escape(title)}</th>" for title, _ in heads)
    cells = "".join("<tr>" + "".join(f"<td>{cell(row)}</td>" for _, cell in heads) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{cells}</tbody></table></div>"


def _text(value: object) -> str:
    return "" if value is None else escape(str(value))


def time_text(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"

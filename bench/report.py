"""docs/PERFORMANCE.md, its picture, and docs/results/README.md, from the results in docs/results."""

from __future__ import annotations

from bench import summary
from bench.results import FOLDER, ROOT, Result, load

PAGE = ROOT / "docs" / "PERFORMANCE.md"
ORDER = (
    "broker",
    "access",
    "replication",
    "failover",
    "client",
    "spark",
    "rebuild",
    "later",
    "nameserver",
    "store",
    "codec",
)  # others follow by name

HEAD = """\
# Performance

For those who choose a broker or size a machine: kerolox and Apache RocketMQ {version} on one machine, with
the same load in turns. `make bench` measures your machine; figures of two machines say nothing about two
programs.

![Times better than Apache RocketMQ, for each row of the table](images/performance.svg)

{table}
Measured from {first} to {last} on {cores} cores of virtual machines ({cpus}), with {python}.

Beside Spark's connector for Kafka, rows of 128 B per CPU second of Spark: {kafka}.
Where that connector costs less: [SPARK.md](SPARK.md#where-kafkas-connector-costs-less).

All figures, with versions, flags and settings: [results](results/README.md).

## Where Apache is faster

Ratios below {behind:.2f} in all comparisons with Apache's programs. A figure is the 20th percentile of a few
windows; on a shared machine it varies by a tenth or more.

| | ratio |
|---|--:|
{ahead}

## How it is measured

CPU time of the server process, all threads, is the main measure, because the time on the wall includes
whatever else the machine does. Server and load generator are pinned to different cores. What is compared
takes turns within the same minute. A ratio above 1 is in favour of kerolox.
"""

FULL = """\
# Results of the benchmarks

The tables of every benchmark, with versions, flags and settings, written by `make bench`. The figures of
every single round are in the JSON files beside this page. [PERFORMANCE.md](../PERFORMANCE.md) has the results
in short. A ratio above 1 is in favour of kerolox.
"""


def section(result: Result) -> str:
    lines = [f"## {result.title}", "", *result.about, ""]
    lines += [f"- {name}: {value}" for name, value in (result.flags | result.machine).items()]
    return "\n".join(lines) + "\n\n" + "\n".join(table.markdown() for table in result.tables)


def results() -> list[Result]:
    found = {result.benchmark: result for result in map(load, sorted(FOLDER.glob("bench-*.json")))}
    first = [found.pop(name) for name in ORDER if name in found]
    return first + list(found.values())


def page() -> str:
    """Return the text of docs/PERFORMANCE.md."""
    found = {result.benchmark: result for result in results()}
    used = [found[name] for name in dict.fromkeys(line.benchmark for line in summary.LINES)]
    days = sorted(result.machine["date"][:10] for result in used)
    return HEAD.format(
        version=used[0].flags["Apache RocketMQ"],
        table=summary.table(found),
        first=days[0],
        last=days[-1],
        cpus="; ".join(sorted({result.machine["cpu"] for result in used})),
        cores=used[0].machine["cores"].split()[0],
        python=used[0].machine["python"],
        kafka=summary.beside_kafka(found),
        behind=summary.BEHIND,
        ahead="\n".join(f"| {title}: {load} | {times} |" for title, load, times in summary.behind(found)),
    )


def full() -> str:
    """Return the text of docs/results/README.md."""
    return "\n".join([FULL, *map(section, results())])


def picture() -> str:
    """Return the picture of docs/PERFORMANCE.md."""
    return summary.picture({result.benchmark: result for result in results()})


FILES = {PAGE: page, FOLDER / "README.md": full, ROOT / "docs" / "images" / "performance.svg": picture}


def write() -> None:
    for path, text in FILES.items():
        path.write_text(text(), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    write()

"""What the Spark benchmark found, as tables."""

from __future__ import annotations

from dataclasses import dataclass

from bench.broker_peers import OURS, QUEUES
from bench.results import Table, number, ratio
from bench.rounds import typical_cost, typical_rate
from bench.spark_sides import KAFKA, Data

FEW = Data(128, QUEUES)  # what a query costs before it does anything
BATCH, STREAM, SINK, STORE, ARCHIVE = (
    "live batch read", "live streaming read", "sink", "store read", "archive to Parquet",
)  # fmt: skip
SMALL = f"{OURS}, pulls of 32 (default)"
LARGE = f"{OURS}, large pulls"


@dataclass
class Run:
    """What one round saw."""

    rows: int
    body_bytes: int
    wall_s: float
    spark_cpu_s: float
    broker_cpu_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.spark_cpu_s * 1e6 / self.rows

    @property
    def broker_cpu_us(self) -> float:
        return self.broker_cpu_s * 1e6 / self.rows


Found = dict[str, dict[str, list[Run]]]  # by load, way


@dataclass(frozen=True)
class Figures:
    """Of a way's rounds, the better ones."""

    rate: float
    cpu_us: float
    all_cpu_us: float
    broker_cpu_us: float

    @classmethod
    def of(cls, runs: list[Run]) -> Figures:
        return cls(
            typical_rate([run.rate for run in runs]),
            typical_cost([run.cpu_us for run in runs]),
            typical_cost([run.cpu_us + run.broker_cpu_us for run in runs]),
            typical_cost([run.broker_cpu_us for run in runs]),
        )


def beside(found: Found, kind: str) -> Figures | None:
    """What Kafka's side did of the same; the store is compared with its live read, as it has no other."""
    for way, runs in found.get(BATCH if kind == STORE else kind, {}).items():
        if way.startswith(KAFKA) and runs:
            return Figures.of(runs)
    return None


def table(data: Data, found: Found) -> Table:
    rows = []
    for kind, ways in found.items():
        other = beside(found, kind)
        for way, runs in ways.items():
            if not runs:
                continue
            mine = Figures.of(runs)
            ratios = ["", "", ""]
            if other is not None and way.startswith(OURS):
                ratios = [
                    ratio(mine.rate / other.rate),
                    ratio(other.cpu_us / mine.cpu_us),
                    ratio(other.all_cpu_us / mine.all_cpu_us),
                ]
            rows.append([
                kind, way, number(mine.rate), ratios[0], number(mine.rate * data.size / 1e6),
                number(1e6 / mine.cpu_us), ratios[1], number(mine.cpu_us),
                number(mine.broker_cpu_us), ratios[2],
            ])  # fmt: skip
    return Table(
        data.title,
        [
            "load",
            "way",
            "rows/s",
            "to Kafka's",
            "MB/s",
            "rows per CPU second of Spark",
            "to Kafka's",
            "CPU µs a row, Spark",
            "CPU µs a row, broker",
            "to Kafka's, Spark and broker together",
        ],
        rows,
        [
            "Kafka has no table of its files: the store read is compared with its connector's live batch "
            "read. The Parquet scan is what Spark's own format does with the same rows, written by Spark."
        ],
    )


def start_table(found: Found) -> Table:
    """What a query costs whose rows cost nothing."""
    rows = [
        [
            kind,
            way,
            number(typical_cost([run.wall_s for run in runs])),
            number(typical_cost([run.spark_cpu_s for run in runs])),
        ]
        for kind, ways in found.items()
        for way, runs in ways.items()
        if runs
    ]
    return Table(
        f"A query of {FEW.rows} rows",
        ["load", "way", "seconds", "CPU seconds of Spark"],
        rows,
        [
            "Planning, tasks and, for a stream, its start and its checkpoint. It is in the figures above as "
            "well. Spark starts Python processes for our formats; they live on for the next query, but for "
            "that of a stream."
        ],
    )


def aims(found: dict[Data, Found]) -> Table:
    """What was wanted of this part, and what it came to."""
    rows = []
    for data, kinds in found.items():
        if data is FEW:
            continue
        size = data.size_name
        for kind, way in ((BATCH, LARGE), (BATCH, SMALL), (STREAM, LARGE), (SINK, OURS)):
            other, runs = beside(kinds, kind), kinds.get(kind, {}).get(way)
            if other is not None and runs:
                value = other.cpu_us / Figures.of(runs).cpu_us
                aim = f"{kind}, {size}, {way}: rows per CPU second to Kafka's"
                rows.append([aim, ratio(1.0), ratio(value), _met(value >= 1.0)])
        runs = kinds.get(STORE, {}).get(f"{OURS}, properties as string")
        if runs:
            rate = Figures.of(runs).rate
            aim = f"{STORE}, {size}, properties as string: rows/s"
            rows.append([aim, number(1e6), number(rate), _met(rate >= 1e6)])
    return Table("Aims", ["aim", "at least", "found", "met"], rows)


def _met(yes: bool) -> str:
    return "yes" if yes else "no"

"""What the Spark benchmark found, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.broker_peers import OURS, QUEUES
from bench.results import Table, number, ratio
from bench.rounds import typical_cost, typical_rate
from bench.spark_sides import KAFKA, Data

FEW = Data(128, QUEUES)  # what a query costs before it does anything
BATCH, STREAM, SINK, STORE, ARCHIVE = (
    "live batch read", "live streaming read", "sink", "store read", "archive to Parquet",
)  # fmt: skip
KAFKAS_COLUMNS = f"{OURS}, Kafka's columns"
AS_STRING = f"{OURS}, properties as string"
LIMIT = "limit: a finished batch of the same shape, handed over again and again"


@dataclass
class Run:
    """What one round saw."""

    rows: int
    body_bytes: int
    wall_s: float
    spark_cpu_s: float
    broker_cpu_s: float
    parts: dict[str, float] = field(default_factory=dict)  # of Spark's, by process

    @property
    def rate(self) -> float:
        return self.rows / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.spark_cpu_s * 1e6 / self.rows

    @property
    def broker_cpu_us(self) -> float:
        return self.broker_cpu_s * 1e6 / self.rows


JVM, WORKERS, OFFSETS, PLANNERS = "JVM", "workers", "offsets", "planning"


def role_of(command_line: str) -> str:
    """Which part of Spark a process is. A JVM's command line says "python" as well: its jars lie there."""
    if "java" in command_line.split(" ", 1)[0]:
        return JVM
    if "daemon pyspark.worker" in command_line:
        return WORKERS
    if "streaming_source_runner" in command_line:
        return OFFSETS
    return PLANNERS


Found = dict[str, dict[str, list[Run]]]  # by load, way


@dataclass(frozen=True)
class Figures:
    """Of a way's rounds, the better ones."""

    rate: float
    cpu_us: float
    all_cpu_us: float
    broker_cpu_us: float
    parts: str  # of Spark's, µs a row by process

    @classmethod
    def of(cls, runs: list[Run]) -> Figures:
        return cls(
            typical_rate([run.rate for run in runs]),
            typical_cost([run.cpu_us for run in runs]),
            typical_cost([run.cpu_us + run.broker_cpu_us for run in runs]),
            typical_cost([run.broker_cpu_us for run in runs]),
            _parts(min(runs, key=lambda run: run.spark_cpu_s)),
        )


def _parts(run: Run) -> str:
    told = {role: run.parts.get(role, 0.0) * 1e6 / run.rows for role in (JVM, WORKERS, OFFSETS, PLANNERS)}
    return ", ".join(f"{role} {number(used)}" for role, used in told.items() if used * run.rows >= 10_000)


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
                number(mine.broker_cpu_us), ratios[2], mine.parts,
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
            "CPU µs a row by process of Spark",
        ],
        rows,
        [
            "Kafka has no table of its files: the store read is compared with its connector's live batch "
            "read. The limit is what Spark's bridge from Python costs by itself, with all columns and "
            "properties as string: no source in Python can cost less."
        ],
    )


def slope_table(small: Data, large: Data, found: dict[Data, Found]) -> Table:
    """What a row costs, and what a query costs before its first row: a line through two sizes."""
    rows = []
    for kind, ways in found.get(large, {}).items():
        other = next((_line(small, large, found, kind, way) for way in ways if way.startswith(KAFKA)), None)
        for way in ways:
            line = _line(small, large, found, kind, way)
            if line is None:
                continue
            ratios = ["", ""]
            if other is not None and way.startswith(OURS):
                ratios = [ratio(other.row_us / line.row_us), ratio(other.all_row_us / line.all_row_us)]
            rows.append([
                kind, way, number(line.row_us), ratios[0], number(line.broker_row_us), ratios[1],
                number(line.fixed_s),
            ])  # fmt: skip
    return Table(
        f"A row more: bodies of {large.size_name}, from {small.rows:,} to {large.rows:,} rows",
        [
            "load",
            "way",
            "CPU µs a row, Spark",
            "rows per CPU second to Kafka's",
            "CPU µs a row, broker",
            "to Kafka's, Spark and broker together",
            "CPU seconds of Spark before the first row",
        ],
        rows,
        [
            "A line through both sizes. The last column is where it meets no rows at all: it is small "
            "against the noise of the large query, and A query of 8 rows measures it directly. Sinks write a "
            "quarter of the rows."
        ],
    )


@dataclass(frozen=True)
class Line:
    """A cost per row, and one per query."""

    row_us: float
    broker_row_us: float
    fixed_s: float

    @property
    def all_row_us(self) -> float:
        return self.row_us + self.broker_row_us


def _line(small: Data, large: Data, found: dict[Data, Found], kind: str, way: str) -> Line | None:
    few, many = (found.get(data, {}).get(kind, {}).get(way) for data in (small, large))
    if not few or not many:
        return None
    more = many[0].rows - few[0].rows
    cheap, dear = (typical_cost([run.spark_cpu_s for run in runs]) for runs in (few, many))
    row_s = (dear - cheap) / more
    brokers = [typical_cost([run.broker_cpu_s for run in runs]) for runs in (few, many)]
    broker_row_s = max(0.0, brokers[1] - brokers[0]) / more
    return Line(row_s * 1e6, broker_row_s * 1e6, cheap - row_s * few[0].rows)


def start_table(found: Found) -> Table:
    """What a query costs whose rows cost nothing."""
    rows = []
    for kind, ways in found.items():
        costs = {way: typical_cost([run.spark_cpu_s for run in runs]) for way, runs in ways.items() if runs}
        kafka = next((cost for way, cost in costs.items() if way.startswith(KAFKA)), None)
        for way, cost in costs.items():
            beside_it = ratio(kafka / cost) if kafka and way.startswith(OURS) else ""
            rows.append([
                kind, way, number(typical_cost([run.wall_s for run in ways[way]])), number(cost), beside_it,
                number(typical_cost([run.broker_cpu_s for run in ways[way]])),
            ])  # fmt: skip
    return Table(
        f"A query of {FEW.rows} rows",
        [
            "load",
            "way",
            "seconds",
            "CPU seconds of Spark",
            "queries per CPU second to Kafka's",
            "of the broker",
        ],
        rows,
        [
            "Planning, tasks and, for a stream, its start and its checkpoint. It is in the figures above as "
            "well. Spark starts Python processes for our formats; they live on for the next query, but for "
            "that of a stream."
        ],
    )


def aims(found: dict[Data, Found], larges: list[Data]) -> Table:
    """What was wanted of this part, and what it came to."""
    rows = []
    for data in larges:
        kinds = found.get(data, {})
        size = data.size_name
        for kind, at_least in ((BATCH, 1.0), (STREAM, 1.0), (SINK, 1.0), (ARCHIVE, 1.5)):
            other, runs = beside(kinds, kind), kinds.get(kind, {}).get(OURS)
            if other is not None and runs:
                mine = Figures.of(runs)
                for what, value in (
                    ("Spark", other.cpu_us / mine.cpu_us),
                    ("Spark and broker", other.all_cpu_us / mine.all_cpu_us),
                ):
                    aim = f"{kind}, {size}: rows per CPU second of {what} to Kafka's"
                    rows.append([aim, ratio(at_least), ratio(value), _met(value >= at_least)])
        runs = kinds.get(STORE, {}).get(AS_STRING)
        if runs and data.size == 128:
            rate = Figures.of(runs).rate
            rows.append([
                f"{STORE}, {size}, properties as string: rows/s", number(1e6), number(rate), _met(rate >= 1e6)
            ])  # fmt: skip
        limits = kinds.get(STORE, {}).get(LIMIT)
        if runs and limits:
            share = Figures.of(limits).cpu_us / Figures.of(runs).cpu_us
            rows.append([
                f"{STORE}, {size}, properties as string: the bridge's part of its CPU", "", ratio(share), ""
            ])  # fmt: skip
    return Table(
        "Aims",
        ["aim", "at least", "found", "met"],
        rows,
        [
            "Profiles of the missed aims, and their limits: "
            "[SPARK.md](../SPARK.md#where-kafkas-connector-costs-less)."
        ],
    )


def _met(yes: bool) -> str:
    return "yes" if yes else "no"

"""Metrics in Prometheus's text format: samples are collected first and formatted on request."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from kerolox.errors import OptionError
from kerolox.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"

Labels = Mapping[str, object]


class MetricsExporter(enum.Enum):
    DISABLE = "DISABLE"
    PROM = "PROM"


class MetricText:
    """Collects samples of metrics, one type per metric, and formats them on request."""

    def __init__(self, common: Labels) -> None:
        self._common = _labels(common)
        # Finished lines, or the parts of a line: name of the series, labels, and value or values.
        self._parts: list[str | tuple[str, Labels, float | Histogram]] = []

    def metric(
        self, name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float | Histogram]]
    ) -> None:
        self._parts += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        self._parts += [(name, labels, value) for labels, value in samples]

    def histogram(self, name: str, about: str, found: Iterable[tuple[Labels, Histogram]]) -> None:
        """Add histograms. They are copied, because a thread formats them while counting continues."""
        self.metric(name, "histogram", about, [(labels, one.copy()) for labels, one in found])

    def gauge(self, name: str, about: str, value: float) -> None:
        self.metric(name, "gauge", about, [({}, value)])

    def text(self) -> str:
        lines: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                lines.append(part)
                continue
            name, labels, value = part
            if isinstance(value, Histogram):
                for end, own, number in value.parts():
                    lines.append(self._line(name + end, {**labels, **own}, number))
            else:
                lines.append(self._line(name, labels, value))
        return "\n".join(lines) + "\n"

    def _line(self, name: str, labels: Labels, value: float) -> str:
        own = _labels(labels)
        both = f"{self._common},{own}" if own and self._common else own or self._common
        return f"{name}{{{both}}} {_number(value)}"


def own_labels(text: str) -> dict[str, str]:
    """Parse ``instance:a,zone:b`` to labels that are added to all metrics. Raises OptionError."""
    labels: dict[str, str] = {}
    for item in text.split(","):
        name, separator, value = item.strip().partition(":")
        if not item.strip():
            continue
        if not separator or not name.isascii() or not name.isidentifier():
            raise OptionError(
                "metricsLabel", text, "name:value pairs separated by commas; names of letters and digits"
            )
        labels[name] = value
    return labels


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_word(value)}"' for name, value in labels.items())


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_ESCAPED)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"

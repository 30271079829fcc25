"""What every format of bodies offers: columns of a schema out of bodies, and bodies out of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kerolox.errors import KeroloxError
from kerolox.spark.bodies.shapes import DoesNotFit, Shape, columns_of, objects_of, reason, shown, told

Reasons = dict[int, str]  # by row: why it does not fit

_EXTRA: Final = "pip install 'kerolox[schemas]' (or fastavro, protobuf and grpcio-tools)"


@dataclass(frozen=True)
class SchemaText:
    """A schema as it is written, and those it refers to by their names, each before it is needed."""

    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaError(KeroloxError):
    """A declared schema that cannot be read, or that Spark has no columns for."""


class ExtraMissing(KeroloxError):
    """A package that this format needs is not there."""

    def __init__(self, package: str, what: str) -> None:
        super().__init__(
            f"{what} need the package {package}, which this Python does not have. Install it on "
            "the driver and "
            f"on every executor: {_EXTRA}"
        )


@dataclass(frozen=True)
class Decoded:
    """The columns of some bodies. A row with a reason is null in all of them."""

    columns: list[pa.Array]
    reasons: Reasons


class BodyFormat(ABC):
    """One declared schema in one format."""

    shape: Shape  # a struct: its fields are the columns

    @property
    def schema(self) -> pa.Schema:
        return self.shape.schema()

    @abstractmethod
    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        """The object of every body, in their order; of one that does not fit something, and its reason."""

    def written(
        self, bodies: Sequence[bytes | None], writer: SchemaText, message: tuple[int, ...] = ()
    ) -> tuple[list[Any], Reasons]:
        """The same of bodies that were written by another version of the schema, which a registry has.

        ``message``: which message of its file it is, by its place. Raises SchemaError when none of them can
        be read by the declared schema.
        """
        return self.objects(bodies)

    @abstractmethod
    def encoded(self, objects: list[Any]) -> list[bytes]:
        """The bodies of objects. Raises DoesNotFit, or an error of the format, for the first that cannot be
        written."""

    def decode(self, bodies: pa.Array, names: Sequence[str] | None = None) -> Decoded:
        """The columns of a binary array, all or those named."""
        return self.columns(*self.objects(bodies.to_pylist()), names)

    def columns(self, objects: list[Any], reasons: Reasons, names: Sequence[str] | None = None) -> Decoded:
        """The columns of objects, of which some have reasons already."""
        kept = [place for place in range(len(objects)) if place not in reasons]
        fit = objects if not reasons else [objects[place] for place in kept]
        columns, unfit = columns_of(self.shape, fit, names)
        if unfit:
            reasons = reasons | {kept[place]: text for place, text in unfit.items()}
            fit = [each for place, each in enumerate(fit) if place not in unfit]
            columns, _ = columns_of(self.shape, fit, names)
        if reasons:
            places = np.zeros(len(objects), np.int64)
            bad = np.zeros(len(objects), bool)
            bad[list(reasons)] = True
            places[~bad] = np.arange(len(fit))
            chosen = pa.array(places, mask=bad)
            columns = [column.take(chosen) for column in columns]
        return Decoded(columns, reasons)

    def encode(self, table: pa.StructArray) -> tuple[pa.Array, Reasons]:
        """The bodies of rows, given as a struct of the schema's type; null, with a reason, of rows that do
        not fit."""
        try:
            return pa.array(self.encoded(objects_of(self.shape, table)), pa.binary()), {}
        except (pa.ArrowException, *self.errors):
            pass
        bodies: list[bytes | None] = []
        reasons: Reasons = {}
        for place in range(len(table)):
            try:
                bodies += self.encoded(objects_of(self.shape, table.slice(place, 1)))
            except (pa.ArrowException, *self.errors) as error:
                bodies.append(None)
                reasons[place] = reason(f"{self.told(error)}; found {shown(table[place].as_py())}")
        return pa.array(bodies, pa.binary()), reasons

    # What a value that cannot be written raises.
    errors: tuple[type[Exception], ...] = (DoesNotFit, ValueError, TypeError, OverflowError)

    def told(self, error: Exception) -> str:
        return told(error)


NO_BODY: Final = "there is no body"

"""Interface of body formats: conversion of bodies to columns of a schema, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kerolox.errors import KeroloxError
from kerolox.spark.bodies.shapes import DoesNotFit, Shape, columns_of, objects_of, reason, shown, told

Reasons = dict[int, str]  # by row: the reason why it does not fit

_EXTRA: Final = "pip install 'kerolox[schemas]' (or fastavro, protobuf and grpcio-tools)"


@dataclass(frozen=True)
class SchemaText:
    """Text of a schema, and the schemas it refers to, by name and in order of dependency."""

    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaError(KeroloxError):
    """A declared schema that is invalid or has no equivalent columns in Spark."""


class ExtraMissing(KeroloxError):
    """A package that this format needs is not installed."""

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

    shape: Shape  # a struct whose fields are the columns

    @property
    def schema(self) -> pa.Schema:
        return self.shape.schema()

    @abstractmethod
    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        """Return an object for every body, in order, and the reasons of bodies that do not fit."""

    def written(
        self, bodies: Sequence[bytes | None], writer: SchemaText, message: tuple[int, ...] = ()
    ) -> tuple[list[Any], Reasons]:
        """Return objects of bodies written by another version of the schema from a registry.

        ``message``: index path of the message in its file. Raises SchemaError if the declared schema cannot
        read this version.
        """
        return self.objects(bodies)

    @abstractmethod
    def encoded(self, objects: list[Any]) -> list[bytes]:
        """Return the bodies of objects. Raises an error for the first object that cannot be written."""

    def decode(self, bodies: pa.Array, names: Sequence[str] | None = None) -> Decoded:
        """Return the columns of a binary array, all or those named."""
        return self.columns(*self.objects(bodies.to_pylist()), names)

    def columns(self, objects: list[Any], reasons: Reasons, names: Sequence[str] | None = None) -> Decoded:
        """Return the columns of objects, some of which already have reasons."""
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
        """Return the bodies of rows, given as a struct array. Rows that do not fit give null and a reason."""
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

    # Errors that a value raises if it cannot be written.
    errors: tuple[type[Exception], ...] = (DoesNotFit, ValueError, TypeError, OverflowError)

    def told(self, error: Exception) -> str:
        return told(error)


NO_BODY: Final = "there is no body"

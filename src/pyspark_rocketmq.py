"""Spark finds this module by its name and makes ``format("rocketmq")`` known."""

from __future__ import annotations

try:
    from kerolox.spark.datasource import RocketMQ as DefaultSource
except ImportError:  # an error here would hide the formats of all other packages too
    pass

__all__ = ["DefaultSource"]

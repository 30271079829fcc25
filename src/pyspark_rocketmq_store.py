"""Spark finds the format ``rocketmq-store`` by the name of this module."""

from kerolox.spark.store.table import RocketMQStore as DefaultSource

__all__ = ["DefaultSource"]

"""Topics and store files as Spark tables. Needs the extra: ``pip install kerolox[spark]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from kerolox.spark.patient_start import start as start
from kerolox.spark.source.metrics import fill_metrics as fill_metrics


def register(spark: SparkSession, **options: str) -> None:
    """Register the formats ``rocketmq`` and ``rocketmq-store`` in a session.

    Spark finds both formats automatically if ``kerolox`` is installed. Registering adds two things:
    streaming queries commit their group's offsets at the broker right after each batch, not one batch later;
    and settings of the session under ``spark.kerolox.`` (name server, keys, TLS) apply to every query.
    ``options``: the same settings, which override those of the session.
    """
    from kerolox.spark.configured import configured, settings_of, warn_of_shown_secrets
    from kerolox.spark.datasource import RocketMQ
    from kerolox.spark.source.progress import report_progress
    from kerolox.spark.store.table import RocketMQStore

    warn_of_shown_secrets(spark)
    set_here = settings_of(spark) | options
    spark.dataSource.register(configured(RocketMQ, set_here))
    spark.dataSource.register(RocketMQStore)
    report_progress(spark, set_here)

"""Session settings for all queries, such as ``spark.kerolox.nameserver``.

Python data sources cannot read Spark's settings where they run. So the settings at the time of registration
become part of the registered class, which is pickled to the workers.

Spark hides settings with the names of secrets only if they were set at the start of the session: later ones
(``spark.conf.set``) are passed to every job and written to the event log in plain text (seen with 4.3). So
secrets that were set later are rejected before the next job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kerolox.client.environment import HIDDEN
from kerolox.errors import OptionError
from kerolox.spark.option_table import CLUSTER, OptionTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

log = logging.getLogger(__name__)

SETTINGS: Final = "spark.kerolox."
REDACTION: Final = "spark.redaction.regex"  # pattern of names that Spark hides; its default includes secrets
TABLE: Final = OptionTable(f"settings under {SETTINGS}", *CLUSTER)


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return kerolox's settings of a session, by option name."""
    found: dict[str, str] = {
        name.removeprefix(SETTINGS): value
        for name, value in spark.conf.getAll.items()
        if name.startswith(SETTINGS)
    }
    TABLE.parse(found)  # raises errors here, where the settings were made
    # Over Spark Connect, whose sessions have no context, Spark does not return secrets.
    for name in filter(TABLE.is_secret, found):
        if not spark.sparkContext.getConf().contains(SETTINGS + name):
            raise OptionError(
                SETTINGS + name,
                HIDDEN,
                "a setting from the start of the session (spark-submit --conf, spark-defaults.conf): Spark "
                "shows later ones. Unset it, and use an option, a file or the environment",
            )
    return found


def warn_of_shown_secrets(spark: SparkSession) -> None:
    """Warn of secret options that Spark would show, because the session changed its redaction pattern."""
    pattern = spark.conf.get(REDACTION, None)
    if pattern is None:
        return
    try:
        hidden = re.compile(pattern)
    except re.error:
        return  # only valid in Java
    shown = [option.key for option in CLUSTER if option.secret and not hidden.search(option.key)]
    if shown:
        log.warning(
            "secrets_shown options=%s setting=%s next='pass secrets by a file or the environment, or extend "
            "the setting to match them'",
            ",".join(shown), REDACTION,
        )  # fmt: skip


def configured(source: type[DataSource], settings: Mapping[str, str]) -> type[DataSource]:
    """Return the source class with default options."""
    if not settings:
        return source
    TABLE.parse(settings)

    # A local class, so it is pickled by value, including the settings.
    class Configured(source):  # type: ignore[misc, valid-type]
        def __init__(self, options: Any) -> None:
            super().__init__(TABLE.completed(options, settings))

    return Configured

"""Settings of a session that every query of it goes by, such as ``spark.kerolox.nameserver``.

Python data sources cannot read settings of Spark where they run. So what is set when the formats are
registered is made part of the class that is registered, and travels with it.

Spark hides settings with the names of secrets only if the session began with them: those that were set later
(``spark.conf.set``) are told to every job, and stand in the log of events as they are (seen with 4.3). So a
secret that was set later is refused, before the next job could tell it.
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
REDACTION: Final = "spark.redaction.regex"  # what Spark hides, by name; by default the names of secrets too
TABLE: Final = OptionTable(f"settings under {SETTINGS}", *CLUSTER)


def settings_of(spark: SparkSession) -> dict[str, str]:
    """The settings of a session that are ours, by the names of options."""
    found: dict[str, str] = {
        name.removeprefix(SETTINGS): value
        for name, value in spark.conf.getAll.items()
        if name.startswith(SETTINGS)
    }
    TABLE.parse(found)  # complains here, where it was set
    # Over Spark Connect, whose sessions have no context, secrets are not among them: Spark keeps them back.
    for name in filter(TABLE.is_secret, found):
        if not spark.sparkContext.getConf().contains(SETTINGS + name):
            raise OptionError(
                SETTINGS + name,
                HIDDEN,
                "a setting that the session begins with (spark-submit --conf, spark-defaults.conf): Spark "
                "shows those that are set later. Unset it, and use an option, a file or the environment",
            )
    return found


def warn_of_shown_secrets(spark: SparkSession) -> None:
    """Spark shows the options of queries, but for those whose names match a setting of it. Whoever has set it
    otherwise is told which of ours are shown."""
    pattern = spark.conf.get(REDACTION, None)
    if pattern is None:
        return
    try:
        hidden = re.compile(pattern)
    except re.error:
        return  # one that Java alone understands
    shown = [option.key for option in CLUSTER if option.secret and not hidden.search(option.key)]
    if shown:
        log.warning(
            "secrets_shown options=%s setting=%s next='give secrets by a file or the environment, or let the "
            "setting match them too'",
            ",".join(shown), REDACTION,
        )  # fmt: skip


def configured(source: type[DataSource], settings: Mapping[str, str]) -> type[DataSource]:
    """The source, with options that need not be given to it."""
    if not settings:
        return source
    TABLE.parse(settings)

    # Not a class of a module: it is sent as it is, with the settings in it.
    class Configured(source):  # type: ignore[misc, valid-type]
        def __init__(self, options: Any) -> None:
            super().__init__(TABLE.completed(options, settings))

    return Configured

"""Tables of statistics, which are only displayed."""

from __future__ import annotations

import logging

from kerolox.store.tables.table import Table, TableBroken

logger = logging.getLogger(__name__)


class FigureTable(Table):
    """Table of statistics. An unreadable one does not prevent a start: its counts begin anew."""

    def load(self) -> bool:
        try:
            return super().load()
        except TableBroken as error:
            logger.warning("figures_lost error=%r next='no action needed: counting begins at 0'", str(error))
            for path in (self.path, self.path + ".bak"):
                if self._files.exists(path):
                    self._files.rename(path, path + ".broken")
            return False

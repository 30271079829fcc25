"""Tables of mere figures: what they say is shown to people, and nothing depends on it."""

from __future__ import annotations

import logging

from kerolox.store.tables.table import Table, TableBroken

logger = logging.getLogger(__name__)


class FigureTable(Table):
    """As any table; but one that does not read is no reason not to start: its figures begin anew."""

    def load(self) -> bool:
        try:
            return super().load()
        except TableBroken as error:
            logger.warning("figures_lost error=%r next='they are counted from 0 on'", str(error))
            for path in (self.path, self.path + ".bak"):
                if self._files.exists(path):
                    self._files.rename(path, path + ".broken")
            return False

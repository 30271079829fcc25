"""Page, metrics and figures of a run, in ``storage/runs/ID`` and on an HTTP port."""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.metrics import metrics
from kerolox.pipeline.flows.page import page
from kerolox.pipeline.flows.run import Run
from kerolox.pipeline.flows.serving import StatusServer

log = logging.getLogger(__name__)

WRITE_EVERY_S: Final = 2.0


class Reporter:
    """Writer of the page of a run: regularly while the run changes, and once at the end."""

    def __init__(self, run: Run, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        self._run = run
        self._seen = -1
        self._ended = threading.Event()
        self._warned = False
        self.server = (
            None if port is None else StatusServer(host, port, self.page, self.metrics, self._status)
        )
        self._thread = threading.Thread(target=self._write_on, daemon=True, name="pipeline-page")

    def page(self) -> str:
        return self._run.document.hide(page(self._run.plan, self._run.figures))

    def metrics(self) -> str:
        return metrics(self._run.figures)

    def _status(self) -> dict[str, object]:
        return self._run.figures.document()

    @property
    def folder(self) -> str:
        return f"runs/{self._run.run_id}"

    @property
    def page_address(self) -> str:
        return self._run.storage.name(f"{self.folder}/page.html")

    def __enter__(self) -> Reporter:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self.write()
        if self.server is not None:
            self.server.close()

    def _write_on(self) -> None:
        while not self._ended.wait(WRITE_EVERY_S):
            if self._run.figures.changes != self._seen:
                self.write()

    def write(self) -> None:
        """Write page, metrics and figures. An error is logged once and does not stop the run."""
        self._seen = self._run.figures.changes
        try:
            storage = self._run.storage
            storage.put(f"{self.folder}/page.html", self.page().encode())
            storage.put(f"{self.folder}/metrics.prom", self.metrics().encode())
            storage.put(f"{self.folder}/run.json", json.dumps(self._status(), indent=1).encode())
            self._warned = False
        except (KeroloxError, OSError) as error:
            if not self._warned:
                log.warning("page_not_written run=%s error=%r", self._run.run_id, str(error))
            self._warned = True

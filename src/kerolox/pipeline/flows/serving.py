"""A run on the web: its page, its metrics, and its figures as JSON. For people and Prometheus, read only."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from kerolox.errors import KeroloxError
from kerolox.metric_text import CONTENT_TYPE

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
VISITORS_MAX: Final = 32


class _FewVisitors(ThreadingHTTPServer):
    """A server of VISITORS_MAX connections at once: for one more, the one that came first is closed. Silent
    connections take neither threads nor the place of others."""

    daemon_threads = True
    request_queue_size = 128  # five, as by default, make others wait for seconds

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._visitors: dict[socket.socket, None] = {}
        self._turn = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._turn:
            if len(self._visitors) >= VISITORS_MAX:
                first = next(iter(self._visitors))
                del self._visitors[first]
                with contextlib.suppress(OSError):  # it has just ended
                    first.shutdown(socket.SHUT_RDWR)
            self._visitors[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._turn:
            self._visitors.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what is wrong with a page; a visitor that goes before its answer is no event."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class StatusServer:
    """Serves ``/`` (the page), ``/metrics`` and ``/status.json`` until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], str],
        metrics: Callable[[], str],
        status: Callable[[], dict[str, Any]],
    ) -> None:
        answers = {
            "/": (HTML, page),
            "/metrics": (CONTENT_TYPE, metrics),
            "/status.json": (JSON, lambda: json.dumps(status())),
        }

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = 10  # a client that says nothing does not keep a thread

            def do_GET(self) -> None:
                kind, make = answers.get(self.path.split("?", 1)[0], ("text/plain", None))
                body = (make() if make else "there are /, /metrics and /status.json\n").encode()
                self.send_response(200 if make else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: scrapes are no events."""

        try:
            self._server = _FewVisitors((host, port), Handler)
        except OSError as error:
            raise KeroloxError(
                f"{host}:{port} cannot be listened at: {error.strerror or error}. Take another "
                "--metrics-port; 0 finds a free one"
            ) from None
        found = self._server.server_address
        self.address = f"{found[0]!s}:{found[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name="pipeline-status"
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

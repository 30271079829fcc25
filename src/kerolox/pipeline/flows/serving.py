"""Read-only HTTP server of a run: its page, its metrics, and its figures as JSON."""

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
    """HTTP server with at most VISITORS_MAX connections; a further one closes the oldest.

    So idle connections neither use up threads nor block other clients.
    """

    daemon_threads = True
    request_queue_size = 128  # the default of 5 makes clients wait for seconds

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._visitors: dict[socket.socket, None] = {}
        self._turn = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._turn:
            if len(self._visitors) >= VISITORS_MAX:
                first = next(iter(self._visitors))
                del self._visitors[first]
                with contextlib.suppress(OSError):  # it has just been closed
                    first.shutdown(socket.SHUT_RDWR)
            self._visitors[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._turn:
            self._visitors.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors of a page, but not clients that disconnect before the answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class StatusServer:
    """HTTP server of ``/`` (the page), ``/metrics`` and ``/status.json``."""

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
            """Handler of one connection."""

            timeout = 10  # seconds after which an idle client loses its thread

            def do_GET(self) -> None:
                kind, make = answers.get(self.path.split("?", 1)[0], ("text/plain", None))
                body = (make() if make else "not found. Available: /, /metrics and /status.json\n").encode()
                self.send_response(200 if make else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log requests, such as scrapes."""

        try:
            self._server = _FewVisitors((host, port), Handler)
        except OSError as error:
            raise KeroloxError(
                f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another "
                "--metrics-port; 0 picks a free port"
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

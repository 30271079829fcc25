"""An S3 server for tests: moto's, as a process of its own, since what writes to it is killed now and then.

``with s3_server() as server: server.bucket()`` makes a bucket that nobody else has. Nothing is kept: the
server holds everything in memory.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kerolox.pipeline.lake.remote_store import RemoteStore

KEY, SECRET = "test-key-id", "test-secret-of-moto"
_numbers = itertools.count()
# moto's own command with port 0 does not tell which port it got.
_SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until whoever started it is gone
"""


@dataclass
class S3Server:
    """A running server."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """As ``--storage-option`` takes them, and s3fs."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint}

    @property
    def environment(self) -> dict[str, str]:
        """The same for processes that are told nothing else."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """Makes a bucket; its address."""
        import s3fs

        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        s3fs.S3FileSystem(**self.options).mkdir(name)
        return f"s3://{name}"

    def storage(self, folder: str = "archive") -> RemoteStore:
        """A folder in a bucket of its own."""
        return RemoteStore(f"{self.bucket()}/{folder}", self.options)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert re.fullmatch(r"\d+", port), f"no S3 server: {port!r}, ended with {process.poll()}"
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

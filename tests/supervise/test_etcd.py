"""The process of an etcd member, with a program in etcd's place: tests with real members are skipped without
etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.ports import free_ports

# Serves /health like a healthy member, or exits.
FAKE = f"""#!{sys.executable}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"health":"true"}}')

if "fails" in sys.argv:
    sys.exit(7)
host, _, port = sys.argv[sys.argv.index("--listen-client-urls") + 1].removeprefix("http://").rpartition(":")
HTTPServer((host, int(port)), Health).serve_forever()
"""


@pytest.fixture
def etcd(tmp_path: Path) -> dict[str, str]:
    """The environment in which the program is etcd."""
    program = tmp_path / "bin" / "etcd"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def member(tmp_path: Path, environment: dict[str, str], name: str = "etcd-0") -> subprocess.Popen[str]:
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = tmp_path / "etcd.conf"
    config.write_text(f"name={name}\ndataDir={tmp_path / name}\nmembers={name}={client}={peer}\n")
    return subprocess.Popen(
        [sys.executable, "-m", "kerolox", "etcd-member", "-c", str(config), "--parent", str(os.getpid())],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_member_is_ready_when_it_is_healthy_and_stops_on_a_signal(
    tmp_path: Path, etcd: dict[str, str]
) -> None:
    with member(tmp_path, etcd) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("kerolox etcd-member ready on 127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert (tmp_path / "etcd-0.started").exists()


def test_a_member_whose_program_exits_says_so(tmp_path: Path, etcd: dict[str, str]) -> None:
    said = member(tmp_path, etcd, "fails").communicate(timeout=60)
    assert said[0] == ""
    assert "etcd exited with code 7" in said[1]


def test_without_etcd_it_says_how_to_get_it(tmp_path: Path) -> None:
    said = member(tmp_path, {**os.environ, "PATH": str(tmp_path)}).communicate(timeout=60)
    assert "apt-get install etcd-server" in said[1]

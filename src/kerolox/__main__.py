"""``python -m kerolox``."""

from __future__ import annotations

from kerolox.cli.main import app

if __name__ == "__main__":
    app(prog_name="kerolox")

"""Whoever reads the files of a store has what access control keeps from them: so nobody else may."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kerolox.net.dialer import Dialer
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")


def open_to_others(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in (root, *root.rglob("*"))
        if path.stat().st_mode & 0o077
    ]


async def run(directory: Path, **options: Any) -> Path:
    """Start, make files of most kinds, and stop; returns where the store is."""
    async with running_broker(directory=directory, **options) as running, Dialer(credentials=ADMIN) as dialer:
        talk = Talk(dialer, running)
        for properties in ({"KEYS": "k"}, {"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"}):
            assert (await talk.send("T", b"a secret", properties)).code == 0
        await talk.heartbeat("g")
        return Path(running.broker.store.root)


@pytest.fixture(autouse=True)
def generous() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    "options", [{}, {"commit_log_paths": "log"}, {"queue_extension": True, "transient": True}]
)
async def test_a_store_with_access_control_is_its_owners(tmp_path: Path, options: dict[str, Any]) -> None:
    if "commit_log_paths" in options:
        options = {"commit_log_paths": str(tmp_path / "log")}
    root = await run(tmp_path / "store", **secured(), **options)
    assert (root / "config" / "access.json").exists()
    assert open_to_others(root) == []
    if "commit_log_paths" in options:
        assert open_to_others(tmp_path / "log") == []


async def test_one_that_was_open_is_closed_at_the_start(tmp_path: Path) -> None:
    root = await run(tmp_path / "store")
    assert open_to_others(root)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not the store's")
    elsewhere.chmod(0o644)
    (root / "link").symlink_to(elsewhere)
    await run(tmp_path / "store", **secured())
    (root / "link").unlink()
    assert open_to_others(root) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644


async def test_without_access_control_rights_stay_as_they_are(tmp_path: Path) -> None:
    root = await run(tmp_path / "store")
    assert stat.S_IMODE((root / "lock").stat().st_mode) == 0o644

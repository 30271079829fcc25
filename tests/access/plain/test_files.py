"""Files of accounts: read, read again when somebody has edited them, and changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.access.plain.files import LOOK_S, AclFiles
from kerolox.access.plain.yaml_file import AclFileBroken, Tree, accounts_of
from kerolox.testing.clock import ManualClock
from kerolox.unsaved import NotSaved


def account(key: str, more: str = "") -> str:
    return f"- accessKey: {key}\n  secretKey: secret of {key}\n{more}"


def write(path: Path, *accounts: str, more: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("accounts:\n" + "".join(accounts) + more)
    path.chmod(0o600)


class Watched:
    """Files that are watched, and time that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.main = folder / "plain_acl.yml"
        self.clock = ManualClock()
        self.files = AclFiles(str(self.main), str(folder / "acl"), self.clock)

    @property
    def keys(self) -> set[str]:
        return set(self.files.accounts.by_key)

    async def look(self) -> None:
        await self.files.look()


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path)
    write(watched.main, account("rocketmq1"))
    write(tmp_path / "acl" / "b.yaml", account("rocketmq2"))
    write(tmp_path / "acl" / "deep" / "er.yml", account("rocketmq3"))
    (tmp_path / "acl" / "notes.txt").write_text("no accounts")
    write(tmp_path / "acl" / "..data" / "b.yaml", account("rocketmq4"))
    await watched.files.load()
    return watched


async def test_all_files_are_read(watched: Watched) -> None:
    assert watched.keys == {"rocketmq1", "rocketmq2", "rocketmq3"}
    assert watched.files.accounts.homes["rocketmq2"].endswith("acl/b.yaml")


async def test_edits_are_seen(watched: Watched) -> None:
    told: list[int] = []
    watched.files.on_change.append(lambda: told.append(len(watched.keys)))
    await watched.look()
    assert told == []
    write(
        watched.main,
        account("rocketmq1"),
        account("rocketmq4"),
        more="globalWhiteRemoteAddresses: [10.0.0.1]",
    )
    await watched.look()
    assert told == [4]
    assert [pattern.text for pattern in watched.files.accounts.white] == ["10.0.0.1"]
    (watched.folder / "acl" / "b.yaml").unlink()
    await watched.look()
    assert watched.keys == {"rocketmq1", "rocketmq3", "rocketmq4"}


async def test_they_are_looked_at_every_few_seconds(watched: Watched) -> None:
    seen = asyncio.Event()
    watched.files.on_change.append(seen.set)
    watched.files.watch()
    for name in ("another1", "another2"):
        write(watched.main, account(name))
        await watched.clock.advance(LOOK_S)
        async with asyncio.timeout(10):
            await seen.wait()
        assert name in watched.keys
        seen.clear()
        await watched.clock.advance(0)  # lets the look end, which sets the next
    await watched.files.close()
    assert not watched.clock.pending


async def test_a_broken_edit_changes_nothing_and_is_told_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.main.write_text("accounts:\n- accessKey: rocketmq1\n  secretKey: tiny\n")
    await watched.look()
    await watched.look()
    assert "rocketmq1" in watched.keys
    told = [record for record in caplog.records if record.message.startswith("acl_not_read")]
    assert len(told) == 1
    assert "plain_acl.yml, line 3" in told[0].message
    write(watched.main, account("rocketmq5"))
    await watched.look()
    assert watched.keys == {"rocketmq5", "rocketmq2", "rocketmq3"}


async def test_the_main_file_is_missed(watched: Watched) -> None:
    watched.main.unlink()
    await watched.look()
    assert "rocketmq1" in watched.keys


async def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AclFileBroken, match="it does not exist"):
        await AclFiles(str(tmp_path / "plain_acl.yml"), str(tmp_path / "acl"), ManualClock()).load()


async def test_of_two_accounts_of_one_name_the_folders_counts(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    write(watched.main, account("rocketmq1"), account("rocketmq2", "  admin: true\n"))
    await watched.look()
    assert not watched.files.accounts.by_key["rocketmq2"].admin
    assert "account_twice key='rocketmq2'" in caplog.text


async def test_files_that_others_read_and_accounts_for_everybody_are_told(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    write(watched.main, account("rocketmq1", "  whiteRemoteAddress: '*'\n"))
    watched.main.chmod(0o644)
    await watched.look()
    assert "acl_file_open" in caplog.text
    assert "account_unguarded key='rocketmq1'" in caplog.text
    assert "secret of" not in caplog.text


def adding(key: str) -> Callable[[Tree], None]:
    return lambda tree: accounts_of(tree).append({"accessKey": key, "secretKey": f"secret of {key}"})


async def test_a_change_is_on_disk_and_private_when_it_counts(watched: Watched) -> None:
    await asyncio.gather(*(watched.files.change(watched.files.path, adding(f"another{n}")) for n in range(3)))
    assert {"another0", "another1", "another2"} < watched.keys
    assert watched.files.accounts.files[watched.files.path].version.counter == 3
    assert watched.main.stat().st_mode & 0o777 == 0o600
    again = Watched(watched.folder)
    await again.files.load()
    assert again.keys == watched.keys


async def test_a_file_that_a_link_leads_to_is_changed_where_it_is(watched: Watched) -> None:
    elsewhere = watched.folder / "real.yml"
    watched.main.rename(elsewhere)
    watched.main.symlink_to(elsewhere)
    await watched.files.change(watched.files.path, adding("another"))
    assert watched.main.is_symlink()
    assert "another" in elsewhere.read_text()
    assert "another" in watched.keys


async def test_what_cannot_be_written_does_not_count(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kerolox.access.plain.files.write_atomically", full)
    with pytest.raises(NotSaved):
        await watched.files.change(watched.files.path, adding("another"))
    with pytest.raises(AclFileBroken):
        await watched.files.change(watched.files.path, adding("short"))
    assert "another" not in watched.keys

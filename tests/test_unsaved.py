"""Changes are kept or undone, whatever order saves and changes come in."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.unsaved import NotSaved, Then, Unsaved


class Rig:
    """A table of numbers by name, and saves that end when the test says."""

    def __init__(self) -> None:
        self.table: dict[str, int] = {}
        self.saves: list[Then] = []
        self.unsaved: Unsaved[str, int] = Unsaved(self._put_back, self.saves.append)

    def put(self, name: str, value: int) -> None:
        before = self.table.get(name)
        self.table[name] = value
        self.unsaved.changed(name, before)

    def end(self, *, ok: bool) -> None:
        """The oldest save ends."""
        self.saves.pop(0)(None if ok else NotSaved("table.json", "No space left"))

    def _put_back(self, name: str, before: int | None) -> None:
        if before is None:
            del self.table[name]
        else:
            self.table[name] = before


async def test_a_change_is_kept_when_its_save_ends_well() -> None:
    rig = Rig()
    rig.put("a", 1)
    saved = asyncio.ensure_future(rig.unsaved.saved("a"))
    assert "a" in rig.unsaved
    rig.end(ok=True)
    await saved
    assert (rig.table, len(rig.unsaved)) == ({"a": 1}, 0)
    await rig.unsaved.saved("a", "never changed")


async def test_all_keys_are_waited_for_from_the_start() -> None:
    """The second is undone while the first is still on its way."""
    rig = Rig()
    rig.put("a", 1)
    rig.put("b", 1)
    saved = rig.unsaved.saved("a", "b")
    rig.saves.reverse()
    rig.end(ok=False)
    assert rig.table == {"a": 1}
    rig.end(ok=True)
    with pytest.raises(NotSaved, match=r"nothing was changed: table\.json"):
        await saved


@pytest.mark.parametrize("second_ok", [True, False])
async def test_a_later_change_stands_on_what_was_there_before_the_failed_one(second_ok: bool) -> None:
    rig = Rig()
    rig.table["a"] = 7
    rig.put("a", 8)
    first = rig.unsaved.saved("a")
    rig.put("a", 9)
    second = rig.unsaved.saved("a")
    rig.end(ok=False)
    with pytest.raises(NotSaved):
        await first
    assert rig.table == {"a": 9}
    rig.end(ok=second_ok)
    if second_ok:
        await second
    else:
        with pytest.raises(NotSaved):
            await second
    assert rig.table == {"a": 9 if second_ok else 7}


async def test_a_save_that_ended_well_covers_older_changes() -> None:
    rig = Rig()
    rig.put("a", 1)
    first = rig.unsaved.saved("a")
    rig.put("a", 2)
    rig.saves.reverse()
    rig.end(ok=True)  # the newer content is written
    await first
    rig.end(ok=False)  # what an older save says now does not matter
    assert rig.table == {"a": 2}

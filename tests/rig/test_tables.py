"""What was made before a fault is found at a broker that has it, and missed at one that has not."""

from __future__ import annotations

from pathlib import Path

from kerolox.testing.broker import running_broker
from tests.rig.loop_thread import LoopThread
from tests.rig.tables import WITH_USERS, Tables

PARTS = {"topic", "group", "user", "rule", "message", "progress"}


def test_what_a_broker_lacks_is_missed(tmp_path: Path) -> None:
    with LoopThread() as beside:

        async def start(name: str) -> str:
            running = await beside.stack.enter_async_context(
                running_broker(directory=tmp_path / name, auto_create_topics=False, **WITH_USERS)
            )
            return running.address

        one, other = (beside.run(start(name)) for name in ("one", "other"))
        tables = Tables()
        tables.make(one)
        tables.make(one, progress=False)
        assert [made.parts for made in tables.made] == [PARTS, PARTS - {"progress"}]
        assert tables.missing(one) == []
        missed = [text.partition(" was acknowledged")[0] for text in tables.missing(other)]
        assert set(missed) == {
            *(f"{part} made-0" for part in PARTS),
            *(f"{part} made-1" for part in PARTS - {"progress"}),
        }
        tables.forget_progress()
        assert "progress made-0" not in str(tables.missing(other))

"""The table of settings: kept over a restart, in RocketMQ's format, never lost to a broken file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.errors import InvalidRequest
from kerolox.nameserver import kv
from kerolox.nameserver.kv import KvConfig, KvFileBroken
from kerolox.testing.nameserver import running_nameserver


async def test_values_survive_a_restart_in_rocketmqs_format(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KvConfig(path)
    await kv.load()
    await kv.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"}}}'
    await kv.put("名", "键", "值")
    again = KvConfig(path)
    await again.load()
    assert again.value("ORDER_TOPIC_CONFIG", "t") == "broker-a:4"
    assert again.value("名", "键") == "值"
    assert again.namespaces == ["ORDER_TOPIC_CONFIG", "名"]


async def test_deleting(tmp_path: Path) -> None:
    kv = KvConfig(tmp_path / "kv.json")
    await kv.put("n", "k", "v")
    await kv.delete("n", "k")
    await kv.delete("n", "other")
    await kv.delete("nowhere", "k")
    assert kv.value("n", "k") is None
    assert kv.values("n") == {}
    assert kv.values("nowhere") is None
    assert (tmp_path / "kv.json").read_bytes() == b'{"configTable":{"n":{}}}'


async def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_bytes(b"\n")
    kv = KvConfig(tmp_path / "kv.json")
    await kv.load()
    assert kv.namespaces == []


@pytest.mark.parametrize(
    "content",
    [
        b'{"configTable":{"n":{"k":"v"}',
        b"[]",
        b'{"configTable":[]}',
        b'{"configTable":{"n":"v"}}',
        b'{"configTable":{"n":{"k":1}}}',
        b"\xff\xfe\x00",
    ],
)
async def test_a_broken_file_stops_the_start_and_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(KvFileBroken, match=r"kvConfig\.json cannot be read: .* not changed"):
        async with running_nameserver(directory=tmp_path):
            pass
    assert path.read_bytes() == content


async def test_the_table_is_bounded_because_every_change_writes_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "CHARACTERS_MAX", 100)
    monkeypatch.setattr(kv, "NAMESPACES_MAX", 2)
    config = KvConfig(tmp_path / "kv.json")
    await config.load()
    await config.put("n", "key", "v" * 80)
    with pytest.raises(
        InvalidRequest, match=r"would have 108 characters, the limit is 100 \(CHARACTERS_MAX\)"
    ):
        await config.put("n", "other", "v" * 18)
    await config.delete("n", "key")
    await config.put("n", "other", "v" * 18)
    await config.put("m", "key", "")
    with pytest.raises(InvalidRequest, match="NAMESPACES_MAX"):
        await config.put("o", "key", "")
    with pytest.raises(InvalidRequest, match="KEY_LENGTH_MAX"):
        await config.put("n", "k" * 1001, "")
    with pytest.raises(InvalidRequest, match="VALUE_LENGTH_MAX"):
        await config.put("n", "k", "v" * 65537)
    await config.close()
    again = KvConfig(tmp_path / "kv.json")
    await again.load()
    assert again._characters == config._characters == sum(map(len, ("n", "other", "v" * 18, "m", "key")))
    await again.close()

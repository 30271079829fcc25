"""``pip install .`` in a clone: what is installed works, and the clone is as it was."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import kerolox

ROOT = Path(__file__).parent.parent
NOT_OF_A_CLONE = ("__pycache__", "*.so", "*.egg-info")
PROBE = """
import importlib.metadata, json, kerolox, kerolox.compiled
print(json.dumps({
    "file": kerolox.__file__,
    "core": kerolox.compiled.CORE is not None,
    "version": importlib.metadata.version("kerolox"),
    "told": kerolox.__version__,
}))
"""


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    made = tmp_path / "clone"
    made.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made)
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns(*NOT_OF_A_CLONE))
    return made


def test_an_install_leaves_nothing_in_the_clone(clone: Path, tmp_path: Path) -> None:
    before = contents(clone)
    target, temporary = tmp_path / "target", tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    environment.pop("KEROLOX_PURE", None)  # what is installed is asked, not what this run uses
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", str(target), "."], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    after = contents(clone)
    assert sorted(after) == sorted(before)
    assert after == before
    assert list(temporary.iterdir()) == []
    # Not from the clone, nor from where this test runs.
    probed = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(probed.stdout)
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    assert found == {
        "file": str(target / "kerolox" / "__init__.py"),
        "core": shutil.which(compiler) is not None,
        "version": kerolox.__version__,
        "told": kerolox.__version__,
    }
    assert (target / "kerolox" / "store" / "FORMAT.md").is_file()

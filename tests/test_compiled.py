"""The compiled core: that it is there where it is required, and that what is said of it is so."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox import compiled

STUB = Path(compiled.__file__).with_name("_core.pyi")
CORE = compiled.load()


def declared() -> dict[str, int]:
    """The functions of the stub, and how many arguments each takes."""
    found = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.FunctionDef)]
    return {function.name: len(function.args.posonlyargs) for function in found}


def test_the_core_was_built_where_it_must_be() -> None:
    if os.environ.get("KEROLOX_REQUIRE_CORE", "") in ("", "0"):
        pytest.skip("KEROLOX_REQUIRE_CORE is not set: without a compiler kerolox does without its core")
    assert CORE is not None, "kerolox._core was not built: is there a C compiler?"


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
def test_the_stub_declares_what_the_core_has() -> None:
    functions = {name for name in vars(CORE) if not name.startswith("_")}
    assert functions | {"read_now", "read_messages"} == set(declared())


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize("name", sorted(declared()))
def test_a_wrong_number_of_arguments_is_refused(name: str) -> None:
    function = getattr(CORE, name, None)
    if function is None:
        pytest.skip(f"{name} is not there on this system")
    for count in {0, declared()[name] - 1, declared()[name] + 1} - {-1}:
        with pytest.raises(TypeError):
            function(*[None] * count)


def test_without_the_core_the_twins_serve() -> None:
    script = (
        "from kerolox import compiled; from kerolox.protocol import frame, plain_sends;"
        "assert compiled.CORE is None;"
        "assert frame.split_frames is frame._split_frames;"
        "assert plain_sends.take_sends is plain_sends._take_sends"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "KEROLOX_PURE": "1"})

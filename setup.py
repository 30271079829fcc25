"""The compiled core; all else is in pyproject.toml. Where there is no compiler, kerolox does without it."""

import atexit
import shutil
import sys
import tempfile
from glob import glob

from setuptools import Extension, setup

options = {}
if "sdist" not in sys.argv:  # what an archive of the source holds has to lie in the source
    # What a build needs on the way lies elsewhere, and ends with it: a clone is as it was, and nothing old
    # from it gets into a new build.
    elsewhere = tempfile.mkdtemp(prefix="kerolox-build-")
    atexit.register(shutil.rmtree, elsewhere, ignore_errors=True)
    options = {"build": {"build_base": elsewhere}, "egg_info": {"egg_base": elsewhere}}

setup(
    options=options,
    ext_modules=[
        Extension(
            "kerolox._core",
            sorted(glob("src/kerolox/core/*.c")),
            depends=glob("src/kerolox/core/*.h"),
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            optional=True,
        ),
    ],
)

"""The compiled core; all else is in pyproject.toml. Where there is no compiler, kerolox does without it."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "kerolox._core",
            sorted(glob("src/kerolox/core/*.c")),
            depends=glob("src/kerolox/core/*.h"),
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            optional=True,
        ),
    ]
)

"""The compiled core; all else is in pyproject.toml. Where there is no compiler, kerolox does without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("kerolox._core", ["src/kerolox/_core.c"], extra_compile_args=["-O2"], optional=True),
    ]
)

"""Data pipelines between topics and files, on Spark. Needs the extra: ``pip install kerolox[spark]``."""

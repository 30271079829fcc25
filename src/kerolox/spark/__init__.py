"""Topics and store files as Spark tables. Needs the extra: ``pip install kerolox[spark]``."""

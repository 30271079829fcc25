"""Filters that look into a message's properties: SQL92 conditions, and the bits that foretell their answer.

:func:`kerolox.protocol.filters.sql.compile_filter` is the way in.
"""

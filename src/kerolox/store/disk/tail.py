"""Newest bytes of a file, kept in memory.

Entries of queues and of the key index are a few bytes each. They are collected here and written by one call
per flush round, and readers that follow the writer closely find them here too.
"""

from __future__ import annotations


class Tail(bytearray):
    """Bytes that begin with the entry numbered ``start``, which never changes.

    Only the owner (the event loop) adds bytes, at the end. To drop the oldest bytes it replaces the tail by
    another one, so a thread that holds a reference reads the right entries.
    """

    __slots__ = ("start",)

    start: int

    @classmethod
    def at(cls, start: int, data: bytes | bytearray = b"") -> Tail:
        tail = cls(data)
        tail.start = start
        return tail

"""The flag words of the protocol: of commands, messages, pulls, topics and groups.

Plain integers, not ``IntFlag``: they are tested for every message, and an ``IntFlag`` operation
costs some twenty times an integer one.
"""

from __future__ import annotations

from typing import Final

# --- a command's ``flag`` ---------------------------------------------------------------------
COMMAND_RESPONSE: Final = 0x1
COMMAND_ONEWAY: Final = 0x2

# --- a message's ``sysFlag``, stored with the record -------------------------------------------
COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
NEEDS_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_UNNAMED: Final = 0x000  # clients before 5.0: zlib
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300
COMPRESSION_MASK: Final = 0x700

# --- a pull request's ``sysFlag`` --------------------------------------------------------------
PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2  # nothing there: hold the request
PULL_SUBSCRIPTION: Final = 0x4  # the request brings its own expression
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10

# --- ``perm`` of topics and brokers ------------------------------------------------------------
PERM_INHERIT: Final = 0x1  # new topics may be made after this one
PERM_WRITE: Final = 0x2
PERM_READ: Final = 0x4
PERM_PRIORITY: Final = 0x8
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
PERM_MAX: Final = PERM_READ | PERM_WRITE | PERM_INHERIT  # 8 exists by name only; 0..7 is valid

# --- ``topicSysFlag`` and ``groupSysFlag`` -----------------------------------------------------
TOPIC_UNIT: Final = 0x1
TOPIC_UNIT_SUBSCRIBED: Final = 0x2
GROUP_UNIT: Final = 0x1


def transaction_state(sys_flag: int) -> int:
    """The transaction bits alone: one of the ``TRANSACTION_*`` values."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_state(sys_flag: int, state: int) -> int:
    """These flags with other transaction bits."""
    return (sys_flag & ~TRANSACTION_MASK) | state


def perm_text(perm: int) -> str:
    """``6`` → ``RW-``, as RocketMQ's tools print it."""
    return "".join(
        letter if perm & bit else "-"
        for bit, letter in ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    )

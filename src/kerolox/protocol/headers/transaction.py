"""Transactions: end one, or ask how it ended."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class EndTransactionRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Commits or rolls back a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32  # 0 unknown, 8 commit, 12 rollback
    from_transaction_check: bool = False
    msg_id: str | None = None  # always sent, only ever logged
    transaction_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


class CheckTransaction(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks a producer how the transaction of the record in the body ended."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = None


class ResumeCheckRequest(Header, frozen=True, kw_only=True):
    """Lets the broker ask again about a transaction it had given up."""

    msg_id: str | None = None
    topic: str | None = None

"""Events that parts of several rooms listen to: for each event its listeners, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kerolox.broker.figures.meters import DELAY, NORMAL, TRANSACTION

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker

L = TypeVar("L", bound=Callable[..., Any], contravariant=True)


class Event(Protocol[L]):
    """Observers, which are isolated from the event and from each other, or a list of steps."""

    def append(self, listener: L, /) -> None: ...


def on(event: Event[L], *listeners: L) -> None:
    for listener in listeners:
        event.append(listener)


def listen(broker: Broker) -> None:
    """Connect all listeners. Called once, when all rooms are made and none is started."""
    tables, membership, figures, path = broker.tables, broker.membership, broker.figures, broker.write_path
    later, transactions, consuming = broker.later, broker.transactions, broker.consuming
    replication, copies, nameservers = broker.replication, broker.copies, broker.nameservers
    store, stats, options = broker.store, figures.stats, broker.options
    watch = copies.watch

    # --- tables ------------------------------------------------------------------------------------------
    on(
        tables.topics.on_change,
        path.targets.topic_changed,
        lambda topic: watch.changed("topics"),
    )
    on(tables.topics.on_saved, nameservers.registrations.topic_changed)
    on(
        tables.topics.on_removed,
        stats.forget_topic,
        path.targets.topic_removed,
        path.admission.topic_removed,
        tables.timer_counts.forget,
        transactions.counts.forget_topic,
        broker.popping.topic_removed,
        lambda topic: watch.changed("topics"),
    )
    on(
        membership.groups.on_change,
        lambda group: tables.group_saver.save(),
        lambda group: watch.changed("groups"),
    )
    on(membership.groups.on_enabled, stats.forget_behind)
    on(
        broker.access.guard.book.on_change,
        path.targets.forget,
        # A repeated pull is checked again, so a client that lost a right gets no more messages.
        consuming.waits.wake_all,
        lambda: watch.changed("users"),
    )

    # --- members -----------------------------------------------------------------------------------------
    on(membership.members.on_subscribed, consuming.filters.subscribed)
    on(membership.members.on_deserted, consuming.filters.deserted)

    # --- the log -----------------------------------------------------------------------------------------
    # First the parts that note progress, last the parts that let clients read on.
    on(
        store.on_truncated,
        tables.truncated,
        later.cut_deliveries.truncated,
        later.timers.truncated,
        transactions.recent.truncated,
        consuming.waits.truncated,
    )
    # The fillers of queues and keys come first, so a resumed pull finds the message in its queue.
    on(store.dispatcher.listeners, consuming.waits.arrived)
    if options.multi_dispatch:
        on(store.dispatcher.listeners, consuming.waits.arrived_light)

    # --- the role ----------------------------------------------------------------------------------------
    # The link to the leader comes first: the leadership calls it itself.
    on(
        broker.leadership.on_leader,
        lambda leader: consuming.waits.wake_all(),
        lambda leader: copies.copy.copy_now(),
    )
    on(replication.follower.on_doubt, broker.elector.doubt)
    on(replication.follower.on_copying, copies.copy.copy_now)

    # --- messages ----------------------------------------------------------------------------------------
    # A level takes precedence over a time, so it is checked first.
    on(path.intake.rewrites, later.delays.park, later.timer_sends.park)
    on(broker.producing.sends.on_stored, stats.stored)
    on(broker.producing.replies.on_stored, stats.stored)
    on(broker.remoting.send_runs.on_stored, stats.stored)
    on(transactions.endings.on_stored, stats.stored)
    on(transactions.check_backs.on_read, stats.served)
    on(later.timers.delivery.on_stored, stats.stored)
    on(later.delays.on_delivered, later.count_delayed)
    lumped = options.light_queues and not options.light_stats
    on(consuming.reads.on_served, stats.served_light if lumped else stats.served)
    on(consuming.reads.on_caught_up, stats.caught_up)
    on(consuming.reads.on_cold_read, stats.read_cold)
    _count(broker)


def _count(broker: Broker) -> None:
    """Connect the meters, which exist only while the metrics are exported, and the sources of metrics."""
    figures, later, transactions = broker.figures, broker.later, broker.transactions
    on(
        figures.metrics.more,
        broker.write_path.delivery.metrics,
        later.delays.metrics,
        transactions.counts.metrics,
        broker.replication.metrics,
        broker.popping.metrics,
    )
    if broker.options.timer_wheel:
        on(figures.metrics.more, later.timer_figures.metrics)
    for elector in (broker.controlled, broker.dledger):
        if elector is not None:
            on(figures.metrics.more, elector.metrics)
    meters = figures.meters
    if meters is None:
        return
    on(
        broker.producing.replies.on_stored,
        lambda topic, count, size: meters.stored(topic, NORMAL, count, size),
    )
    on(
        transactions.endings.on_stored,
        lambda topic, count, size, _: meters.stored(topic, TRANSACTION, count, size),
    )
    on(
        later.timers.delivery.on_stored,
        lambda topic, count, size, _: meters.stored(topic, DELAY, count, size),
    )
    on(
        later.delays.on_delivered,
        lambda _, topic, size, count: meters.stored(topic, DELAY, count, size),
    )
    on(later.timers.on_entered, meters.timed)
    on(broker.tables.topics.on_removed, meters.forget_topic)
    on(figures.metrics.more, meters.metrics)

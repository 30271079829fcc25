"""SQL92 subscriptions: registered by heartbeats, kept for a day after their group has left, and used by
pulls.

They are kept because a queue's extension stores the results of all subscriptions known when a message
arrived; a returning group uses the results from its absence. See FORMAT.md, "Consume queue extension".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

import msgspec

from kerolox.broker.bounds import FILTERS_CHARACTERS_MAX, FILTERS_OF_TOPIC_MAX
from kerolox.broker.consume.read_filter import ReadFilter, ReadRefused
from kerolox.broker.members.compiled_filters import CompiledFilters, key_of, no_property_filter, shown
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock, TimerHandle
from kerolox.protocol import properties as names
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.filters.bloom import BloomFilter
from kerolox.protocol.filters.lexer import FilterError
from kerolox.protocol.filters.sql import SqlFilter
from kerolox.protocol.json_dialect import dumps
from kerolox.protocol.record import properties_of
from kerolox.protocol.reserved import RETRY_PREFIX
from kerolox.protocol.subscription import is_tag_type
from kerolox.store.disk.files import Files
from kerolox.store.queue.extension import Unit
from kerolox.store.queue.reading import UnitFilter
from kerolox.store.tables.filters import BloomPlaces, FilterData, FilterTable, members_of

log = logging.getLogger(__name__)

SAVE_MS = 10_000
_AT_RETRY_TOPIC = names.marker(names.RETRY_TOPIC)


def bloom_of(options: BrokerOptions) -> BloomFilter:
    return BloomFilter(options.filter_error_percent, options.filter_users)


class Filters:
    """SQL92 subscriptions of all groups, and their compiled conditions."""

    def __init__(self, table: FilterTable, bloom: BloomFilter, options: BrokerOptions, clock: Clock) -> None:
        """``table`` is loaded by :meth:`load`. Until then messages have no bits, and their filters are
        evaluated when they are read."""
        self.table = table
        self.bloom = bloom
        self._options = options
        self._clock = clock
        self.known = CompiledFilters()
        self._timer: TimerHandle | None = None

    @classmethod
    def of(cls, files: Files, options: BrokerOptions, clock: Clock) -> Filters:
        """Return the filters of a broker, not loaded yet."""
        bloom = bloom_of(options)
        table = FilterTable(
            files,
            os.path.join(os.path.abspath(options.store_path), "config"),
            clock=clock,
            bits=bloom.bits,
            places=bloom.places,
            dead_kept_ms=lambda: options.filter_keep_ms,
        )
        return cls(table, bloom, options, clock)

    def load(self) -> None:
        """Read the subscriptions, as they were when the broker stopped. Reads a file."""
        self.table.load()

    def start(self) -> None:
        """Start the timer that forgets subscriptions of groups gone for a long time."""
        if self._timer is None:
            self._timer = self._clock.beat(SAVE_MS / 1000, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.known.close()

    def _look(self) -> None:
        self._timer = self._clock.beat(SAVE_MS / 1000, self._look)
        self.table.forget_dead()

    # --- compiling ---------------------------------------------------------------------------------------

    def compile(self, wanted: SubscriptionData) -> SqlFilter:
        """Return the compiled condition. Raises :class:`FilterError` if the expression is invalid."""
        return self.known.get(key_of(wanted))

    def compiled(self, data: FilterData) -> SqlFilter | None:
        """Return the compiled condition. None if it cannot be compiled; then every message matches, as in
        RocketMQ."""
        try:
            return self.known.get((data.expression_type, data.expression or ""))
        except FilterError:
            return None

    # --- subscriptions of groups -------------------------------------------------------------------------

    def subscribed(self, group: str, wanted: Iterable[SubscriptionData]) -> None:
        """Register the subscriptions of a heartbeat. Topics it does not name are no longer subscribed."""
        listed: set[str] = set()
        for subscription in wanted:
            listed.add(subscription.topic)
            if not is_tag_type(subscription) and subscription.sub_string:
                self._register(group, subscription)
        if self.table.by_topic:
            self.table.mark_dead(group, kept=listed)

    def deserted(self, group: str) -> None:
        self.table.mark_dead(group)

    def _register(self, group: str, wanted: SubscriptionData) -> None:
        known = self.table.find(wanted.topic, group)
        if known is None:
            self._put(group, wanted)
            return
        alive = msgspec.structs.replace(known, dead_time=0)
        if wanted.sub_version <= known.client_version:
            if wanted.sub_version == known.client_version and known.dead:
                self.table.put(alive)
            return
        same = (known.expression, known.expression_type) == (wanted.sub_string, wanted.expression_type)
        if same and known.bloom_filter_data == self.places(group, wanted.topic):
            newer = alive if known.dead else known
            self.table.put(msgspec.structs.replace(newer, client_version=wanted.sub_version))
        elif not self._put(group, wanted):
            self.table.remove(wanted.topic, group)  # pulls are answered that no subscription exists

    def _put(self, group: str, wanted: SubscriptionData) -> bool:
        try:
            self.compile(wanted)
        except FilterError as error:
            log.warning(
                "filter_not_taken group=%r topic=%r expression=%r error=%r next='correct the expression; "
                "until then the members get no messages of this topic'",
                group, wanted.topic, shown(wanted.sub_string), str(error),
            )  # fmt: skip
            return False
        known = self.table.by_topic.get(wanted.topic, {})
        if group not in known and len(known) >= FILTERS_OF_TOPIC_MAX:
            log.warning(
                "filter_not_taken group=%r topic=%r reason='%d groups have a filter there: "
                "FILTERS_OF_TOPIC_MAX' next='filter by tags; the members get no messages of this topic'",
                group, wanted.topic, len(known),
            )  # fmt: skip
            return False
        before = known.get(group)
        characters = self.table.characters + len(wanted.sub_string or "")
        if characters - (0 if before is None else len(before.expression or "")) > FILTERS_CHARACTERS_MAX:
            log.warning(
                "filter_not_taken group=%r topic=%r reason='conditions of all groups would have %d "
                "characters: FILTERS_CHARACTERS_MAX' next='use shorter conditions; the members "
                "get no messages of this topic'",
                group, wanted.topic, characters,
            )  # fmt: skip
            return False
        self.table.put(
            FilterData(
                topic=wanted.topic,
                consumer_group=group,
                expression=wanted.sub_string,
                expression_type=wanted.expression_type,
                client_version=wanted.sub_version,
                born_time=self._clock.wall_ms(),
                bloom_filter_data=self.places(group, wanted.topic),
            )
        )
        log.info(
            "filter_taken group=%r topic=%r expression=%r", group, wanted.topic, shown(wanted.sub_string)
        )
        return True

    def places(self, group: str, topic: str) -> BloomPlaces:
        return BloomPlaces(bit_num=self.bloom.bits, bit_pos=self.bloom.places_of(f"{group}#{topic}"))

    # --- pulls -------------------------------------------------------------------------------------------

    def subscribed_filter(self, wanted: SubscriptionData, group: str, version: int) -> ReadFilter:
        """Return the filter of a subscription that the members sent by heartbeat. Errors are checked in
        RocketMQ's order.

        Raises NotCompiled if its condition is long and not compiled yet.
        """
        data = self.table.find(wanted.topic, group)
        if data is None:
            raise ReadRefused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if data.client_version < version:
            raise ReadRefused(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        self._check_allowed(wanted)
        self.known.check_known((data.expression_type, data.expression or ""))
        return self._filter(wanted.topic, self.compiled(data), self._by_unit(data))

    def filter(self, wanted: SubscriptionData) -> ReadFilter:
        """Return the filter of a subscription that a request contains. Raises NotCompiled, too."""
        self._check_allowed(wanted)
        self.known.check_known(key_of(wanted))
        try:
            compiled = self.compile(wanted)
        except FilterError as error:
            # RocketMQ intends to reject this, but delivers all messages.
            raise ReadRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed. {error}",
            ) from None
        return self._filter(wanted.topic, compiled, None)

    def _check_allowed(self, wanted: SubscriptionData) -> None:
        if not self._options.property_filter:
            raise ReadRefused(ResponseCode.SYSTEM_ERROR, no_property_filter(wanted))

    def _filter(self, topic: str, compiled: SqlFilter | None, by_unit: UnitFilter | None) -> ReadFilter:
        if self._options.filter_retries and topic.startswith(RETRY_PREFIX):
            return self._of_retries(topic.removeprefix(RETRY_PREFIX))
        if compiled is None:
            return ReadFilter()
        return ReadFilter(by_unit=by_unit, by_properties=compiled.matches, by_record=compiled)

    def _of_retries(self, group: str) -> ReadFilter:
        """Return the filter for a pull of a retry topic: the group's subscription to each message's original
        topic."""

        def matches(properties: bytes) -> bool:
            topic = names.find(properties, _AT_RETRY_TOPIC)
            data = None if topic is None else self.table.find(topic.decode("utf-8", "replace"), group)
            compiled = None if data is None else self.compiled(data)
            return compiled is None or compiled.matches(properties)

        def matches_record(data: bytes, at: int, size: int) -> bool:
            return matches(properties_of(data[at : at + size]))

        return ReadFilter(by_properties=matches, by_record=matches_record)

    # --- the bits of a message ---------------------------------------------------------------------------

    def bits_of(self, topic: bytes, properties: bytes) -> bytes:
        """Return the bits of all subscriptions that match a new message; none if no group subscribes the
        topic."""
        if not self._options.filter_bits:
            return b""
        groups = self.table.by_topic.get(topic.decode("utf-8", "replace"))
        if not groups:
            return b""
        number = 0
        for data in groups.values():
            compiled = self.compiled(data)
            if compiled is not None and data.bloom_filter_data is not None and compiled.matches(properties):
                number |= self.bloom.with_bits(data.bloom_filter_data.bit_pos)
        return self.bloom.packed(number)

    def _by_unit(self, data: FilterData) -> UnitFilter | None:
        """Return a filter over units. The bits decide for messages stored after the subscription; other
        messages pass."""
        places = data.bloom_filter_data
        if places is None or places.bit_num != self.bloom.bits:
            return None
        wanted = self.bloom.with_bits(places.bit_pos)
        size_bytes, born_ms = self.bloom.size_bytes, data.born_time

        def matches(unit: Unit) -> bool:
            return (
                unit.stored_ms <= born_ms
                or len(unit.bits) != size_bytes
                or int.from_bytes(unit.bits, "little") & wanted == wanted
            )

        return matches

    def shown(self, topic: str, group: str) -> tuple[str, UnitFilter | None]:
        """Return a subscription as tools see it, and its filter over units."""
        data = self.table.find(topic, group)
        if data is None:
            return "null", None
        return dumps(members_of(data)).decode(), self._by_unit(data)

"""Operands and operators of conditions, as functions over packed properties.

Every kind of operand is known when the condition is compiled: a property is a text or missing, a constant
has its type, anything else is a condition. So each comparison becomes the one function that fits, which
looks for its property in the packed bytes and never builds a table of them.

Answers are True, False or None (unknown). Like RocketMQ's, they do not treat both sides alike: what
is missing on the left makes ``=`` unknown, on the right makes it false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kerolox.protocol.filters.numbers import Long, Unanswerable, order_of_doubles, to_double, to_int, to_long
from kerolox.protocol.properties import find, marker

Truth: TypeAlias = bool | None
Condition: TypeAlias = Callable[[bytes], Truth]
Value: TypeAlias = bool | int | float | str | None  # an int may be a Long

_FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True, slots=True)
class Property:
    name: str

    @property
    def mark(self) -> bytes:
        return marker(self.name)


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value
    literal: bool = True  # False: with a minus before it, which some of RocketMQ's checks do not see

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


@dataclass(frozen=True, slots=True)
class Answered:
    """A condition as part of another one."""

    ask: Condition
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Nothing:
    """A minus before a value that is not a number: always null. Its operand may still be unanswerable."""

    ask: Condition
    depth: int = 1


Operand: TypeAlias = Property | Constant | Answered | Nothing


def always(answer: Truth) -> Condition:
    return lambda properties: answer


# --- logic ------------------------------------------------------------------------------------------------


def every(conditions: Iterable[Condition]) -> Condition:
    """AND, evaluated from the left up to the first false operand."""
    asked = tuple(conditions)
    if len(asked) == 2:
        first, second = asked

        def both(properties: bytes) -> Truth:
            left = first(properties)
            if left is False:
                return False
            right = second(properties)
            if right is False:
                return False
            return None if left is None else right

        return both

    def ask(properties: bytes) -> Truth:
        answer: Truth = True
        for condition in asked:
            found = condition(properties)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return ask


def some(conditions: Iterable[Condition]) -> Condition:
    """OR, evaluated from the left up to the first true operand."""
    asked = tuple(conditions)

    def ask(properties: bytes) -> Truth:
        answer: Truth = False
        for condition in asked:
            found = condition(properties)
            if found is True:
                return True
            if found is None:
                answer = None
        return answer

    return ask


def negated(condition: Condition) -> Condition:
    def ask(properties: bytes) -> Truth:
        answer = condition(properties)
        return None if answer is None else not answer

    return ask


def present_is_false(name: Property) -> Condition:
    """A property where a condition belongs: being a text it is false, and unknown only if missing."""
    mark = name.mark
    return lambda properties: None if find(properties, mark) is None else False


# --- comparing --------------------------------------------------------------------------------------------


def order(left: bool | int | float | str, right: bool | int | float | str) -> int:
    """Below 0, 0 or above 0, after the text among two unlike ones became what the other is."""
    kind, other = type(left), type(right)
    if kind is not other:
        if kind is str:
            left = _like(right, left)
        elif other is str:
            if kind is bool:
                raise Unanswerable("RocketMQ fails to compare TRUE or FALSE with a text on its right")
            right = _like(left, right)
        elif kind is bool or other is bool:
            return -1
        elif kind is float or other is float:
            left, right = float(left), float(right)
    if isinstance(left, float):
        return order_of_doubles(left, float(right))
    return (left > right) - (left < right)  # type: ignore[operator]


def _like(model: Value, text: Value) -> bool | int | float:
    """A text as the kind of number, or truth, that it is compared with."""
    packed = str(text).encode("utf-8", "surrogatepass")
    if type(model) is bool:
        return packed.lower() == b"true"
    if type(model) is float:
        return to_double(packed)
    return to_long(packed) if type(model) is Long else to_int(packed)


def equal(left: Operand, right: Operand) -> Condition:
    if isinstance(left, Property) and isinstance(right, Constant) and right.value is not None:
        return _property_equals(left.mark, right.value, missing=None)
    if isinstance(right, Property) and isinstance(left, Constant) and not isinstance(left.value, bool | None):
        return _property_equals(right.mark, left.value, missing=False)
    if isinstance(left, Property) and isinstance(right, Constant):
        mark = left.mark  # IS NULL
        return lambda properties: find(properties, mark) is None
    first, second = _reader(left), _reader(right)

    def ask(properties: bytes) -> Truth:
        a, b = first(properties), second(properties)
        if a is None:
            return True if b is None else None
        if b is None:
            return False
        return order(a, b) == 0

    return ask


def _property_equals(mark: bytes, value: Value, missing: Truth) -> Condition:
    read: Callable[[bytes], object]
    wanted: object = value
    if isinstance(value, bool):
        read = _is_true
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")

        def same(properties: bytes) -> Truth:
            found = find(properties, mark)
            return missing if found is None else found == text

        return same
    else:
        read = _number_reader(value)

    def ask(properties: bytes) -> Truth:
        found = find(properties, mark)
        return missing if found is None else read(found) == wanted

    return ask


def compared(sign: str, left: Operand, right: Operand) -> Condition:
    """``>``, ``>=``, ``<`` or ``<=``, of numbers, properties and what is always null."""
    if isinstance(left, Property) and isinstance(right, Constant) and right.value is not None:
        return _property_compared(sign, left.mark, right.value)
    if isinstance(right, Property) and isinstance(left, Constant) and left.value is not None:
        return _property_compared(_FLIPPED[sign], right.mark, left.value)
    holds = _HOLDS[sign]
    first, second = _reader(left), _reader(right)

    def ask(properties: bytes) -> Truth:
        a = first(properties)
        if a is None:
            return None
        b = second(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            a, b = to_double(a.encode()), to_double(b.encode())
        return holds(order(a, b))

    return ask


_HOLDS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _property_compared(sign: str, mark: bytes, number: Value) -> Condition:
    assert isinstance(number, int | float)
    read = _number_reader(number)

    # NaN is above all numbers: hence "not below" for "above". A constant is never NaN nor 0.0.
    def above(properties: bytes) -> Truth:
        text = find(properties, mark)
        return None if text is None else not read(text) <= number

    def from_(properties: bytes) -> Truth:
        text = find(properties, mark)
        return None if text is None else not read(text) < number

    def below(properties: bytes) -> Truth:
        text = find(properties, mark)
        return None if text is None else read(text) < number

    def upto(properties: bytes) -> Truth:
        text = find(properties, mark)
        return None if text is None else read(text) <= number

    return {">": above, ">=": from_, "<": below, "<=": upto}[sign]


def _number_reader(number: Value) -> Callable[[bytes], int | float]:
    if isinstance(number, float):
        return to_double
    return to_long if isinstance(number, Long) else to_int


def _is_true(text: bytes) -> bool:
    return text.lower() == b"true"


def _reader(operand: Operand) -> Callable[[bytes], Value]:
    if isinstance(operand, Answered):
        return operand.ask
    if isinstance(operand, Nothing):
        return _asked_for_nothing(operand.ask)
    if isinstance(operand, Constant):
        value = operand.value
        return lambda properties: value
    mark = operand.mark

    def read(properties: bytes) -> Value:
        found = find(properties, mark)
        return None if found is None else found.decode("utf-8", "replace")

    return read


def _asked_for_nothing(ask: Condition) -> Callable[[bytes], None]:
    def nothing(properties: bytes) -> None:
        ask(properties)

    return nothing


# --- texts ------------------------------------------------------------------------------------------------


def among(name: Property, texts: Iterable[str], *, wanted: bool) -> Condition:
    """IN, or NOT IN when not ``wanted``."""
    mark = name.mark
    packed = frozenset(text.encode("utf-8", "surrogatepass") for text in texts)

    def ask(properties: bytes) -> Truth:
        found = find(properties, mark)
        return None if found is None else (found in packed) is wanted

    return ask


def searched(how: str, operand: Operand, text: str, *, wanted: bool) -> Condition:
    """CONTAINS, STARTSWITH, ENDSWITH. False, even when negated, if the value is missing or not a text."""
    if not text:
        return always(False)
    part = text.encode("utf-8", "surrogatepass")
    if isinstance(operand, Constant):
        value = operand.value
        return always(isinstance(value, str) and _SEARCHES[how](value.encode(), part) is wanted)
    if isinstance(operand, Answered | Nothing):
        inner = operand.ask  # may be unanswerable, and then so is the whole

        def ask(properties: bytes) -> Truth:
            inner(properties)
            return False

        return ask
    mark, search = operand.mark, _SEARCHES[how]

    def look(properties: bytes) -> Truth:
        found = find(properties, mark)
        return found is not None and search(found, part) is wanted

    return look


_SEARCHES: dict[str, Callable[[bytes, bytes], bool]] = {
    "CONTAINS": lambda text, part: part in text,  # Python's search is linear but for texts of a few kB
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}

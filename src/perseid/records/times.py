"""Times: 64 bits inside, 32 bits on the wire.

An instant is a whole number of seconds since 1970-01-01T00:00:00Z. The wire has its low 32 bits; they are read as
the instant nearest to now, so that nothing special happens in 2038 or 2106. Zero on the wire means "not set" and
stays zero.
"""

from datetime import UTC, datetime, timedelta

from .errors import InvalidData, RecordMisuse

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE = 1 << 32
_HALF = 1 << 31


def to_wire(instant: int) -> int:
    """The 32 bits that stand for an instant."""
    return instant % _CYCLE


def from_wire(bits: int, now: int) -> int:
    """The instant nearest to `now` that has these low 32 bits; zero stays zero."""
    if bits == 0:
        return 0
    return now + (bits - now + _HALF) % _CYCLE - _HALF


def to_iso(instant: int) -> str:
    """`2017-07-14T02:40:00Z`."""
    try:
        moment = _EPOCH + timedelta(seconds=instant)
    except OverflowError:
        raise RecordMisuse(f"{instant} seconds after 1970 lies outside the years 1 to 9999") from None
    return moment.isoformat().replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """Seconds since 1970 of an ISO 8601 time; without a zone it is UTC, and parts of a second are cut off."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidData(f"{text[:40]!r} is not an ISO 8601 time such as 2017-07-14T02:40:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)

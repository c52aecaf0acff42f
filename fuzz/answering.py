"""Answering from the view: any bytes give an answer that the protocol's own reader takes, or None; never an error.

The first byte of the input says which target gets the rest. One target asks a sound view, one has the input for its
view, so that damaged items are met too; one begins with a sound request and changes single fields of it.
"""

from collections.abc import Callable
from typing import Final

from perseid.compiled import PROBLEM, native
from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import HandleItem, PrefixItem
from perseid.names.handle import CaseRule
from perseid.records.record import Value
from perseid.server.native.resolution import MAX_PACKETS, PublicResolver, ResolutionSettings, packets
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.requests import Resolve, encode_request
from perseid.wire.responses import decode_response

NOW: Final = 1_794_724_100
CODES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.HANDLE_NOT_FOUND,
        ResponseCode.VALUES_NOT_FOUND,
        ResponseCode.SERVER_NOT_RESP,
        ResponseCode.PREFIX_REFERRAL,
    )
)
MOST_LOOK_UPS: Final = 2 + 2 * 32
"""Maximum lookups per datagram: the prefix, the handle, and the ancestors of a prefix twice."""

SETTINGS: Final = (
    ResolutionSettings(),
    ResolutionSettings(serial=-7, is_primary=False, default_sensitive=True),
    ResolutionSettings(default_scheme="cordra"),
    ResolutionSettings(templates=True),
)
"""Chosen by the datagram."""

VALUES: Final = tuple(
    value.to_bytes()
    for value in (Value.text(1, "URL", "https://example.org/"), Value.text(2, "URL.us", "x"), Value.text(9, "ü", "y"))
)
HANDLES: Final = {
    b"10/X": HandleItem(b"10/x", State.NORMAL, values=VALUES).to_bytes(b"10/X"),
    b"10/P": HandleItem(b"10/p", State.NORMAL, private=True, values=VALUES[:1]).to_bytes(b"10/P"),
    b"10/R": HandleItem(b"10/r", State.RESERVED, private=True).to_bytes(b"10/R"),
    b"20/AB": b"".join(
        HandleItem(name, State.NORMAL, exact=True, values=VALUES[:1]).to_bytes(b"20/AB")
        for name in (b"20/Ab", b"20/aB")
    ),
    b"0.NA/10": HandleItem(b"0.NA/10", State.NORMAL, values=VALUES).to_bytes(b"0.NA/10"),
}
PREFIXES: Final = {
    b"10": PrefixItem(homed=True, marker=True, referrals=VALUES[:1]).to_bytes(),
    b"20": PrefixItem(homed=True, case=CaseRule.SENSITIVE, scheme="free").to_bytes(),
    b"30": PrefixItem(homed_bare=True, templates=True, case=CaseRule.PATH, scheme="cordra").to_bytes(),
    b"0.NA": PrefixItem(homed=True).to_bytes(),
}


class _View:
    """A view in memory that counts lookups."""

    def __init__(self, handles: dict[bytes, bytes], prefixes: dict[bytes, bytes]) -> None:
        self._handles, self._prefixes = handles, prefixes
        self.look_ups = 0

    def get_pair(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None]:
        self.look_ups += 1
        return self._prefixes.get(prefix.upper()), self._handles.get(name.upper())

    def find(self, store: str, key: bytes) -> bytes | None:
        """Find an item for the compiled module; its lookups are not counted."""
        return (self._handles if store == "handles" else self._prefixes).get(key)

    def get_prefix(self, prefix: bytes) -> bytes | None:
        self.look_ups += 1
        return self._prefixes.get(prefix.upper())


def fuzz(data: bytes) -> None:
    """Run one target with one input."""
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


def _check(view: _View, datagram: bytes, *, sound: bool = True) -> None:
    settings = SETTINGS[sum(datagram) % len(SETTINGS)]
    answer = PublicResolver(view, settings, lambda: NOW)(datagram)
    if not PROBLEM and native.answer(settings, view.find, datagram, NOW) not in (None, answer):
        raise AssertionError("the compiled module answers like Python, or not at all")
    if view.look_ups > MOST_LOOK_UPS:
        raise AssertionError(f"{view.look_ups} look-ups for one datagram")
    if answer is None:
        return
    envelope = Envelope.from_bytes(answer)
    if envelope.length != len(answer) - 20 or len(packets(answer)) > MAX_PACKETS:
        raise AssertionError("an answer is as long as it says, and not too long")
    if answer[8:12] != datagram[8:12] or len(datagram) > 512:
        raise AssertionError("an answer belongs to a request")
    message = Message.from_bytes(envelope, answer[20:], NOW)
    if message.header.response_code not in CODES:
        raise AssertionError(f"{message.header.response_code} is not answered here")
    if sound:
        digest, _ = decode_response(message, NOW)
        asked = Message.from_bytes(Envelope.from_bytes(datagram), datagram[20:], NOW)
        if digest is not None and not digest.matches(asked.raw):
            raise AssertionError("a digest is that of the request")


def fuzz_datagram(data: bytes) -> None:
    """Any bytes for a datagram."""
    _check(_View(HANDLES, PREFIXES), data)


def fuzz_fields(data: bytes) -> None:
    """A valid request with corrected lengths: four bytes of flags, one of version, a body."""
    if len(data) < 5:
        return
    header = Header(OpCode.RESOLUTION, flags=OpFlag(int.from_bytes(data[:4], "big")))
    raw = bytearray(Message.build(Envelope(CURRENT_VERSION, CURRENT_VERSION), header, data[5:500]).to_bytes())
    raw[3] = data[4]
    _check(_View(HANDLES, PREFIXES), bytes(raw))


def fuzz_view(data: bytes) -> None:
    """Any bytes for the items of a handle and of a prefix, the length of which is the first byte."""
    if not data:
        return
    about, items = data[1 : 1 + data[0]], data[1 + data[0] :]
    for indexes, types in (((), ()), ((1,), ("URL.", "ü"))):
        body = encode_request(Resolve(b"10/x", indexes, types), CURRENT_VERSION)
        datagram = Message.build(Envelope(), Header(OpCode.RESOLUTION, flags=DEFAULT_FLAGS), body).to_bytes()
        _check(_View({b"10/X": items}, {b"10": about}), datagram, sound=False)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "datagram": fuzz_datagram,
    "fields": fuzz_fields,
    "view": fuzz_view,
}
_TARGETS = list(TARGETS.values())

_NAMES = (
    b"10/x",
    b"10/p",
    b"10/r",
    b"20/aB",
    b"20/AB",
    b"30/x",
    b"40/x",
    b"10",
    b"0.NA/10.1.2",
    b"0.NA/40.1",
    b"0.SITE/x",
)
_BODIES = [
    encode_request(Resolve(name, indexes, types), CURRENT_VERSION)
    for name in _NAMES
    for indexes, types in (((), ()), ((1, 9), ("URL.",)))
]

SEEDS: Final = [
    *[
        b"\0" + Message.build(Envelope(), Header(OpCode.RESOLUTION, flags=flags), body).to_bytes()
        for body in _BODIES
        for flags in (DEFAULT_FLAGS, OpFlag.REQUEST_DIGEST, DEFAULT_FLAGS | OpFlag.DO_NOT_REFER)
    ],
    *[b"\1" + flags.to_bytes(4, "big") + b"\x0b" + body for body in _BODIES for flags in (0x1900_0000, 0x0080_0000)],
    *[b"\2" + bytes((len(about),)) + about + items for about in PREFIXES.values() for items in HANDLES.values()],
]

WORDS: Final = [
    b"0.NA/",
    b"0.SITE/",
    b"10/x",
    b"20/aB",
    b"URL",
    b"URL.",
    b"\x02\x0b\x02\x0b",
    b"\0\0\0\1",
    bytes(4),
    b".",
]

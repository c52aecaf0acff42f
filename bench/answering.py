"""Cost of the fast path for one datagram, without receiving and sending."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

from perseid.ledger.log.entry import Change, Source, State
from perseid.ledger.log.record_keys import homed_name, record_key
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.record import Value
from perseid.server.native.resolution import PublicResolver, ResolutionSettings, packets
from perseid.server.observe.metrics import WorkerCounters
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, Version
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.requests import Resolve, encode_request

RECORDS = 20_000
PREFIX = "20.500.99999"
VALUES = (
    Value.text(1, "URL", "https://example.org/a/typical/address"),
    Value.text(4, "EMAIL", "someone@example.org"),
    Value(100, "HS_ADMIN", bytes.fromhex("0fff0000000a302e4e412f31323334350000012c")),
)
LARGE = tuple(Value.text(index, "URL", "https://example.org/" + "x" * 100) for index in range(1, 41))
DELEGATION = (Value(1, "HS_NA_DELEGATE", bytes(200)),)

_folder = tempfile.TemporaryDirectory()
_views: list[AnswersReader] = []


class _Records:
    """An in-memory ledger for a view."""

    ledger_id = bytes(16)

    def __init__(self, changes: list[Change]) -> None:
        self._changes = changes
        self.size = len(changes)

    def leaf(self, seq: int) -> bytes:
        return self._changes[seq - 1].leaf

    def changes(self, after: int, limit: int) -> list[Change]:
        return self._changes[after : after + limit]

    def current(self) -> Iterator[Change]:
        return iter(sorted(self._changes, key=lambda change: change.key))


def _name(number: int) -> str:
    return f"{PREFIX}/a-name-of-usual-length-{number:06d}"


def _records() -> Iterator[tuple[str, tuple[Value, ...]]]:
    yield homed_name(f"0.NA/{PREFIX}"), ()
    yield homed_name("0.NA/0.NA"), ()
    yield f"0.NA/{PREFIX}", DELEGATION
    yield f"{PREFIX}/large", LARGE
    for number in range(RECORDS):
        yield _name(number), VALUES


def _view() -> AnswersReader:
    """A view of some thousand records, open during the measurement."""
    changes = [
        Change(seq, seq, bytes(32), record_key(name), name, False, State.NORMAL, [value.to_bytes() for value in values])
        for seq, (name, values) in enumerate(_records(), 1)
    ]

    @contextmanager
    def open_source() -> Iterator[Source]:
        yield _Records(changes)

    answers = Answers(Path(_folder.name) / "answers")
    answers.catch_up(open_source)
    _views.append(answers)
    return answers


def _request(
    name: str, flags: OpFlag = DEFAULT_FLAGS, version: Version = CURRENT_VERSION, types: tuple[str, ...] = ()
) -> bytes:
    body = encode_request(Resolve(name.encode(), types=types), version)
    return Message.build(
        Envelope(version, version, request_id=1), Header(OpCode.RESOLUTION, flags=flags), body
    ).to_bytes()


def benches() -> dict[str, Callable[[], object]]:
    """Return the functions to measure."""
    respond = PublicResolver(_view(), ResolutionSettings(), lambda: 1_794_724_100.5)
    counts = WorkerCounters()
    numbers = Random(1).sample(range(RECORDS), RECORDS)
    several = cycle([_request(_name(number)) for number in numbers])

    def counted() -> bytes:
        reply = respond(next(several))
        if reply is None:
            raise TypeError("a public resolution was forwarded")
        counts.count_udp_response(reply, len(reply))
        return reply

    def one(datagram: bytes) -> Callable[[], object]:
        return partial(respond, datagram)

    name, large = _name(1), _request(f"{PREFIX}/large")
    return {
        "found, three values": lambda: respond(next(several)),
        "found, three values, counted": counted,
        "found, one of three by type": one(_request(name, types=("URL",))),
        "found, with digest": one(_request(name, DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)),
        "found, 40 values in 14 packets": lambda: packets(respond(large) or b""),
        "no such record": one(_request(f"{PREFIX}/nothing-of-that-name")),
        "not responsible": one(_request("10.1000/x")),
        "prefix referral": one(_request(f"0.NA/{PREFIX}.1")),
        "handed over, certified": one(_request(name, DEFAULT_FLAGS | OpFlag.CERTIFY)),
    }

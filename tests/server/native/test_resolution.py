"""The fast path: what it answers, what it leaves to the server, and that no input makes it fail."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.errors import AnswersUnavailable, CorruptData, NewerFormat
from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.server.native.resolution import MAX_LEVELS, MAX_PACKETS, PublicResolver, ResolutionSettings, packets
from perseid.wire.client import Client
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.fragments import PACKET_PAYLOAD, split
from perseid.wire.message import Envelope, Message
from perseid.wire.requests import Resolve
from perseid.wire.responses import Failure, Referral, ResolutionResult, decode_response
from tests.server.native.resolution_states import NOW, RequestFields, StoredState, World, governed, homed, value, world

TEMPLATE = b'<namespace><template delimiter="@"><value type="URL" data="x"/></template></namespace>'
DELEGATION = value(3, "HS_NA_DELEGATE", b"site")
CORDRA = "0123456789ABCDEF0123456789ABCDEF"

RECORDS = [
    homed("0.NA/0.NA"),
    homed("0.NA/10.1"),
    homed("0.NA/20.500"),
    homed("0.NA/2000.01"),
    homed("0.NA/40"),
    governed("20.500", "exact"),
    governed("2000.01", "cordra"),
    StoredState("0.NA/10.1", (value(1, "HS_SITE"), DELEGATION)),
    StoredState("0.NA/40", (value(1, "HS_NAMESPACE", TEMPLATE, public=False),)),
    StoredState("0.NA/10.1.reserved", (), State.RESERVED),
    StoredState("10.1/Open", (value(1), value(2, "URL.us"), value(4, "EMAIL"))),
    StoredState("10.1/mixed", (value(1), value(2, "NOTE", public=False))),
    StoredState("10.1/closed", (value(2, "NOTE", public=False),)),
    StoredState("10.1/empty"),
    StoredState("10.1/a?b#c", (value(1),)),
    StoredState("10.1/gone", (value(1, "TOMBSTONE"),), State.TOMBSTONE),
    StoredState("10.1/reserved", (value(1),), State.RESERVED),
    StoredState("10.1/draft", (value(1),), State.UNPUBLISHED),
    StoredState("10.1/future", (value(1),), State(6)),
    StoredState("10.1/other-rule", (value(1),), exact=True),
    StoredState("10.1/" + "long" * 105, (value(1),)),
    StoredState("10.1/many", tuple(value(index) for index in range(1, 400))),
    StoredState("20.500/aB", (value(1, data=b"first"),), exact=True),
    StoredState("20.500/Ab", (value(1, data=b"second"),), exact=True),
    StoredState("20.500/alone", (value(1),), exact=True),
    StoredState("20.500/OLD", (value(1),)),
    StoredState(f"2000.01/{CORDRA}", (value(1),)),
    StoredState("40/x", (value(1),)),
    StoredState("40/reserved", (), State.RESERVED),
    StoredState("50/not-homed", (value(1),)),
]


@pytest.fixture(scope="module")
def here() -> Iterator[World]:
    with world() as made:
        made.store(RECORDS)
        yield made


def opened(answer: bytes | None) -> tuple[ResponseCode, ResolutionResult | Referral | Failure]:
    assert answer is not None
    envelope = Envelope.from_bytes(answer)
    message = Message.from_bytes(envelope, answer[20:], NOW)
    _, body = decode_response(message, NOW)
    assert isinstance(body, ResolutionResult | Referral | Failure)
    return message.header.response_code, body


def indexes(answer: bytes | None) -> list[int]:
    code, body = opened(answer)
    assert code is ResponseCode.SUCCESS
    assert isinstance(body, ResolutionResult)
    return [each.index for each in body.values]


# Answered here

FOUND: dict[str, tuple[RequestFields, list[int]]] = {
    "all values": (RequestFields(b"10.1/Open"), [1, 2, 4]),
    "letters of any case": (RequestFields(b"10.1/oPEN"), [1, 2, 4]),
    "by type": (RequestFields(b"10.1/open", types=("url",)), [1]),
    "by type and below": (RequestFields(b"10.1/open", types=("URL.",)), [1, 2]),
    "by index or type": (RequestFields(b"10.1/open", (4, 9), ("url.us",)), [2, 4]),
    "public ones of several": (RequestFields(b"10.1/mixed"), [1]),
    "not public only, all public": (RequestFields(b"10.1/open", flags=int(OpFlag.RECURSIVE)), [1, 2, 4]),
    "a tombstone": (RequestFields(b"10.1/gone"), [1]),
    "a prefix handle": (RequestFields(b"0.NA/10.1"), [1, 3]),
    "a prefix handle without its prefix": (RequestFields(b"10.1"), [1, 3]),
    "a long name": (RequestFields(b"10.1/" + b"LONG" * 105), [1]),
    "a CORDRA name": (RequestFields(f"2000.01/{CORDRA.lower()}".encode()), [1]),
    "a record under a template": (RequestFields(b"40/x"), [1]),
    "authoritative, from a primary": (
        RequestFields(b"10.1/open", flags=int(DEFAULT_FLAGS | OpFlag.AUTHORITATIVE)),
        [1, 2, 4],
    ),
    "without the credential's length": (RequestFields(b"10.1/open", credential=b""), [1, 2, 4]),
    "more behind the lists": (RequestFields(b"10.1/open", trailing=b"more"), [1, 2, 4]),
    "a query where it is part of the name": (RequestFields(b"10.1/a?b#c"), [1]),
    "letters where they count": (RequestFields(b"20.500/alone"), [1]),
}


@pytest.mark.parametrize(("fields", "expected"), FOUND.values(), ids=FOUND)
def test_found_record_equals_the_slow_path(here: World, fields: RequestFields, expected: list[int]) -> None:
    answer = here.answer(fields.to_bytes())
    assert indexes(answer) == expected
    assert answer == here.slow_path(fields.to_bytes())[1]
    _, body = opened(answer)
    assert isinstance(body, ResolutionResult)
    assert body.handle == fields.name, "echoed as requested"


REFUSED: dict[str, tuple[RequestFields, ResponseCode, bytes]] = {
    "no such record": (RequestFields(b"10.1/nothing"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "reserved": (RequestFields(b"10.1/reserved"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "unpublished": (RequestFields(b"10.1/draft"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "a reserved derived prefix": (RequestFields(b"0.NA/10.1.reserved"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "a derived prefix of which nobody knows": (RequestFields(b"0.NA/60.1"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "no value at all": (RequestFields(b"10.1/empty"), ResponseCode.VALUES_NOT_FOUND, b""),
    "no such values": (RequestFields(b"10.1/open", (9,)), ResponseCode.VALUES_NOT_FOUND, b""),
    "no public values": (RequestFields(b"10.1/closed"), ResponseCode.VALUES_NOT_FOUND, b""),
    "not homed": (RequestFields(b"50/not-homed"), ResponseCode.SERVER_NOT_RESP, b"That prefix doesn't live here"),
    "a query, no such prefix": (
        RequestFields(b"60/x?y"),
        ResponseCode.SERVER_NOT_RESP,
        b"That prefix doesn't live here",
    ),
    "other letters where they count": (RequestFields(b"20.500/AB"), ResponseCode.HANDLE_NOT_FOUND, b""),
    "other letters of one alone": (RequestFields(b"20.500/ALONE"), ResponseCode.HANDLE_NOT_FOUND, b""),
}


@pytest.mark.parametrize(("fields", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_not_found_has_the_deployed_texts(here: World, fields: RequestFields, code: ResponseCode, text: bytes) -> None:
    answer = here.answer(fields.to_bytes())
    assert opened(answer) == (code, Failure(text))
    assert answer == here.slow_path(fields.to_bytes())[1]


def test_names_that_differ_in_case_are_distinct_if_case_sensitive(here: World) -> None:
    found = []
    for name in (b"20.500/aB", b"20.500/Ab"):
        _, body = opened(here.answer(RequestFields(name).to_bytes()))
        assert isinstance(body, ResolutionResult)
        found += [each.data for each in body.values]
    assert found == [b"first", b"second"]


def test_derived_prefix_elsewhere_is_referred_unless_disabled(here: World) -> None:
    fields = RequestFields(b"0.na/10.1.7.8")
    for each in (fields, replace(fields, name=b"10.1.7.8")):
        answer = here.answer(each.to_bytes())
        assert opened(answer) == (ResponseCode.PREFIX_REFERRAL, Referral(b"", (DELEGATION,)))
        assert answer == here.slow_path(each.to_bytes())[1]
    not_referred = replace(fields, flags=int(DEFAULT_FLAGS | OpFlag.DO_NOT_REFER))
    assert opened(here.answer(not_referred.to_bytes()))[0] is ResponseCode.HANDLE_NOT_FOUND


def test_marker_makes_the_server_responsible_for_derived_prefix_handles() -> None:
    with world() as here:
        here.store([homed("0.NA/0.NA/10"), StoredState("0.NA/10.1", (value(1),)), StoredState("0.NA/10", (value(1),))])
        assert indexes(here.answer(RequestFields(b"0.NA/10.1").to_bytes())) == [1]
        assert indexes(here.answer(RequestFields(b"10.1").to_bytes())) == [1]
        assert opened(here.answer(RequestFields(b"0.NA/10.1.2").to_bytes()))[0] is ResponseCode.HANDLE_NOT_FOUND
        assert opened(here.answer(RequestFields(b"0.NA/10").to_bytes()))[0] is ResponseCode.SERVER_NOT_RESP
        assert opened(here.answer(RequestFields(b"10.1/x").to_bytes()))[0] is ResponseCode.SERVER_NOT_RESP


def test_partitioned_server_refuses_names_of_others(here: World) -> None:
    fields = RequestFields(b"10.1/open").to_bytes()
    answers = [
        PublicResolver(here.registry.ledger.answers, ResolutionSettings(servers=3, position=own), lambda: NOW)
        for own in range(3)
    ]
    refusal = (ResponseCode.SERVER_NOT_RESP, Failure(b"Request was hashed incorrectly"))
    outcomes = [opened(answer(fields)) for answer in answers]
    assert outcomes.count(refusal) == 2
    assert [code for code, _ in outcomes].count(ResponseCode.SUCCESS) == 1


def test_client_accepts_the_response_with_its_digest(here: World) -> None:
    client = Client(lambda count: bytes(range(1, count + 1)))
    flags = DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST
    request = client.request(OpCode.RESOLUTION, Resolve(b"10.1/open"), NOW, flags=flags, peer_version=Version(2, 11))
    raw = here.answer(request.to_bytes())
    assert raw is not None
    message = Message.from_bytes(Envelope.from_bytes(raw), raw[20:], NOW)
    digest, body = decode_response(message, NOW)
    assert digest is not None
    assert digest.matches(request.raw)
    assert isinstance(body, ResolutionResult)
    assert len(body.values) == 3


# Handed over

LEFT_TO_THE_SERVER: dict[str, RequestFields] = {
    "to be signed": RequestFields(b"10.1/open", flags=int(DEFAULT_FLAGS | OpFlag.CERTIFY)),
    "to be encrypted": RequestFields(b"10.1/open", flags=int(DEFAULT_FLAGS | OpFlag.ENCRYPT)),
    "a flag nobody knows": RequestFields(b"10.1/open", flags=int(DEFAULT_FLAGS) | 1),
    "in a session": RequestFields(b"10.1/open", session_id=1),
    "in a session that cannot be": RequestFields(b"10.1/open", session_id=-1),
    "no resolution": RequestFields(b"10.1/open", opcode=OpCode.GET_SITE_INFO),
    "a credential": RequestFields(b"10.1/open", credential=b"\0\0\0\4cred"),
    "bytes after the message": RequestFields(b"10.1/open", credential=bytes(5)),
    "a version of very old clients": RequestFields(b"10.1/open", version=Version(5, 0)),
    "a version of the future": RequestFields(b"10.1/open", version=Version(2, 12)),
    "a suggestion of the future": RequestFields(b"10.1/open", suggested=Version(3, 1)),
    "not public only, one is private": RequestFields(b"10.1/mixed", flags=int(OpFlag.RECURSIVE)),
    "not public only, all are private": RequestFields(b"10.1/closed", flags=int(OpFlag.RECURSIVE)),
    "not public only, reserved": RequestFields(b"10.1/reserved", flags=int(OpFlag.RECURSIVE)),
    "not public only, unpublished": RequestFields(b"10.1/draft", flags=int(OpFlag.RECURSIVE)),
    "an unknown state": RequestFields(b"10.1/future"),
    "stored as case-sensitive, which it is not": RequestFields(b"10.1/other-rule"),
    "stored as case-insensitive, which it is not": RequestFields(b"20.500/OLD"),
    "a template": RequestFields(b"40/x@y"),
    "a template behind a reserved name": RequestFields(b"40/reserved"),
    "a CORDRA name with a query": RequestFields(f"2000.01/{CORDRA}?q".encode()),
    "a CORDRA name with a fragment": RequestFields(f"2000.01/{CORDRA}#f".encode()),
    "the installation's own": RequestFields(b"0.SITE/status"),
    "the installation's own, small letters": RequestFields(b"0.site/HOMED/0.NA/10.1"),
    "a prefix of more than one part": RequestFields(b"0.NA/0.NA/10"),
    "a prefix of very many levels": RequestFields(b"0.NA/1" + b".1" * (MAX_LEVELS + 1)),
    "no name": RequestFields(b""),
    "no prefix": RequestFields(b"/x"),
    "no suffix": RequestFields(b"10.1/"),
    "not UTF-8": RequestFields(b"10.1/\xff"),
    "a type that is not UTF-8": RequestFields(b"10.1/open", types=("\udcff",)),
    "an answer of more packets than are sent": RequestFields(b"10.1/many"),
    "a referral for a client that knows none": RequestFields(b"0.NA/10.1.7", suggested=Version(2, 9)),
    "more than a packet": RequestFields(b"10.1/" + b"x" * 480),
}


@pytest.mark.parametrize("fields", LEFT_TO_THE_SERVER.values(), ids=LEFT_TO_THE_SERVER)
def test_other_requests_are_left_to_the_server(here: World, fields: RequestFields) -> None:
    if "\udcff" in fields.types:
        datagram = replace(fields, types=("??",)).to_bytes().replace(b"??", b"\xff\xff")
    else:
        datagram = fields.to_bytes()
    assert here.answer(datagram) is None


@pytest.mark.parametrize(("octet", "bits"), [(2, 0x20), (2, 0x40), (2, 0x80), (2, 0x04), (15, 1), (19, 1), (27, 1)])
def test_fragments_and_invalid_lengths_are_left_to_the_server(here: World, octet: int, bits: int) -> None:
    datagram = bytearray(RequestFields(b"10.1/open").to_bytes())
    assert here.answer(bytes(datagram)) is not None
    datagram[octet] ^= bits
    assert here.answer(bytes(datagram)) is None


def test_default_policy_applies_without_a_policy() -> None:
    name = f"10/{CORDRA}?q"
    with world(ResolutionSettings(default_scheme="cordra"), "cordra") as here:
        here.store([homed("0.NA/10"), StoredState(f"10/{CORDRA}", (value(1),))])
        assert here.answer(RequestFields(name.encode()).to_bytes()) is None
        here.store([homed("0.NA/10"), governed("10", "free"), StoredState(name, (value(1),))])
        assert indexes(here.answer(RequestFields(name.encode()).to_bytes())) == [1]


def test_response_of_more_than_sixteen_packets_is_left_to_the_server() -> None:
    with world() as here:
        for extra in (0, 1):
            # Around the data: header and credential 28, name 8, count 4, value 29 bytes.
            data = bytes(MAX_PACKETS * PACKET_PAYLOAD - 28 - 8 - 4 - 29 + extra)
            here.store([homed("0.NA/10"), StoredState("10/x", (value(1, data=data),))])
            answer = here.answer(RequestFields(b"10/x").to_bytes())
            if extra:
                assert answer is None
            else:
                assert answer is not None
                cut = packets(answer)
                assert len(cut) == MAX_PACKETS
                assert all(len(packet) == 512 for packet in cut)
                assert cut == split(Envelope.from_bytes(answer), answer[20:], request=False)


# The view


@dataclass
class FakeView:
    """A view with the given data, or with an error."""

    handles: dict[bytes, bytes] = field(default_factory=dict)
    prefixes: dict[bytes, bytes] = field(default_factory=dict)
    error: Exception | None = None

    def get_pair(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None]:
        if self.error is not None:
            raise self.error
        return self.get_prefix(prefix), self.handles.get(name.upper())

    def get_prefix(self, prefix: bytes) -> bytes | None:
        return self.prefixes.get(prefix.upper())


@pytest.mark.parametrize(
    "error", [AnswersUnavailable("no view"), CorruptData("torn"), NewerFormat("newer"), OSError("gone")]
)
def test_without_a_usable_view_everything_is_left_to_the_server(error: Exception) -> None:
    view = FakeView(prefixes={b"10": b"\1\0\0"}, error=error)
    assert PublicResolver(view, ResolutionSettings(), lambda: NOW)(RequestFields(b"10/x").to_bytes()) is None


def test_missing_view_directory_leaves_everything_to_the_server(tmp_path: Path) -> None:
    with AnswersReader(tmp_path / "answers") as reader:
        assert PublicResolver(reader, ResolutionSettings(), lambda: NOW)(RequestFields(b"10/x").to_bytes()) is None


@pytest.mark.parametrize("about", [b"", b"\1", b"\x41\0\0", b"\x81\0\0", b"\1\4free\0"])
def test_unknown_prefix_item_is_left_to_the_server(about: bytes) -> None:
    answer = PublicResolver(FakeView({b"10/X": b"\1\0"}, {b"10": about}), ResolutionSettings(), lambda: NOW)
    assert answer(RequestFields(b"10/x").to_bytes()) is None


@pytest.mark.parametrize("about", [b"\x44\0\0", b"\0\0\1\5abc"])
def test_unknown_ancestor_item_is_left_to_the_server(about: bytes) -> None:
    homed_here = {b"0.NA": b"\1\0\0"} if not about[0] else {}
    answer = PublicResolver(FakeView({}, {b"10": about, **homed_here}), ResolutionSettings(), lambda: NOW)
    assert answer(RequestFields(b"0.NA/10.1").to_bytes()) is None


@given(raw=st.binary(max_size=60), head=st.integers(0, 255), about=st.binary(min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_damaged_view_is_never_an_error(raw: bytes, head: int, about: bytes) -> None:
    view = FakeView({b"10/X": bytes((head,)) + raw}, {b"10": bytes((about[0] | 1,)) + about[1:]})
    answer = PublicResolver(view, ResolutionSettings(), lambda: NOW)
    for fields in (RequestFields(b"10/x"), RequestFields(b"10/x", (1,), ("URL.",)), RequestFields(b"10/x?")):
        reply = answer(fields.to_bytes())
        assert reply is None or reply[8:12] == bytes((0, 0, 0, 7))


@given(st.binary(max_size=600))
@settings(max_examples=300, deadline=None)
def test_no_bytes_are_an_error(here: World, raw: bytes) -> None:
    assert here.answer(raw) is None


@pytest.mark.parametrize("problem", [{"serial": 40_000}, {"position": 1}, {"servers": 0}, {"position": -1}])
def test_invalid_settings_are_refused(problem: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"serial number|position"):
        ResolutionSettings(**problem)  # type: ignore[arg-type]

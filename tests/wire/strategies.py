"""Strategies for messages and all their parts."""

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st

from perseid.records.record import Permission, TtlType, Value, ValueRef
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, Version
from perseid.wire.message import (
    DIGEST_LENGTHS,
    MAX_MESSAGE,
    Credential,
    DigestAlgorithm,
    Envelope,
    Header,
    Message,
    RequestDigest,
)
from perseid.wire.requests import (
    ChallengeResponse,
    DumpHandles,
    ExchangeKey,
    ExchangeMode,
    HandleRequest,
    MirrorShare,
    RemoveValues,
    RequestBody,
    Resolve,
    RetrieveTransactions,
    SessionSetup,
    ValuesRequest,
    VerifyChallenge,
)
from perseid.wire.responses import (
    Challenge,
    CreationResult,
    Empty,
    Failure,
    HandleList,
    NextTransactionId,
    Referral,
    ResolutionResult,
    ResponseBody,
    SessionSetupResult,
    SiteInfo,
    TransactionStream,
    UnknownBody,
    VerificationResult,
)

EXAMPLES: Final = settings(max_examples=50, deadline=None)
"""No deadline, because other processes may use the CPU."""

FEW_EXAMPLES: Final = settings(max_examples=20, deadline=None)
"""For tests that run for every opcode and instant."""

INSTANTS: Final = (1_794_724_100, 2_190_000_000, 2_729_000_000)
"""Times in 2026, 2039 and 2056: before and after 32-bit signed times overflow."""

I16 = st.integers(-0x8000, 0x7FFF)
I32 = st.integers(-0x8000_0000, 0x7FFF_FFFF)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U8 = st.integers(0, 0xFF)
BYTES = st.binary(max_size=40)
NAMES = st.binary(max_size=60)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

VERSIONS = st.integers(0, 11).map(lambda minor: Version(2, minor))
EXCHANGE_MODES = I16.map(ExchangeMode) | st.sampled_from(list(ExchangeMode))
OPCODES = st.sampled_from(list(OpCode)) | I32.map(OpCode)
FLAGS = st.integers(0, 0xFFFF_FFFF).map(OpFlag)
INDEXES = st.lists(I32, max_size=5).map(tuple)

_SAME_IN_ALL_VERSIONS = st.sampled_from(list(ResponseCode)) | I32.map(ResponseCode)


def response_codes(version: Version) -> st.SearchStrategy[ResponseCode]:
    """Codes with the same meaning in a version as now; before 2.5 two of them had other numbers."""
    old = (ResponseCode.PREFIX_REFERRAL, ResponseCode.INVALID_VALUE)
    return _SAME_IN_ALL_VERSIONS.filter(lambda code: version.at_least(5) or code not in old)


def instants(now: int) -> st.SearchStrategy[int]:
    """Times that 32 bits can distinguish near `now`: 0, or less than 68 years away and not a multiple of 2³²."""
    near = st.integers(now - (1 << 31), now + (1 << 31) - 1).filter(lambda instant: instant % (1 << 32) != 0)
    return st.just(0) | near


def envelopes(version: st.SearchStrategy[Version] = VERSIONS) -> st.SearchStrategy[Envelope]:
    """Valid envelopes; a suggested version is 1.x to 3.x."""
    suggested = st.builds(Version, st.integers(1, 3), U8)
    lengths = st.integers(0, MAX_MESSAGE)
    flags = st.booleans()
    return st.builds(Envelope, version, suggested, I32, I32, I32, lengths, flags, flags, flags)


def headers(now: int, version: Version) -> st.SearchStrategy[Header]:
    """Headers with times near `now`."""
    codes = response_codes(version)
    return st.builds(Header, OPCODES, codes, FLAGS, I16, U8, instants(now), U8)


CREDENTIALS: Final = st.builds(Credential, TEXTS, BYTES, BYTES, I32, BYTES, U8, U8, I16)

REFERENCES: Final = st.builds(ValueRef, I32, TEXTS)


def values(now: int) -> st.SearchStrategy[Value]:
    """Handle values with times near `now`."""

    def build(ttl_type: TtlType) -> st.SearchStrategy[Value]:
        return st.builds(
            Value,
            index=I32,
            type=TEXTS,
            data=BYTES,
            ttl=instants(now) if ttl_type is TtlType.ABSOLUTE else I32,
            ttl_type=st.just(ttl_type),
            permissions=U8.map(Permission),
            timestamp=instants(now),
            references=st.lists(REFERENCES, max_size=3).map(tuple),
        )

    return (st.sampled_from(list(TtlType)) | U8.map(TtlType)).flatmap(build)


def _value_lists(now: int) -> st.SearchStrategy[tuple[Value, ...]]:
    return st.lists(values(now), max_size=4).map(tuple)


def _session_setups() -> st.SearchStrategy[SessionSetup]:
    def build(mode: ExchangeMode) -> st.SearchStrategy[SessionSetup]:
        common = {"mode": st.just(mode), "timeout": I32, "handle": NAMES, "index": I32}
        if mode in (ExchangeMode.CLIENT_KEY, ExchangeMode.DIFFIE_HELLMAN):
            return st.builds(SessionSetup, **common, public_key=BYTES)
        if mode == ExchangeMode.HANDLE_KEY:
            return st.builds(SessionSetup, **common, key_handle=NAMES, key_index=I32)
        return st.builds(SessionSetup, **common)

    return EXCHANGE_MODES.flatmap(build)


def _transaction_requests(version: Version) -> st.SearchStrategy[RetrieveTransactions]:
    receivers = st.builds(MirrorShare, U8, I32, I32)
    by_number = st.builds(RetrieveTransactions, receivers, I64, I64)
    if not version.at_least(9):
        return by_number
    return by_number | st.builds(RetrieveTransactions, receivers, state=TEXTS)


def requests(now: int, version: Version) -> dict[OpCode, st.SearchStrategy[RequestBody]]:
    """Request bodies by opcode."""
    names = st.builds(HandleRequest, NAMES)
    with_values = st.builds(ValuesRequest, NAMES, _value_lists(now))
    digests = st.binary(max_size=40)  # its length starts with 0, so it cannot be mistaken for a bare digest
    receivers = st.builds(MirrorShare, U8, I32, I32)
    return {
        OpCode.RESOLUTION: st.builds(Resolve, NAMES, INDEXES, st.lists(TEXTS, max_size=4).map(tuple)),
        OpCode.GET_SITE_INFO: names,
        OpCode.CREATE_HANDLE: with_values,
        OpCode.DELETE_HANDLE: names,
        OpCode.ADD_VALUE: with_values,
        OpCode.REMOVE_VALUE: st.builds(RemoveValues, NAMES, INDEXES),
        OpCode.MODIFY_VALUE: with_values,
        OpCode.LIST_HANDLES: names,
        OpCode.RESPONSE_TO_CHALLENGE: st.builds(ChallengeResponse, TEXTS, NAMES, I32, BYTES),
        OpCode.VERIFY_CHALLENGE: st.builds(VerifyChallenge, NAMES, I32, BYTES, digests, BYTES),
        OpCode.HOME_NA: names,
        OpCode.UNHOME_NA: names,
        OpCode.LIST_HOMED_NAS: names,
        OpCode.SESSION_SETUP: _session_setups(),
        OpCode.SESSION_TERMINATE: names,
        OpCode.SESSION_EXCHANGEKEY: st.builds(ExchangeKey, BYTES),
        OpCode.GET_NEXT_TXN_ID: names,
        OpCode.RETRIEVE_TXN_LOG: _transaction_requests(version),
        OpCode.DUMP_HANDLES: st.builds(DumpHandles, receivers) | st.builds(DumpHandles, receivers, BYTES, I32),
        OpCode.BACKUP_SERVER: names,
    }


def successes(now: int) -> dict[OpCode, st.SearchStrategy[ResponseBody]]:
    """Bodies of successful responses by opcode."""
    empty = st.just(Empty())
    names = st.builds(HandleList, st.lists(NAMES, max_size=5).map(tuple))
    return {
        OpCode.RESOLUTION: st.builds(ResolutionResult, NAMES, _value_lists(now)),
        OpCode.GET_SITE_INFO: st.builds(SiteInfo, BYTES),
        OpCode.CREATE_HANDLE: st.builds(CreationResult, st.none() | NAMES),
        OpCode.DELETE_HANDLE: empty,
        OpCode.ADD_VALUE: empty,
        OpCode.REMOVE_VALUE: empty,
        OpCode.MODIFY_VALUE: empty,
        OpCode.LIST_HANDLES: names,
        OpCode.VERIFY_CHALLENGE: st.builds(VerificationResult, U8),
        OpCode.HOME_NA: empty,
        OpCode.UNHOME_NA: empty,
        OpCode.LIST_HOMED_NAS: names,
        OpCode.SESSION_SETUP: st.builds(SessionSetupResult, EXCHANGE_MODES, BYTES),
        OpCode.SESSION_TERMINATE: empty,
        OpCode.SESSION_EXCHANGEKEY: empty,
        OpCode.GET_NEXT_TXN_ID: st.builds(NextTransactionId, I64),
        OpCode.RETRIEVE_TXN_LOG: st.builds(TransactionStream, U8),
        OpCode.DUMP_HANDLES: empty,
        OpCode.BACKUP_SERVER: empty,
        OpCode(9999): st.builds(UnknownBody, BYTES),
    }


_SPECIAL = (
    ResponseCode.RESERVED,
    ResponseCode.SUCCESS,
    ResponseCode.AUTHENTICATION_NEEDED,
    ResponseCode.SERVICE_REFERRAL,
    ResponseCode.PREFIX_REFERRAL,
)


def failures(now: int, version: Version) -> st.SearchStrategy[tuple[ResponseCode, ResponseBody]]:
    """A response code other than success with a matching body."""
    texts = st.builds(Failure, st.none() | BYTES)
    others = st.tuples(response_codes(version).filter(lambda code: code not in _SPECIAL), texts)
    challenges = st.tuples(st.just(ResponseCode.AUTHENTICATION_NEEDED), st.builds(Challenge, BYTES))
    if not version.at_least(5):
        return others | challenges
    referrals = st.sampled_from([ResponseCode.SERVICE_REFERRAL, ResponseCode.PREFIX_REFERRAL])
    return others | challenges | st.tuples(referrals, st.builds(Referral, NAMES, st.none() | _value_lists(now)))


DIGESTS: Final = st.sampled_from(list(DigestAlgorithm)).flatmap(
    lambda algorithm: st.builds(
        RequestDigest,
        st.just(algorithm),
        st.binary(min_size=DIGEST_LENGTHS[algorithm], max_size=DIGEST_LENGTHS[algorithm]),
    )
)


@st.composite
def messages(draw: st.DrawFn, now: int) -> Message:
    """Messages with any header, body and credential."""
    version = draw(VERSIONS)
    envelope = draw(envelopes(st.just(version)))
    header = draw(headers(now, version))
    return Message.build(envelope, header, draw(st.binary(max_size=100)), draw(st.none() | CREDENTIALS))

"""The encoding between processes: everything comes back as it was, and anything else is refused."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.ledger.errors import (
    JobEnded,
    LeaseClosed,
    LedgerError,
    OutcomeUnknown,
    PreconditionFailed,
    StorageFull,
    TooBusy,
)
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.requests import (
    Append,
    Appended,
    Execute,
    Executed,
    Failed,
    IdempotencyRecord,
    IdempotentRequest,
    Lease,
    Leased,
    Outcome,
    Remember,
    Remembered,
    RepeatedRequest,
    Request,
)
from perseid.ledger.views.search_keys import index_keys
from perseid.names.handle import Handle
from perseid.records.record import Value, ValueRef
from perseid.registry import codec
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import InactiveToken, Secret, Token
from perseid.registry.access.tokens import CreateToken
from perseid.registry.advice import AdviceKind
from perseid.registry.codec import InvalidMessage, decode_outcome, decode_request, encode_outcome, encode_request
from perseid.registry.commands.composition import Condition, Conditional
from perseid.registry.commands.minting import RetryLater
from perseid.registry.commands.namespaces import AddNamespace, Namespace
from perseid.registry.commands.records import Create, Delete, PartialValue
from perseid.registry.context import Deferrable
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, Proof, TokenIdentity
from perseid.registry.jobs.undo import UndoConflict
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.namespaces import PolicyChange
from perseid.registry.registry import DeferredCommand, Registry
from perseid.registry.results import (
    ChangeResult,
    InvalidTimestamp,
    MintResult,
    ReferralError,
    Refused,
    StateConflict,
    WarningKind,
)
from perseid.schema.records import WarningInfo
from perseid.wire.codes import ResponseCode
from tests.record_strategies import TEXTS, refs, values
from tests.registry.registries import OPERATOR, key_holder, registry_in_memory

HANDLE = Handle("12345", "x")
URL = Value.text(1, "URL", "https://example.org/")
ONCE = IdempotentRequest(bytes(32), b"key", b"\x01" * 32, 201)
IDENTITIES: list[Identity] = [
    Anonymous(),
    Anonymous(session=True),
    LocalIdentity("alice"),
    key_holder(300, "0.NA/12345"),
    KeyIdentity(ValueRef(0, "a/b"), Proof.PUBLIC_KEY, session=True, verified_index=3),
    TokenIdentity(LocalIdentity("alice"), "k7qpx2ma", ScopeSet.of(["mint", "read"], None)),
    TokenIdentity(KeyIdentity(ValueRef(3, "a/b"), Proof.TOKEN), "k7qpx2ma", ScopeSet.of(["mint"], ["12345.*"])),
]

for kind, strategy in {
    Handle: st.builds(Handle, st.just("12345"), TEXTS.filter(bool)),
    Value: values(),
    ValueRef: refs,
    str: TEXTS,
    Policy: st.sampled_from(list(PROFILES.values())),
    ScopeSet: st.just(ScopeSet.of(["mint"], ["12345"])),
    Secret: st.builds(Secret, st.just("k7qpx2ma"), st.binary(min_size=32, max_size=32)),
    PartialValue: st.builds(PartialValue, TEXTS, st.binary(max_size=9), st.none() | st.integers(1, 9)),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
}.items():
    st.register_type_strategy(kind, strategy)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        yield made


def sent(request: Request, registry: Registry) -> Request:
    return decode_request(encode_request(request), registry)


def deferred(command: Deferrable, identity: Identity = OPERATOR) -> Execute:
    data = DeferredCommand(command, identity, "http", "why ü")
    leaf = {b"A/B": b"\xff" * 32}
    return Execute(lambda _: pytest.fail("not decided here"), data, {b"A/B": 7, b"\xff": 0}, "job", leaf, ONCE)


def test_every_command_that_is_data_can_be_sent() -> None:
    found, waiting = set(), [Deferrable]
    while waiting:
        subclasses = [each for each in waiting.pop().__subclasses__() if each.__module__.startswith("perseid.")]
        found |= {each.__name__ for each in subclasses}
        waiting += subclasses
    assert found == {*codec._COMMANDS, "Conditional"}


@pytest.mark.parametrize("kind", list(codec._COMMANDS.values()), ids=list(codec._COMMANDS))
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_command_comes_back_as_it_was(kind: type[Deferrable], data: st.DataObject, registry: Registry) -> None:
    request = deferred(data.draw(st.from_type(kind)))
    back = sent(request, registry)
    assert isinstance(back, Execute)
    assert (back.command, back.preconditions, back.job, back.expected_leaves, back.once) == (
        *(request.command, request.preconditions, request.job, request.expected_leaves, request.once),
    )


@pytest.mark.parametrize("identity", IDENTITIES, ids=str)
def test_every_identity_comes_back_as_it_was(identity: Identity, registry: Registry) -> None:
    back = sent(
        deferred(Conditional(Delete(HANDLE), HANDLE, Condition(any_of=("e7",), exists=True)), identity), registry
    )
    assert isinstance(back, Execute)
    assert (
        back.command
        == deferred(Conditional(Delete(HANDLE), HANDLE, Condition(any_of=("e7",), exists=True)), identity).command
    )


@given(st.lists(values(), max_size=3).map(tuple), TEXTS, st.booleans())
def test_entries_come_back_encoded(registry: Registry, record: tuple[Value, ...], note: str, exact: bool) -> None:
    draft = Draft(Action.UPDATE, State.TOMBSTONE, "12345/ü", "http", "local:alice", note, record, exact)
    request = Append(
        draft, {b"A": 1}, {3: frozenset({b"\0" * 32})}, "j", {b"A": b"l"}, replace(ONCE, body=b"b"), (draft,)
    )
    back = sent(request, registry)
    assert isinstance(back, Append)
    assert back == replace(request, draft=replace(draft, values=()), more=(replace(draft, values=()),))
    assert [each.contents() for each in back.drafts] == [draft.contents()] * 2
    assert [set(each.search_keys or ()) for each in back.drafts] == [index_keys(draft.contents())] * 2
    alone = sent(replace(request, more=()), registry)
    assert isinstance(alone, Append)
    assert alone.draft.search_keys is None, "the writer computes those of single changes"


@pytest.mark.parametrize("request_", [Lease(b"scope", 5, 0), Remember(replace(ONCE, body=b"response"))])
def test_other_requests_come_back_as_they_were(request_: Request, registry: Registry) -> None:
    assert sent(request_, registry) == request_


RESULTS = [
    ChangeResult(
        HANDLE,
        7,
        overwritten=True,
        warnings=(WarningKind.TYPE_TYPO(AdviceKind.USE_MEANT_TYPE(type="ü"), "S2", index=1, type="ü"),),
    ),
    MintResult((HANDLE, HANDLE), 0),
    Namespace("12345", PROFILES["pilin"], 3, ("10.1/type",)),
    PolicyChange(Namespace("12345", PROFILES["free"], 3), ("case",)),
    Token("k7qpx2ma", "label", "300:a/b", b"\xff", ScopeSet.of(["mint"], None), 1, 2),
    17,
]
RECORD = IdempotencyRecord(b"d" * 32, 1, 2, 3, 201, None)


@pytest.mark.parametrize(
    "outcome",
    [
        Appended(7, 1_794_700_800_000_000),
        Leased(3, 4),
        Remembered(),
        RepeatedRequest(RECORD),
        RepeatedRequest(replace(RECORD, body=b"\xff")),
        *[Executed(result, 7, (b"A", b"\xff"), erased=True) for result in RESULTS],
    ],
    ids=lambda outcome: type(getattr(outcome, "result", outcome)).__name__,
)
def test_outcomes_come_back_as_they_were(outcome: Outcome) -> None:
    assert decode_outcome(encode_outcome(outcome)) == outcome


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_stored_results_come_back_as_they_were(result: object) -> None:
    assert codec.decode_result(codec.encode_result(result)) == result


@pytest.mark.parametrize("stored", [None, b"", b"{}", msgspec.msgpack.encode({"headers": []})])
def test_stored_response_is_not_a_result(stored: bytes | None) -> None:
    assert codec.decode_result(stored) is None


def test_stored_form_of_results_is_frozen() -> None:
    """They are in ledgers and backups."""
    assert codec.encode_result(MintResult((HANDLE,), 5)) == (
        b"\xc1\x01\x92\xaaMintResult\x83\xa7handles\x91\x82\xa6prefix\xa512345\xa6suffix\xa1x\xa3seq\x05\xa8warnings\x90"
    )


def test_stored_results_with_warnings_as_texts_are_read() -> None:
    """Warnings were texts in ledgers and backups of before."""
    old = {"handle": {"prefix": "12345", "suffix": "x"}, "seq": 7, "overwritten": False, "warnings": ["ü"]}
    created = ChangeResult(HANDLE, 7, warnings=(WarningInfo("", "ü"),))
    assert codec.decode_result(codec.RESULT_MARK + msgspec.msgpack.encode(("ChangeResult", old))) == created
    policy = {"prefix": "12345", "policy": PROFILES["free"], "seq": 3, "warnings": ["ü"]}
    changed = PolicyChange(Namespace("12345", PROFILES["free"], 3, warnings=created.warnings), ("case",))
    stored = codec.RESULT_MARK + msgspec.msgpack.encode(("PolicyChange", {"made": policy, "changed": ["case"]}))
    assert codec.decode_result(stored) == changed


def test_version_changes_with_every_change_of_a_message() -> None:
    """If this fails, change `VERSION`, too."""
    found, seen = set[str](), set[object]()
    waiting: list[Any] = [codec._Request, codec._Outcome, *codec._COMMANDS.values()]
    waiting += [*codec._STATE_CHANGES.values(), *codec._RESULTS.values()]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if kind not in seen and (is_dataclass(kind) or hasattr(kind, "__struct_fields__")):
            hints = get_type_hints(kind)
            names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind.__struct_fields__
            found |= {f"{kind.__name__}.{name}" for name in names}
            waiting += [hints[name] for name in names]
        seen.add(kind)
    digest = hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]
    assert (codec.VERSION, digest) == (5, "4fa96dc36060a61f")


def refusals() -> list[Refused]:
    advice = AdviceKind.CHOOSE_HOSTED_PREFIX(prefixes=("10.1", "10.2"))
    made: dict[type[Refused], Refused] = {
        RetryLater: RetryLater(0.25, 17, "wait", "rule"),
        InvalidTimestamp: InvalidTimestamp("bad date", AdviceKind.CORRECT_DATE(), 3),
        ReferralError: ReferralError((URL,)),
        InactiveToken: InactiveToken("Token t was revoked"),
        StateConflict: StateConflict("state", advice, "H5"),
        UndoConflict: UndoConflict("j1", []),
    }
    found, waiting = [], [Refused]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind in made or kind.__name__ in codec._REFUSALS:
            plain = kind.__new__(kind)
            Refused.__init__(plain, ResponseCode.INVALID_VALUE, "why ü", AdviceKind.RETRY_AFTER(seconds=3), "P6")
            found.append(made.get(kind, plain))
    return found


@pytest.mark.parametrize("refused", refusals(), ids=lambda refused: type(refused).__name__)
def test_refusals_come_back_as_they_were(refused: Refused) -> None:
    back = decode_outcome(encode_outcome(Failed(refused)))
    assert isinstance(back, Failed)
    assert type(back.error) is type(refused)
    assert back.error.__dict__ == refused.__dict__
    assert str(back.error) == str(refused)


@pytest.mark.parametrize("error", [StorageFull("full"), TooBusy("busy"), OutcomeUnknown("lost"), JobEnded("j1")])
def test_errors_of_the_ledger_come_back(error: LedgerError) -> None:
    back = decode_outcome(encode_outcome(Failed(error)))
    assert isinstance(back, Failed)
    assert (type(back.error), str(back.error)) == (type(error), str(error))
    with pytest.raises(type(error), match=str(error)):
        decode_outcome(encode_outcome(error))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad \udc80"), "ValueError: bad ?"),
        (StorageFull("bad \udc80"), "bad ?"),
        (Refused(ResponseCode.ERROR, "bad \udcff"), "bad ?"),
        (Refused(ResponseCode.ERROR, "large", AdviceKind.RETRY_AFTER(seconds=1 << 70)), "large"),
        (InvalidPolicy("case", "bad \udcff"), "bad ?"),
    ],
)
def test_errors_without_an_exact_form_are_sent(error: Exception, text: str) -> None:
    """So they do not fail the other requests of their commit."""
    back = decode_outcome(encode_outcome(Failed(error)))
    assert isinstance(back, Failed)
    assert text in str(back.error)


def test_outcome_that_cannot_be_sent_is_unknown() -> None:
    back = decode_outcome(encode_outcome(Executed(1 << 70, 1, (), erased=False)))
    assert isinstance(back, Failed)
    assert isinstance(back.error, OutcomeUnknown)
    assert "check whether the change was made" in str(back.error)


def test_other_errors_come_back() -> None:
    back = decode_outcome(encode_outcome(Failed(InvalidPolicy("case", "is wrong"))))
    assert isinstance(back, Failed)
    assert isinstance(back.error, InvalidPolicy)
    assert (back.error.key, back.error.message) == ("case", "is wrong")
    moved = decode_outcome(encode_outcome(PreconditionFailed(b"A/B", 3, 4)))
    assert isinstance(moved, PreconditionFailed)
    assert (moved.key, moved.expected, moved.actual) == (b"A/B", 3, 4)
    closed = decode_outcome(encode_outcome(LeaseClosed(b"scope", 9)))
    assert isinstance(closed, LeaseClosed)
    assert (closed.scope, closed.last) == (b"scope", 9)
    unexpected = decode_outcome(encode_outcome(Failed(RuntimeError("what?"))))
    assert isinstance(unexpected, Failed)
    assert (type(unexpected.error), str(unexpected.error)) == (LedgerError, "RuntimeError: what?")


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\x92\x7f" + data[2:],  # the version
        lambda data: data.replace(b"Create", b"Remove"),
        lambda data: data.replace(b"Create", b"system"),
        lambda data: data.replace(b"cli", b"\xff\xff\xff"),
    ],
)
def test_other_messages_are_refused(change: Any, registry: Registry) -> None:
    request = replace(
        deferred(Create(HANDLE, (URL,))), command=DeferredCommand(Create(HANDLE, ()), OPERATOR, "cli", "")
    )
    with pytest.raises(InvalidMessage):
        decode_request(change(encode_request(request)), registry)


def test_long_messages_are_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    request = deferred(AddNamespace("12345", PROFILES["free"]))
    data = encode_request(request)
    monkeypatch.setattr(codec, "MAX_MESSAGE", 100)
    for refused in (lambda: encode_request(request), lambda: decode_request(data, registry)):
        with pytest.raises(InvalidMessage, match="too long; the limit is 100"):
            refused()


def test_code_is_never_sent() -> None:
    with pytest.raises(InvalidMessage, match="decided by code"):
        encode_request(Execute(lambda _: pytest.fail("not decided here")))


def test_secrets_are_not_in_a_repr() -> None:
    secret = Secret("k7qpx2ma", b"\xab" * 32)
    assert "\\xab" not in repr(deferred(CreateToken(secret, ScopeSet.of(["mint"], None))).command)

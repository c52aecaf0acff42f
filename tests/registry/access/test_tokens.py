"""Bearer tokens: create, authenticate, revoke and list; what ends them; and that secrets are not stored."""

import random
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perseid.ledger.backup.archive import save_backup
from perseid.ledger.backup.restore import restore
from perseid.ledger.errors import Contention, ReadOnlyMode
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import record_key, token_name
from perseid.ledger.log.requests import Append, Failed, Outcome
from perseid.ledger.merkle import Signer
from perseid.ledger.store import idempotency
from perseid.ledger.store.jobs import EndJob
from perseid.ledger.store.jobs import Job as UnitOperation
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.record import Value, ValueRef
from perseid.registry.access import authorization, tokens
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import TOKEN_TYPE, Secret
from perseid.registry.access.tokens import DAY, CreateToken, RevokeToken, TokenUses
from perseid.registry.commands.namespaces import SetPolicy
from perseid.registry.commands.records import Add, Create, Home, Modify, Remove
from perseid.registry.context import Command, Context, Plan
from perseid.registry.identity import Identity, KeyIdentity, Proof, TokenIdentity
from perseid.registry.jobs import rewrite, runner, undo
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.transfer import TransferAll
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries import history
from perseid.registry.queries.find import Search, find
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import ChangeResult, Refused
from perseid.schema.namespaces import DEFAULT_DAYS, MAX_DAYS, Scope
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import Machine, open_store, until
from tests.registry.access.token_identities import ANN, BEA, RULES, SERVER, furnish, key, make, scope, shown
from tests.registry.administration import ref
from tests.registry.jobs.runs import run_steps, run_transfer
from tests.registry.registries import (
    NOBODY,
    OPERATOR,
    add_namespace,
    admin,
    authenticated,
    handle,
    key_holder,
    registry_in_memory,
    registry_on,
)

SECOND = 1_000_000
URL = Value.text(1, "URL", "https://example.org/")
OWN = admin(100, "300:0.NA/12345")
X = handle("12345/x")
NEW = Create(handle("12345/new"), (URL,))
STRANGER = key_holder(300, "20.500/stranger")


@pytest.fixture
def here(registry: Registry) -> Registry:
    """A registry on each back end."""
    furnish(registry)
    registry.do(Create(X, (URL, OWN)), OPERATOR, "cli")
    return registry


@pytest.fixture
def there(machine: Machine) -> Iterator[Registry]:
    """A registry where one back end is enough."""
    with registry_in_memory(machine, RULES) as made:
        furnish(made)
        made.do(Create(X, (URL, OWN)), OPERATOR, "cli")
        yield made


def refused(call: Callable[[], object], code: ResponseCode, *words: str) -> None:
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.code is code, caught.value
    for word in words:
        assert word in str(caught.value), caught.value


def entry_of(registry: Registry, name: str) -> Entry:
    with registry.snapshot() as snapshot:
        found = snapshot.entry(record_key(name))
    assert found is not None
    return found


def size(registry: Registry) -> int:
    with registry.ledger.open_reader() as reader:
        return reader.size


# Made and shown


def test_token_acts_as_its_issuer_and_the_ledger_names_both(here: Registry) -> None:
    secret = make(here, ANN, scope("create"), label="the catalogue")
    identity = authenticated(here, secret.text())
    assert identity == TokenIdentity(KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.TOKEN), secret.id, scope("create"))
    here.do(NEW, identity, "http")
    entry = entry_of(here, "12345/new")
    assert entry.origin == ("http", f"token:{secret.id} by 300:0.NA/12345")


def test_create_and_revoke_are_ledger_entries(here: Registry) -> None:
    secret = make(here, ANN, scope("create", "read"), label="the catalogue")
    here.do(RevokeToken(secret.id), SERVER, "native", "it was found in a repository")
    name = token_name(secret.id)
    with here.ledger.open_reader() as reader:
        revoked, made = reader.history(record_key(name))
    assert (made.action, made.state, made.origin) == (Action.CREATE, State.NORMAL, ("cli", "300:0.NA/12345"))
    assert (revoked.action, revoked.state, revoked.origin) == (
        Action.DELETE,
        State.ABSENT,
        ("native", "300:0.NA/0.NA"),
    )
    assert revoked.why == "it was found in a repository"
    about, hash_ = made.record()
    assert about.type == TOKEN_TYPE
    for word in (b'"label":"the catalogue"', b'"maker":"300:0.NA/12345"', b'"may":["read","create"]', b'["12345"]'):
        assert word in about.data
    assert hash_.data == secret.digest()


def test_secret_is_not_stored_and_its_hash_is_private(there: Registry, tmp_path: Path) -> None:
    secret = make(there, ANN, scope("create"))
    identity = authenticated(there, secret.text())
    there.do(NEW, identity, "http")
    with there.snapshot() as snapshot:
        for asking in (OPERATOR, SERVER):
            versions = history.get_history(snapshot, asking, Handle.parse_lenient(token_name(secret.id))).versions
            assert [value.type for value in versions[0].values] == [TOKEN_TYPE]
    save_backup(there.ledger.log, tmp_path / "backup")
    folder = Path(str(there.ledger.log.store.engine.url.database)).parent
    files = [path.read_bytes() for path in (*folder.rglob("*"), tmp_path / "backup") if path.is_file()]
    assert any(secret.digest() in raw for raw in files)
    for raw in files:
        assert secret.raw not in raw
        assert secret.raw.hex().encode() not in raw
        assert secret.text().encode()[16:] not in raw


def test_token_record_is_not_a_handle(there: Registry) -> None:
    secret = make(there, ANN)
    name = Handle.parse_lenient(token_name(secret.id))
    about = entry_of(there, str(name)).record()[0]
    for operation in (Create(name, (about,), overwrite=True), Add(name, (URL,)), Remove(name, (2,)), Modify(name, ())):
        refused(lambda operation=operation: there.do(operation, OPERATOR, "cli"), ResponseCode.SERVER_NOT_RESP)  # type: ignore[misc]
    assert there.ledger.find(str(name).encode()) is None
    with there.snapshot() as snapshot:
        refused(lambda: history.get_history(snapshot, ANN, name), ResponseCode.SERVER_NOT_RESP)


def test_issuer_administers_handles_created_with_a_token(there: Registry) -> None:
    there.do(SetPolicy("12345", replace(PROFILES["free"], who_may_mint=Audience.AUTHENTICATED)), OPERATOR, "cli")
    there.do(NEW, shown(there, ANN, scope("create")), "http")
    admins = [value for value in entry_of(there, "12345/new").record() if value.type == "HS_ADMIN"]
    assert [str(Admin.from_bytes(value.data).administrator) for value in admins] == ["300:0.NA/12345"]


# What is no token


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda secret: Secret(secret.id, secrets.token_bytes(32)).text(), "This token does not exist here"),
        (lambda secret: Secret("zzzzzzzz", secret.raw).text(), "This token does not exist here"),
    ],
)
def test_unknown_token_is_refused(there: Registry, change: Callable[[Secret], str], words: str) -> None:
    secret = make(there, ANN)
    text = change(secret)
    with pytest.raises(Refused) as caught:
        authenticated(there, text)
    assert caught.value.code is ResponseCode.AUTHENTICATION_FAILED
    assert words in caught.value.reason
    assert not text or text not in str(caught.value)
    # Nor does the error that caused it.
    assert caught.value.__cause__ is None


def test_invalid_token_record_grants_nothing(there: Registry) -> None:
    secret = make(there, OPERATOR, scope("create"))
    identity = authenticated(there, secret.text())
    about, hash_ = entry_of(there, token_name(secret.id)).record()
    for data in (
        b"{}",
        b"\xff",
        about.data.replace(b"create", b"anything"),
        about.data.replace(b"{", b'{"more":1,', 1),
    ):
        values = (replace(about, data=data), hash_)
        draft = Draft(Action.UPDATE, State.NORMAL, token_name(secret.id), "cli", "local:alice", "", values)
        there.ledger.append(Append(draft))
        refused(lambda: authenticated(there, secret.text()), ResponseCode.AUTHENTICATION_FAILED)
        refused(lambda: there.do(NEW, identity, "http"), ResponseCode.AUTHENTICATION_FAILED)


def test_changed_token_must_be_authenticated_again(there: Registry) -> None:
    """An earlier identity must authenticate again."""
    identity = shown(there, OPERATOR, scope("create"))
    forged = replace(identity, scope=ScopeSet.of(Scope, None))
    refused(lambda: there.do(NEW, forged, "http"), ResponseCode.AUTHENTICATION_FAILED, "has changed")
    other = replace(identity, issuer=SERVER)
    refused(lambda: there.do(NEW, other, "http"), ResponseCode.AUTHENTICATION_FAILED, "has changed")


# What ends a token


def test_token_for_another_namespace_hears_of_its_scope_before_the_policy(there: Registry) -> None:
    add_namespace(there, "102.100.272", "pilin", admin(100, "300:0.NA/12345"))
    identity = shown(there, ANN, scope("create"))
    invalid = Create(handle("102.100.272/not-pilin"), (URL,))
    reason = "cannot create 102.100.272/not-pilin: it is limited to 12345"
    refused(lambda: there.do(invalid, identity, "cli"), ResponseCode.INSUFFICIENT_PERMISSIONS, reason)
    refused(lambda: there.do(invalid, ANN, "cli"), ResponseCode.INVALID_HANDLE, "PILIN")


def test_expired_token_is_refused(here: Registry, machine: Machine) -> None:
    secret = make(here, ANN, scope("create"), days=2)
    identity = authenticated(here, secret.text())
    machine.run((2 * DAY - 1) * SECOND)
    assert authenticated(here, secret.text()) == identity
    machine.run(SECOND)
    words = f"Token {secret.id} has expired"
    refused(lambda: authenticated(here, secret.text()), ResponseCode.AUTHENTICATION_FAILED, words)
    before = size(here)
    refused(lambda: here.do(NEW, identity, "http"), ResponseCode.AUTHENTICATION_FAILED, words)
    assert size(here) == before


def test_revoked_token_is_refused(here: Registry) -> None:
    secret = make(here, ANN, scope("create"))
    identity = authenticated(here, secret.text())
    here.do(RevokeToken(secret.id), ANN, "cli")
    words = f"Token {secret.id} was revoked"
    refused(lambda: authenticated(here, secret.text()), ResponseCode.AUTHENTICATION_FAILED, words)
    refused(lambda: here.do(NEW, identity, "http"), ResponseCode.AUTHENTICATION_FAILED, words)
    assert not here.explain(NEW, identity, "http").allowed
    refused(lambda: here.resolve(Query(X), identity), ResponseCode.AUTHENTICATION_FAILED, words)


@dataclass(frozen=True)
class Meanwhile:
    """A command with a callback between decision and commit."""

    operation: Command[ChangeResult]
    happens: list[Callable[[], object]]

    def decide(self, context: Context) -> Plan[ChangeResult]:
        plan = self.operation.decide(context)
        if self.happens:
            self.happens.pop()()
        return plan


@pytest.mark.parametrize("seen_before", [False, True])
def test_token_revoked_before_commit_changes_nothing(here: Registry, seen_before: bool) -> None:
    secret = make(here, ANN, scope("create"))
    identity = authenticated(here, secret.text())
    if seen_before:  # so that the token's record is remembered, and not read for the decision
        here.do(Create(handle("12345/before"), (URL,)), identity, "http")
    late = Meanwhile(NEW, [lambda: here.do(RevokeToken(secret.id), SERVER, "cli")])
    refused(lambda: here.do(late, identity, "http"), ResponseCode.AUTHENTICATION_FAILED, "was revoked")
    with here.snapshot() as snapshot:
        assert not snapshot.stored(handle("12345/new")).exists


@pytest.mark.parametrize(
    "change",
    [
        Modify(handle("0.NA/12345"), (key(300, "another secret"),)),
        Remove(handle("0.NA/12345"), (300,)),
        Modify(handle("0.NA/12345"), (replace(key(300, "a secret"), type="DESC"),)),
    ],
)
def test_token_is_refused_after_the_issuer_key_changed(here: Registry, change: Command[ChangeResult]) -> None:
    secret = make(here, ANN, scope("create"))
    identity = authenticated(here, secret.text())
    late = Meanwhile(NEW, [lambda: here.do(change, OPERATOR, "cli")])
    refused(
        lambda: here.do(late, identity, "http"),
        ResponseCode.AUTHENTICATION_FAILED,
        "is no longer valid: the key of its issuer",
    )
    refused(
        lambda: authenticated(here, secret.text()),
        ResponseCode.AUTHENTICATION_FAILED,
        "300:0.NA/12345",
    )
    assert tokens.get_token(here, OPERATOR, secret.id).state(here.now()) == "key_changed"


def test_other_changes_of_the_issuer_record_keep_the_token_active(here: Registry) -> None:
    secret = make(here, ANN, scope("create"))
    here.do(Add(handle("0.NA/12345"), (URL,)), OPERATOR, "cli")
    here.do(Modify(handle("0.NA/12345"), (key(301, "another secret"),)), OPERATOR, "cli")
    here.do(NEW, authenticated(here, secret.text()), "http")


def test_group_token_ends_with_the_group_not_with_its_members(there: Registry) -> None:
    prefix = handle("0.NA/12345")
    group = Value(200, "HS_VLIST", bytes(4))
    there.do(Add(prefix, (group, admin(110, "200:0.NA/12345"))), OPERATOR, "cli")
    identity = KeyIdentity(ValueRef(200, "0.NA/12345"), Proof.FILE_PERMISSION)
    secret = make(there, identity, scope("create"))
    members = Value(200, "HS_VLIST", (1).to_bytes(4, "big") + (3).to_bytes(4, "big") + b"1/a" + bytes(4))
    there.do(Modify(prefix, (members,)), OPERATOR, "cli")
    authenticated(there, secret.text())
    there.do(Remove(prefix, (200,)), OPERATOR, "cli")
    refused(lambda: authenticated(there, secret.text()), ResponseCode.AUTHENTICATION_FAILED)


def test_token_loses_the_permissions_of_its_issuer(here: Registry) -> None:
    identity = shown(here, ANN, scope("create", "update"))
    change = Modify(X, (replace(URL, data=b"https://example.net/"),))
    assert here.explain(change, identity, "http").allowed
    here.do(Modify(X, (admin(100, "1:1/somebody-else"),)), OPERATOR, "cli")
    refused(lambda: here.do(change, identity, "http"), ResponseCode.INVALID_ADMIN)
    here.do(NEW, identity, "http")
    here.do(Remove(handle("0.NA/12345"), (100,)), OPERATOR, "cli")
    refused(lambda: here.do(Create(handle("12345/2"), (URL,)), identity, "http"), ResponseCode.INVALID_ADMIN)


def test_token_finds_records_only_with_the_scope_to_find(here: Registry) -> None:
    def found(*scopes: str) -> list[str]:
        with here.snapshot() as snapshot:
            page = find(snapshot, shown(here, ANN, scope(*scopes)), Search(type="URL"))
        return [item.handle for item in page.items]

    assert found("read", "find") == [str(X)]
    assert found("read", "mint") == []


def test_issuer_without_an_index_gives_no_more_permissions(there: Registry) -> None:
    """Outside sessions a reference to the verified key does not match it, and neither its token."""
    there.do(Add(handle("0.NA/12345"), (admin(120, "0:0.NA/12345", AdminPermission.MODIFY_ADMIN),)), OPERATOR, "cli")
    anyone = KeyIdentity(ValueRef(0, "0.NA/12345"), Proof.SECRET_KEY, verified_index=300)
    assert not there.explain(NEW, anyone, "http").allowed
    identity = shown(there, anyone, scope("create"))
    assert str(identity.issuer) == "0:0.NA/12345"
    assert not there.explain(NEW, identity, "http").allowed
    within = replace(anyone, session=True)
    assert there.explain(NEW, within, "native").allowed
    assert there.explain(NEW, shown(there, within, scope("create")), "http").allowed


# Who makes and revokes


@pytest.mark.parametrize(
    ("identity", "places", "code"),
    [
        (OPERATOR, None, None),
        (SERVER, None, None),
        (SERVER, ["12345"], None),
        (ANN, ["12345"], None),
        (ANN, ["12345", "20.500"], None),
        (ANN, ["12345.*"], None),
        (BEA, ["12345"], None),
        (BEA, ["12345", "20.500"], ResponseCode.INVALID_ADMIN),
        (BEA, ["20.*"], ResponseCode.INVALID_ADMIN),
        (ANN, None, ResponseCode.INVALID_ADMIN),
        (STRANGER, ["12345"], ResponseCode.INVALID_ADMIN),
        (NOBODY, ["12345"], ResponseCode.AUTHENTICATION_NEEDED),
    ],
)
def test_who_can_create_tokens(
    here: Registry, identity: Identity, places: list[str] | None, code: ResponseCode | None
) -> None:
    if code is None:
        make(here, identity, scope("read", where=places))
    else:
        refused(lambda: make(here, identity, scope("read", where=places)), code)


def test_token_cannot_create_tokens_and_revokes_only_itself(there: Registry) -> None:
    identity = shown(there, OPERATOR, ScopeSet.of(Scope, None))
    refused(lambda: make(there, identity), ResponseCode.INSUFFICIENT_PERMISSIONS, "tokens cannot do this")
    other = make(there, OPERATOR)
    refused(lambda: there.do(RevokeToken(other.id), identity, "http"), ResponseCode.HANDLE_NOT_FOUND)
    there.do(RevokeToken(identity.token), identity, "http")
    refused(lambda: there.do(NEW, identity, "http"), ResponseCode.AUTHENTICATION_FAILED)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"seconds": 0}, ResponseCode.INVALID_VALUE, "at most 400 days"),
        ({"seconds": -1}, ResponseCode.INVALID_VALUE, "at most 400 days"),
        ({"seconds": MAX_DAYS * DAY + 1}, ResponseCode.INVALID_VALUE, "at most 400 days"),
        ({"label": "x" * 201}, ResponseCode.INVALID_VALUE, "one printable line"),
        ({"label": "two\nlines"}, ResponseCode.INVALID_VALUE, "one printable line"),
        ({"label": "\ud800"}, ResponseCode.INVALID_VALUE, "one printable line"),
        ({"scope": scope("read", where=["777"])}, ResponseCode.SERVER_NOT_RESP, "This server does not host prefix 777"),
        ({"scope": scope("read", where=["0.NA"])}, ResponseCode.INVALID_HANDLE, "reserved for the system"),
        ({"scope": scope("read", where=["0.SITE"])}, ResponseCode.INVALID_HANDLE, "reserved for the system"),
    ],
)
def test_invalid_token_parameters_are_refused(
    there: Registry, change: dict[str, object], code: ResponseCode, words: str
) -> None:
    order = replace(CreateToken(Secret.new(secrets.token_bytes), scope("read")), **change)  # type: ignore[arg-type]
    before = size(there)
    refused(lambda: there.do(order, OPERATOR, "cli"), code, words)
    assert size(there) == before


def test_issuer_without_a_local_key_is_refused(there: Registry) -> None:
    there.do(Add(handle("0.NA/12345"), (admin(130, "300:99999/far"),)), OPERATOR, "cli")
    refused(lambda: make(there, key_holder(300, "99999/far")), ResponseCode.INVALID_ADMIN, "is not stored here")
    there.do(Add(handle("0.NA/12345"), (admin(131, "999:0.NA/12345"),)), OPERATOR, "cli")
    refused(lambda: make(there, key_holder(999, "0.NA/12345")), ResponseCode.INVALID_ADMIN, "is not stored here")


def test_duplicate_id_is_refused(there: Registry) -> None:
    secret = make(there, ANN)
    again = CreateToken(Secret(secret.id, bytes(32)), scope("read"))
    refused(lambda: there.do(again, OPERATOR, "cli"), ResponseCode.HANDLE_ALREADY_EXISTS, "already")
    there.do(RevokeToken(secret.id), ANN, "cli")
    refused(lambda: there.do(again, OPERATOR, "cli"), ResponseCode.HANDLE_ALREADY_EXISTS, "already")


def test_token_defaults(there: Registry) -> None:
    made = there.do(CreateToken(Secret.new(secrets.token_bytes), scope("read")), ANN, "cli")
    assert made.expires - made.created == DEFAULT_DAYS * DAY
    assert made.created == there.now()


@pytest.mark.parametrize(
    ("identity", "may"),
    [(OPERATOR, True), (SERVER, True), (ANN, True), (BEA, True), (STRANGER, False), (NOBODY, False)],
)
def test_who_can_revoke_tokens(here: Registry, identity: Identity, may: bool) -> None:
    """Users who could have created it, and its issuer."""
    by_bea = make(here, BEA)
    if may:
        here.do(RevokeToken(by_bea.id), identity, "cli")
        before = size(here)
        here.do(RevokeToken(by_bea.id), identity, "cli")
        assert size(here) == before, "once is enough"
    else:
        with pytest.raises(Refused):
            here.do(RevokeToken(by_bea.id), identity, "cli")
        authenticated(here, by_bea.text())


@pytest.mark.parametrize("identity", [STRANGER, NOBODY])
def test_hidden_token_looks_missing(here: Registry, identity: Identity) -> None:
    """The response is the same as for an id that does not exist."""
    there_is, gone = make(here, ANN), make(here, OPERATOR, scope("read", where=None))
    here.do(RevokeToken(gone.id), OPERATOR, "cli")
    said: set[tuple[object, ...]] = set()
    for token in (there_is.id, gone.id, "zzzzzzzz"):
        with pytest.raises(Refused) as caught:
            here.do(RevokeToken(token), identity, "cli")
        problem = caught.value
        said.add((problem.code, problem.reason.replace(token, "…"), problem.advice, problem.rule))
        explained = here.explain(RevokeToken(token), identity, "http")
        said.add((explained.code, explained.reason.replace(token, "…"), explained.advice, explained.rule))
    assert len(said) == 1, said
    authenticated(here, there_is.text())


def test_issuer_can_revoke_without_current_permission(there: Registry) -> None:
    secret = make(there, BEA)
    there.do(Remove(handle("0.NA/12345"), (101,)), OPERATOR, "cli")
    there.do(RevokeToken(secret.id), BEA, "cli")


@pytest.mark.parametrize("token", ["zzzzzzzz", "", "../x", "ABCDEFGH", "x" * 5_000])
def test_missing_token_is_not_found(there: Registry, token: str) -> None:
    refused(lambda: there.do(RevokeToken(token), OPERATOR, "cli"), ResponseCode.HANDLE_NOT_FOUND, "does not exist")
    refused(lambda: tokens.get_token(there, OPERATOR, token), ResponseCode.HANDLE_NOT_FOUND, "does not exist")


# Listed


def listed(registry: Registry, identity: Identity, limit: int = 100) -> list[tokens.TokenStatus]:
    found: list[tokens.TokenStatus] = []
    after = ""
    while True:
        page, following = tokens.list_tokens(registry, identity, after, limit)
        assert len(page) <= limit
        found += page
        if following is None:
            return found
        after = following


def test_who_can_see_tokens(here: Registry) -> None:
    everywhere = make(here, OPERATOR, scope("read", where=None)).id
    both = make(here, ANN, scope("read", where=["12345", "20.500"])).id
    ann, bea = make(here, ANN).id, make(here, BEA).id
    assert {each.token.id for each in listed(here, OPERATOR)} == {everywhere, both, ann, bea}
    assert {each.token.id for each in listed(here, SERVER)} == {everywhere, both, ann, bea}
    assert {each.token.id for each in listed(here, ANN)} == {both, ann, bea}
    assert {each.token.id for each in listed(here, BEA)} == {ann, bea}
    assert listed(here, STRANGER) == listed(here, NOBODY) == []
    identity = shown(here, OPERATOR, ScopeSet.of(Scope, None))
    assert [each.token.id for each in listed(here, identity)] == [identity.token]
    refused(lambda: tokens.get_token(here, BEA, both), ResponseCode.HANDLE_NOT_FOUND)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_tokens_are_paged(there: Registry, limit: int) -> None:
    made = sorted(make(there, ANN if number % 3 else OPERATOR, scope("read")).id for number in range(7))
    assert [each.token.id for each in listed(there, OPERATOR, limit)] == made


def test_paging_loses_no_token_when_the_search_is_exhausted(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search per request is limited; the page ends there, and the next one has the rest."""
    deep = handle("12345/deep")
    groups = [Value(number, "HS_VLIST", ValueList((ref(f"{number + 1}:{deep}"),)).to_bytes()) for number in range(1, 5)]
    last = Value(5, "HS_VLIST", ValueList((STRANGER.reference,)).to_bytes())
    there.do(Create(deep, (*groups, last, OWN)), OPERATOR, "cli")
    for number in range(6):
        rights = admin(100, f"1:{deep}" if number % 2 else "1:1/x", AdminPermission.MODIFY_ADMIN)
        add_namespace(there, f"70.{number}", "free", rights)
    every = {number: make(there, OPERATOR, scope("read", where=[f"70.{number}"])).id for number in range(6)}
    twice = make(there, OPERATOR, scope("read", where=["70.1", "70.3"])).id
    seen = sorted([every[1], every[3], every[5], twice])
    for most in (6, 7, 12, 13, 1_000):  # one for who runs the server, and five for the groups
        monkeypatch.setattr(authorization, "MAX_GROUP_LOOKUPS", most)
        assert [each.token.id for each in listed(there, STRANGER)] == seen, most
    monkeypatch.setattr(authorization, "MAX_GROUP_LOOKUPS", 5)
    assert listed(there, STRANGER) == [], "what takes more than there is counts as no right, as everywhere"


def test_token_status(here: Registry, machine: Machine) -> None:
    secret = make(here, ANN, scope("create"), label="the catalogue", days=10)
    found = tokens.get_token(here, ANN, secret.id)
    assert (found.token.label, found.token.issuer, found.token.scope) == ("the catalogue", str(ANN), scope("create"))
    assert (found.used, found.revoked, found.state(here.now())) == (None, None, "active")
    machine.run(11 * DAY * SECOND)
    assert found.state(here.now()) == "expired"
    assert not found.is_active(here.now())
    here.do(RevokeToken(secret.id), ANN, "cli")
    (gone,) = listed(here, ANN)
    assert (gone.state(here.now()), gone.revoked) == ("revoked", here.now())
    assert gone.seq == found.seq


# Used


def use(uses: TokenUses, registry: Registry, secret: Secret) -> None:
    """Use a token, and wait until that is recorded."""
    uses.note(secret.id)
    registry.ledger.change(EndJob("no job"))  # committed after what was submitted before


def test_day_of_use_is_written_once_a_day(here: Registry, machine: Machine) -> None:
    secret = make(here, ANN)
    log = here.ledger.log
    assert idempotency.last_used_days(log) == {}
    one, another = TokenUses(here), TokenUses(here)
    use(one, here, secret)
    today = here.now() // DAY
    assert idempotency.last_used_days(log) == {secret.id: today}
    assert tokens.get_token(here, ANN, secret.id).used == today * DAY
    use(another, here, secret)
    machine.run(DAY * SECOND)
    for _ in range(3):
        use(one, here, secret)
    assert idempotency.last_used_days(log) == {secret.id: today + 1}


def test_second_use_on_a_day_writes_nothing(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = make(there, ANN)
    calls: list[object] = []
    known = TokenUses(there)

    def submit(request: object) -> list[Future[Outcome]]:
        calls.append(request)
        return [Future()]  # never done: nothing waits for it

    monkeypatch.setattr(there.ledger, "submit", submit)
    for _ in range(5):
        known.note(secret.id)
    assert calls == [idempotency.RecordUse(secret.id, there.now() // DAY)]


def fail_at_once(*_: object) -> list[Future[Outcome]]:
    raise Contention("somebody else writes")


def fail_later(*_: object) -> list[Future[Outcome]]:
    future: Future[Outcome] = Future()
    future.set_exception(OSError("the connection is lost"))
    return [future]


def fail_in_commit(*_: object) -> list[Future[Outcome]]:
    future: Future[Outcome] = Future()
    future.set_result(Failed(ValueError("no such table")))
    return [future]


@pytest.mark.parametrize("submit", [fail_at_once, fail_later, fail_in_commit])
def test_use_succeeds_if_it_cannot_be_recorded(
    there: Registry, monkeypatch: pytest.MonkeyPatch, submit: Callable[..., list[Future[Outcome]]]
) -> None:
    secret = make(there, ANN)
    known = TokenUses(there)
    with monkeypatch.context() as patch:
        patch.setattr(there.ledger, "submit", submit)
        known.note(secret.id)
    assert tokens.get_token(there, ANN, secret.id).used is None
    use(known, there, secret)
    assert tokens.get_token(there, ANN, secret.id).used is not None


def test_use_is_not_sent_while_changes_are_refused(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = make(there, ANN)
    known = TokenUses(there)
    there.ledger.log.set_read_only("")
    with pytest.raises(ReadOnlyMode):
        there.ledger.change(EndJob("no job"))
    with monkeypatch.context() as patch:
        patch.setattr(there.ledger, "submit", lambda *_: pytest.fail("it is sent"))
        known.note(secret.id)
    there.ledger.log.set_read_only(None)
    until(lambda: there.ledger.write_problem is None)
    use(known, there, secret)
    assert tokens.get_token(there, ANN, secret.id).used is not None


# Changes of many records


def fill(registry: Registry, prefix: str, count: int = 3) -> None:
    for number in range(count):
        values = (Value.text(1, "URL", f"http://old.example/{number}"), OWN)
        registry.do(Create(handle(f"{prefix}/{number}"), values), OPERATOR, "cli")


ORDER = Rewrite("http://old.example/*", "https://new.example/*")


def run_rewrite(registry: Registry, identity: Identity, order: Rewrite = ORDER) -> UnitOperation:
    job = rewrite.start(registry, order, identity, "http", "", 0)
    list(run_steps(registry, job, identity))
    return runner.find_job(registry, identity, job.id)


def test_job_needs_the_scopes_of_its_changes(there: Registry) -> None:
    fill(there, "12345")
    fill(there, "20.500")
    order = replace(ORDER, prefix="12345")
    reads = shown(there, ANN, scope("find"))
    refused(lambda: run_rewrite(there, reads, order), ResponseCode.INSUFFICIENT_PERMISSIONS, "update")
    writes = shown(there, ANN, scope("find", "update"))
    done = run_rewrite(there, writes)
    assert done.done == 3, "only the namespace of the token is seen, and changed"
    assert done.actor == str(writes)
    assert [each.id for each in runner.list_jobs(there, writes)] == [done.id]
    assert done.id not in [each.id for each in runner.list_jobs(there, reads)]
    undone = undo.start(there, done.id, writes, "http")
    list(run_steps(there, undone, writes))
    assert runner.find_job(there, writes, undone.id).done == 3


@pytest.mark.parametrize("lacking", ["update", "transfer"])
def test_undo_needs_the_scopes_of_the_inverse(there: Registry, lacking: str) -> None:
    fill(there, "12345", 2)
    if lacking == "update":
        name = run_rewrite(there, OPERATOR, replace(ORDER, prefix="12345")).id
    else:
        name = run_transfer(there, TransferAll("12345/0", ValueRef(301, "0.NA/12345")), OPERATOR).id
    identity = shown(there, OPERATOR, ScopeSet.of([word for word in Scope if word.value != lacking], None))
    refused(lambda: undo.start(there, name, identity, "http"), ResponseCode.INSUFFICIENT_PERMISSIONS, lacking)
    may = shown(there, OPERATOR, ScopeSet.of([lacking, "admin"], None))
    job = undo.start(there, name, may, "http")
    refused(lambda: list(run_steps(there, job, identity)), ResponseCode.INSUFFICIENT_PERMISSIONS, lacking)
    list(run_steps(there, job, may))
    assert runner.find_job(there, OPERATOR, job.id).ended_at


def test_transfer_of_a_namespace_needs_its_scope(there: Registry) -> None:
    fill(there, "12345", 2)
    what = TransferAll("12345", ValueRef(301, "0.NA/12345"))
    before = size(there)
    lacks = shown(there, OPERATOR, scope("find", "update", "namespaces"))
    refused(lambda: run_transfer(there, what, lacks), ResponseCode.INSUFFICIENT_PERMISSIONS, "transfer")
    names = shown(there, OPERATOR, scope("transfer"))
    refused(lambda: run_transfer(there, what, names), ResponseCode.INSUFFICIENT_PERMISSIONS, "namespaces")
    assert (size(there), list(runner.list_jobs(there, OPERATOR))) == (before + 2, []), (
        "nothing was started; two are tokens"
    )
    assert run_transfer(there, replace(what, where="12345/0"), names).done == 1, "names alone take one word"
    both = shown(there, OPERATOR, scope("transfer", "namespaces"))
    assert run_transfer(there, what, both).ended_at


def test_rewrite_ends_when_its_token_is_revoked(there: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 1)
    fill(there, "12345", 3)
    identity = shown(there, OPERATOR, scope("find", "update"))
    job = rewrite.start(there, ORDER, identity, "http", "", 0)
    steps = run_steps(there, job, identity)
    next(steps)
    there.do(RevokeToken(identity.token), OPERATOR, "cli")
    refused(lambda: list(steps), ResponseCode.AUTHENTICATION_FAILED, "was revoked")


@dataclass(frozen=True)
class Thoughtless:
    """A command that forgot to require a permission."""

    def decide(self, context: Context) -> Plan[None]:
        stored = context.snapshot.stored(handle("12345/new"))
        return Plan(lambda _: None, (context.draft(stored, Action.CREATE, (URL,)),))


def test_command_without_requirements_is_refused_to_tokens(there: Registry) -> None:
    identity = shown(there, OPERATOR, ScopeSet.of(Scope, None))
    refused(
        lambda: there.do(Thoughtless(), identity, "http"),
        ResponseCode.INSUFFICIENT_PERMISSIONS,
        "Tokens cannot do this",
    )
    there.do(Thoughtless(), OPERATOR, "cli")


# Kept


def test_backup_contains_tokens_and_their_last_use(here: Registry, tmp_path: Path, machine: Machine) -> None:
    secret, gone = make(here, ANN, scope("create")), make(here, ANN)
    authenticated(here, secret.text())
    here.do(RevokeToken(gone.id), ANN, "cli")
    before = listed(here, OPERATOR)
    save_backup(here.ledger.log, tmp_path / "backup")
    store = Store.sqlite(tmp_path / "again.db")
    store.upgrade()
    log = Log(store, machine.clock(), random.Random(3).randbytes)
    restore([tmp_path / "backup"], log, lambda origin: Signer.generate(origin, bytes(32)), ("cli", "local:alice"))
    with reopened(log, tmp_path) as again:
        assert listed(again, OPERATOR) == before
        again.do(NEW, authenticated(again, secret.text()), "http")
        refused(lambda: authenticated(again, gone.text()), ResponseCode.AUTHENTICATION_FAILED, "revoked")


@contextmanager
def reopened(log: Log, folder: Path) -> Iterator[Registry]:
    """A registry over an existing ledger."""
    with Ledger(log, Answers(folder / "again")) as ledger:
        yield Registry(ledger, RULES)


def test_nodes_share_tokens(where: str, tmp_path: Path, machine: Machine) -> None:
    first = open_store(where)
    first.upgrade()
    with registry_on(first, tmp_path, machine, RULES) as one:
        furnish(one)
        with reopened(Log(open_store(where), machine.clock(), random.Random(5).randbytes), tmp_path) as other:
            secret = make(one, ANN, scope("create"))
            identity = authenticated(other, secret.text())
            other.do(Create(handle("12345/1"), (URL,)), identity, "http")
            one.do(RevokeToken(secret.id), ANN, "cli")
            refused(lambda: other.do(NEW, identity, "http"), ResponseCode.AUTHENTICATION_FAILED, "revoked")


def test_token_of_a_removed_namespace_can_be_revoked(there: Registry) -> None:
    """A token for a removed namespace is useless, and can be revoked."""
    add_namespace(there, "777")
    secret = make(there, OPERATOR, scope("create", where=["777"]))
    identity = authenticated(there, secret.text())
    there.do(Home("0.NA/777", unhome=True), OPERATOR, "cli")
    refused(lambda: there.do(Create(handle("777/x"), (URL,)), identity, "http"), ResponseCode.SERVER_NOT_RESP)
    there.do(RevokeToken(secret.id), OPERATOR, "cli")

"""Users: add, list, disable and reset; what ends with a key; and secrets that stay secret."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perseid.ledger.errors import TooBusy
from perseid.ledger.log.commit import CommitReader
from perseid.ledger.log.reader import LogReader
from perseid.names import pilin
from perseid.names.handle import Handle
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.access import tokens
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken, list_tokens
from perseid.registry.commands.access import Grant
from perseid.registry.commands.records import Add, Create, Modify
from perseid.registry.commands.users import AddUser, DisableUser, NewUserKey, ResetUser, UserResult, find_tokens
from perseid.registry.identity import Identity, KeyIdentity, Proof
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.access import UserCursor, UserInfo, list_users
from perseid.registry.queries.history import get_history
from perseid.registry.queries.resolve import Query
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, PrefixNotHosted, Refused, StateConflict
from perseid.schema.access import KeyState
from perseid.wire.codes import ResponseCode
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, key_holder, registry_in_memory

ROOT = key_holder(300, "0.NA/12345")
ANN = key_holder(300, "12345/ann")
CREATOR = "102.100.272/0N8J991QH"
KEY = NewUserKey(secret="ann's secret")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_in_memory() as made:
        for prefix, profile in (("12345", "free"), ("102.100.272", "pilin")):
            values = administrator_values(prefix, (ROOT.reference,), "root" if prefix == "12345" else None)
            creator = CREATOR if profile == "pilin" else ""
            policy = with_group_administrators(replace(PROFILES[profile], default_creator=creator))
            add_namespace(made, prefix, policy, *values)
        named = Value.text(1, PROFILES["pilin"].creator_type, CREATOR)
        made.do(Create(handle(CREATOR), (named,)), OPERATOR, "cli")
        yield made


def add(made: Registry, name: str = "ann", key: NewUserKey = KEY, by: Identity = ROOT, email: str = "") -> UserResult:
    return made.do(AddUser("12345", name, key, email), by, "cli")


def values_of(made: Registry, name: str) -> dict[int, Value]:
    with made.snapshot() as snapshot:
        return {value.index: value for value in snapshot.stored(Handle.parse(name)).values}


def users(made: Registry, prefix: str = "12345", by: Identity = ROOT, limit: int = 100) -> list[UserInfo]:
    found: list[UserInfo] = []
    after: UserCursor | None = None
    with made.snapshot() as snapshot:
        while True:
            page, after = list_users(made.context(snapshot, by, "cli"), prefix, after, limit)
            found += page
            if after is None:
                return found


def code_of(made: Registry, command: object, by: Identity) -> ResponseCode:
    with pytest.raises(Refused) as caught:
        made.do(command, by, "cli")  # type: ignore[arg-type]
    return caught.value.code


def token(made: Registry, by: Identity) -> str:
    secret = Secret.new(secrets.token_bytes)
    made.do(CreateToken(secret, ScopeSet.of(["read"], ["12345"])), by, "cli")
    return secret.id


def test_user_has_a_key_and_administers_itself(registry: Registry) -> None:
    result = add(registry, email="ann@example.org")
    assert result.identity == "300:12345/ann"
    values = values_of(registry, "12345/ann")
    assert [(value.index, value.type) for value in values.values()] == [
        (2, "EMAIL"), (100, "HS_ADMIN"), (101, "HS_ADMIN"), (300, "HS_SECKEY"),
    ]  # fmt: skip
    assert values[300].data == b"ann's secret"
    assert not values[300].is_public
    assert Admin.from_bytes(values[100].data).administrator == ValueRef(200, "0.NA/12345")
    assert Admin.from_bytes(values[101].data).administrator == ANN.reference
    registry.do(Modify(handle("12345/ann"), (Value.text(2, "EMAIL", "ann@example.com"),)), ANN, "cli")
    assert (
        code_of(registry, Add(handle("12345/ann"), (admin(102, "300:12345/eve"),)), ANN) is ResponseCode.INVALID_ADMIN
    )
    assert code_of(registry, AddUser("12345", "ann", KEY), ROOT) is ResponseCode.HANDLE_ALREADY_EXISTS


def test_public_key_is_public(registry: Registry) -> None:
    add(registry, "bob", NewUserKey(public=b"\0\0\0\x0bRSA_PUB_KEY"))
    assert (values_of(registry, "12345/bob")[300].type, values_of(registry, "12345/bob")[300].is_public) == (
        "HS_PUBKEY",
        True,
    )


def test_handle_is_minted_where_the_namespace_mints(registry: Registry) -> None:
    result = registry.do(AddUser("102.100.272", "Ann Example", KEY), ROOT, "cli")
    assert pilin.decode(result.handle.suffix)
    values = values_of(registry, str(result.handle))
    assert values[1].data == b"Ann Example"
    assert Admin.from_bytes(values[101].data).administrator == ValueRef(300, str(result.handle))
    assert [(user.name, user.handle) for user in users(registry, "102.100.272")] == [
        ("Ann Example", str(result.handle))
    ]


def test_only_administrators_of_the_prefix_add_users(registry: Registry) -> None:
    add(registry)
    registry.do(Grant(ANN.reference, ("editor", "minter"), "12345"), ROOT, "cli")
    assert code_of(registry, AddUser("12345", "eve", KEY), ANN) is ResponseCode.INVALID_ADMIN
    assert code_of(registry, AddUser("12345", "eve", KEY), NOBODY) is ResponseCode.AUTHENTICATION_NEEDED
    for command, kind in (
        (AddUser("99", "eve", KEY), PrefixNotHosted),
        (AddUser("12345", "e\nve", KEY), Refused),
        (AddUser("1/2", "eve", KEY), InvalidRequest),
    ):
        with pytest.raises(kind):
            registry.do(command, ROOT, "cli")


def test_tokens_are_found_before_the_commit_that_revokes_them(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens are read, and nobody can write meanwhile inside a commit. The number in one commit is bounded."""
    add(registry)
    any_key = KeyIdentity(ValueRef(0, "12345/ann"), Proof.SECRET_KEY)
    grants = tuple(admin(index, reference) for index, reference in ((150, "0:12345/ann"), (151, "300:12345/ann")))
    registry.do(Add(handle("0.NA/12345"), grants), OPERATOR, "cli")
    pages: list[type] = []
    names_page = LogReader.names_page

    def note_page(reader: LogReader, *arguments: Any) -> Any:
        pages.append(type(reader))
        return names_page(reader, *arguments)

    monkeypatch.setattr(LogReader, "names_page", note_page)
    monkeypatch.setattr(tokens, "MAX_REVOKED", 2)
    for identity in (ANN, ANN, any_key, ROOT):
        token(registry, identity)
    with registry.snapshot() as snapshot:
        command = find_tokens(DisableUser(handle("12345/ann")), registry.context(snapshot, ROOT, "cli"))
    later = token(registry, any_key)
    assert registry.do(command, ROOT, "cli").tokens == 4
    assert pages
    assert CommitReader not in pages
    states = {each.token.id: each.is_active(registry.now()) for each in list_tokens(registry, OPERATOR)[0]}
    assert sorted(states.values()) == [False] * 4 + [True], "that of the administrator"
    assert not states[later]
    monkeypatch.setattr(tokens, "MAX_LATER", 0)
    with pytest.raises(TooBusy):
        registry.do(command, ROOT, "cli")
    monkeypatch.setattr(tokens, "MAX_REVOKED", 0)
    registry.do(ResetUser(handle("12345/ann"), NewUserKey(secret="new")), ROOT, "cli")
    token(registry, any_key)
    with pytest.raises(StateConflict, match="more than 0 tokens"):
        registry.do(DisableUser(handle("12345/ann")), ROOT, "cli")
    assert code_of(registry, DisableUser(handle("12345/ann")), NOBODY) is ResponseCode.AUTHENTICATION_NEEDED


def test_disabled_user_has_no_key_session_or_token_and_can_be_reset(registry: Registry) -> None:
    add(registry)
    registry.do(Grant(ANN.reference, ("owner",), "12345"), ROOT, "cli")
    any_key = KeyIdentity(ValueRef(0, "12345/ANN"), Proof.SECRET_KEY)  # in any spelling
    registry.do(Add(handle("0.NA/12345"), (admin(150, "0:12345/ANN"),)), OPERATOR, "cli")
    token(registry, ANN)
    token(registry, any_key)
    kept = token(registry, ROOT)
    with registry.snapshot() as snapshot:
        size = snapshot.reader.size
    result = registry.do(DisableUser(handle("12345/ann")), ROOT, "cli")
    assert (result.keys, result.tokens, result.seq) == ((300,), 2, size + 1)
    with registry.snapshot() as snapshot:
        assert snapshot.reader.size == size + 3
    assert 300 not in values_of(registry, "12345/ann")
    active = [each.token.id for each in list_tokens(registry, OPERATOR)[0] if each.is_active(registry.now())]
    assert active == [kept]
    again = registry.do(DisableUser(handle("12345/ann")), ROOT, "cli")
    assert (again.keys, again.tokens, again.seq) == ((), 0, result.seq)
    assert [(user.handle, user.state) for user in users(registry)] == [
        ("12345/ann", KeyState.DISABLED),
        ("0.NA/12345", KeyState.ACTIVE),
    ]
    reset = registry.do(ResetUser(handle("12345/ann"), NewUserKey(secret="another")), ROOT, "cli")
    assert reset.identity == "300:12345/ann"
    assert values_of(registry, "12345/ann")[300].data == b"another"
    again = registry.do(ResetUser(handle("12345/ann"), NewUserKey(secret="third")), ROOT, "cli")
    assert values_of(registry, "12345/ann")[300].data == b"third"


def test_secret_is_in_no_history_or_repr(registry: Registry) -> None:
    add(registry)
    registry.do(ResetUser(handle("12345/ann"), NewUserKey(secret="the new one")), ROOT, "cli", "why")
    registry.do(DisableUser(handle("12345/ann")), ROOT, "cli")
    with registry.snapshot() as snapshot:
        history = get_history(snapshot, OPERATOR, handle("12345/ann"), None, 10)
        assert "secret" not in repr(history).lower().replace("hs_seckey", "")
        raw = b"".join([content or b"" for seq in range(1, snapshot.reader.size + 1)
                        for content in [slot.content for slot in snapshot.reader.entry(seq).values]])  # fmt: skip
    assert b"ann's secret" not in raw
    assert b"the new one" not in raw
    assert "ann's" not in repr(AddUser("12345", "ann", KEY))


def test_users_cannot_disable_or_reset_others_or_themselves(registry: Registry) -> None:
    add(registry)
    add(registry, "bob")
    bob = key_holder(300, "12345/bob")
    registry.do(Grant(bob.reference, ("editor", "reader"), "12345"), ROOT, "cli")
    for by in (bob, ANN):
        assert code_of(registry, ResetUser(handle("12345/ann"), KEY), by) is ResponseCode.INVALID_ADMIN
    assert code_of(registry, DisableUser(handle("12345/ann")), bob) is ResponseCode.INVALID_ADMIN
    for by in (ANN, key_holder(300, "12345/ANN")):
        with pytest.raises(StateConflict):
            registry.do(DisableUser(handle("12345/ann")), by, "cli")
    # With an editor's permissions on the record of a user, somebody could read and replace the key, but not here.
    registry.do(Grant(bob.reference, ("editor",), "12345/ann"), ROOT, "cli")
    assert code_of(registry, ResetUser(handle("12345/ann"), KEY), bob) is ResponseCode.INVALID_ADMIN
    registry.do(Create(handle("12345/x"), (Value.text(1, "URL", "x"),)), OPERATOR, "cli")
    with pytest.raises(StateConflict):
        registry.do(ResetUser(handle("12345/x"), KEY), ROOT, "cli")
    assert code_of(registry, ResetUser(handle("12345/none"), KEY), ROOT) is ResponseCode.HANDLE_NOT_FOUND


def test_users_are_listed_page_by_page_for_those_who_can_see_them(registry: Registry) -> None:
    add(registry, email="ann@example.org")
    add(registry, "bob", NewUserKey(public=b"\0\0\0\x0bRSA_PUB_KEY"))
    private = Permission.ADMIN_READ | Permission.ADMIN_WRITE
    registry.do(Add(handle("12345/bob"), (Value(301, "HS_SECKEY", b"x", permissions=private),)), OPERATOR, "cli")
    found = users(registry)
    assert sorted(user.handle for user in found) == ["0.NA/12345", "12345/ann", "12345/bob"]
    assert users(registry, limit=1) == found
    by_handle = {user.handle: user for user in found}
    assert by_handle["12345/ann"].email == "ann@example.org"
    assert by_handle["12345/bob"].identities == ("300:12345/bob", "301:12345/bob")
    with pytest.raises(Refused) as caught:
        users(registry, by=NOBODY)
    assert caught.value.code is ResponseCode.AUTHENTICATION_NEEDED
    assert users(registry, "") == found
    assert [value.type for value in registry.resolve(Query(handle("12345/ann")), NOBODY).values] == [
        "EMAIL",
        "HS_ADMIN",
        "HS_ADMIN",
    ]


def test_disabled_user_leaves_no_group_in_place_of_a_key(registry: Registry) -> None:
    add(registry)
    add(registry, "bob")
    bob = key_holder(300, "12345/bob")
    registry.do(Grant(ANN.reference, ("owner",), "12345"), ROOT, "cli")
    group = Value(300, "HS_VLIST", ValueList((bob.reference,)).to_bytes())
    registry.do(Modify(handle("12345/ann"), (group,)), ANN, "cli")
    change = Add(handle("0.NA/12345"), (Value.text(1, "DESC", "mine"),))
    assert registry.explain(change, bob, "cli").allowed
    assert registry.do(DisableUser(handle("12345/ann")), ROOT, "cli").keys == (300,)
    assert not registry.explain(change, bob, "cli").allowed
    reset = registry.do(ResetUser(handle("12345/ann"), KEY), ROOT, "cli")
    assert (reset.identity, reset.warnings) == ("300:12345/ann", ())
    registry.do(Modify(handle("12345/ann"), (group,)), ANN, "cli")
    reset = registry.do(ResetUser(handle("12345/ann"), KEY), ROOT, "cli")
    assert (reset.identity, len(reset.warnings)) == ("300:12345/ann", 1)
    assert not registry.explain(change, bob, "cli").allowed


def test_only_administrator_of_a_prefix_is_not_disabled(registry: Registry) -> None:
    add(registry)
    with pytest.raises(StateConflict) as caught:
        registry.do(DisableUser(handle("0.NA/12345")), OPERATOR, "cli")
    assert "12345" in str(caught.value.advice)
    registry.do(Grant(ANN.reference, ("owner",), "12345"), ROOT, "cli")
    assert registry.do(DisableUser(handle("0.NA/12345")), OPERATOR, "cli").keys == (300,)
    assert 200 in values_of(registry, "0.NA/12345")
    with pytest.raises(StateConflict):
        registry.do(DisableUser(handle("12345/ann")), OPERATOR, "cli")


def test_reset_keeps_the_identity(registry: Registry) -> None:
    add(registry)
    registry.do(Add(handle("12345/ann"), (Value(3, "HS_PUBKEY", b"\0\0\0\x0bRSA_PUB_KEY"),)), ANN, "cli")
    assert registry.do(ResetUser(handle("12345/ann"), KEY), ROOT, "cli").identity == "300:12345/ann"
    keys = [Value(index, "HS_PUBKEY", b"\0\0\0\x0bRSA_PUB_KEY") for index in (3, 300)]
    registry.do(Create(handle("12345/old"), (*keys, admin(100, "200:0.NA/12345"))), OPERATOR, "cli")
    assert registry.do(ResetUser(handle("12345/old"), KEY), ROOT, "cli").identity == "300:12345/old"


def test_invalid_users_are_refused_before_the_commit(registry: Registry) -> None:
    for new in (
        AddUser("12345", "", KEY),
        AddUser("12345", "e\nve", KEY),
        AddUser("12345", "x" * 300, KEY),
        AddUser("12345", " eve", KEY),
        AddUser("12345", "eve", KEY, "e" * 300),
        AddUser("1/2", "eve", KEY),
    ):
        with registry.snapshot() as snapshot, pytest.raises(InvalidRequest):
            new.decide(registry.context(snapshot, ROOT, "cli"))


def test_hidden_handles_look_free_to_users_who_cannot_create_handles(registry: Registry) -> None:
    add(registry)
    registry.do(
        Add(handle("0.NA/12345"), (admin(150, "300:12345/ann", AdminPermission.MODIFY_ADMIN),)), OPERATOR, "cli"
    )
    registry.do(Create(handle("12345/hidden"), (Value.text(1, "URL", "x"),), published=False), OPERATOR, "cli")
    for name in ("hidden", "free"):
        assert code_of(registry, AddUser("12345", name, KEY), ANN) is ResponseCode.INVALID_ADMIN

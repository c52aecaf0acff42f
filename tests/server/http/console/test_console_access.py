"""Access in the console: who can do what, users and their secrets, tokens, and sessions."""

import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree as ET

import msgspec
import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import PartialValue, SetValues
from perseid.registry.policy.policy import PROFILES
from perseid.schema.access import Access, AccessEntry, AccessRole, KeyState
from perseid.server.http.console.access import _get_rights
from perseid.server.http.console.access_picture import MAX_IDENTITIES, count_omitted, draw_access
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import ADMINISTRATOR, OPERATOR

ACCESS = "/console/access?on=12345"
PILIN = "102.100.272"
SCRIPT = "<script>alert(1)</script>"


def add_user(user: ConsoleUser, name: str, **fields: str) -> str:
    """Add a user, and return the secret that the page shows."""
    user.get(ACCESS)
    user.submit("/users", name=name, **fields)
    return shown_secret(user)


def shown_secret(user: ConsoleUser) -> str:
    found = re.search(r'<code id="secret">([^<]+)</code>', user.page.body.decode())
    assert found is not None, user.text
    return unescape(found[1])


def grant(user: ConsoleUser, identity: str, role: str = "editor", on: str = "12345") -> None:
    user.get(f"/console/access?on={on}")
    user.submit("/access/grant", identity=identity, rights=role)


def revoke(user: ConsoleUser, identity: str, right: str = "") -> None:
    """Press the button of a row."""
    forms = user.forms("/access/revoke")
    user.post(
        "/console/access/revoke",
        next(form.fields for form in forms if form.fields["identity"] == identity and right in form.fields["rights"]),
    )


def rights_of(user: ConsoleUser, identity: str) -> list[str]:
    """The rights of an identity that can be revoked."""
    forms = user.forms("/access/revoke")
    return sorted([form.fields["rights"] for form in forms if form.fields["identity"] == identity])


def row_of(user: ConsoleUser, identity: str) -> str:
    """The row of an identity in the first table."""
    rows = re.findall(r"(?s)<tr>.*?</tr>", user.page.body.decode())
    return next((unescape(row) for row in rows if identity in row), "")


# Access


def test_access_names_the_administrators(user: ConsoleUser) -> None:
    user.get(ACCESS)
    assert "300:0.NA/12345" in user.text
    assert "owner" in user.text


def test_access_of_the_record_of_a_prefix_is_that_of_the_prefix(user: ConsoleUser) -> None:
    user.get("/console/access?on=0.na%2F12345")
    assert (user.page.status, user.alert) == (200, "")
    assert "Who can do what with 12345 " in user.text
    assert user.form("/grant").fields["on"] == "12345"


def test_prefix_is_chosen_if_the_user_has_only_one(user: ConsoleUser) -> None:
    user.get("/console/access")
    assert "Who can do what with 12345" in user.text


def test_role_is_given_and_revoked(user: ConsoleUser) -> None:
    add_user(user, "ann")
    grant(user, "ann")
    assert "Access was given." in user.text
    assert "editor" in row_of(user, "300:12345/ann")
    grant(user, "300:12345/ann")
    assert "Nothing changed." in user.text
    assert "300:12345/ann loses editor on 12345." in user.text, "before it happens"
    revoke(user, "300:12345/ann")
    assert "Access was revoked." in user.text
    assert "300:12345/ann" not in row_of(user, "editor")


def test_role_is_given_by_name_where_handles_of_users_are_minted(user: ConsoleUser, server: Harness) -> None:
    admin = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
    policy = replace(PROFILES["pilin"], default_creator="12345/n0")
    server.registry.do(AddNamespace(PILIN, policy, (admin,)), OPERATOR, "cli")
    identities = []
    for _number in range(2):
        user.get(f"/console/access?on={PILIN}")
        user.submit("/users", name="Bea")
        found = re.search(r'<code id="identity">([^<]+)</code>', user.page.body.decode())
        assert found is not None, user.text
        identities.append(found[1])
        grant(user, "bea", "reader", on=PILIN)
        if len(identities) == 1:
            handle = identities[0].partition(":")[2]
            assert f"The user named bea is {handle}. Users can change their names" in user.alert
            assert not row_of(user, "editor")
            user.submit("/access/grant")
            assert "reader" in row_of(user, identities[0]), "the form has the handle, and the role that was chosen"
    assert "2 users are named bea. Enter the identity from the table of the users." in user.alert
    user.get(f"/console/access?on={PILIN}&identity={identities[1]}")
    user.submit("/access/grant", rights="editor")
    assert "editor" in row_of(user, identities[1]), "the page of a new user links the form with the identity"
    grant(user, "nobody", on=PILIN)
    assert f"handle {PILIN}/nobody does not exist" in user.alert


def test_name_of_a_user_never_stands_for_another(user: ConsoleUser) -> None:
    """A user can write any name in the own record, also that of another."""
    add_user(user, "ann")
    mallory = ConsoleUser(user.server).sign_in("300:12345/mallory", add_user(user, "mallory"))
    mallory.get("/console/records/12345%2Fmallory/edit")
    added = next(name for name, text in mallory.form("/edit").fields.items() if name.startswith("type.") and not text)
    mallory.submit("/edit", **{added: "DESC", added.replace("type", "data"): "ann"})
    mallory.submit("/edit", save="yes")
    assert "The change was saved." in mallory.text
    grant(user, "ann")
    assert "editor" in row_of(user, "300:12345/ann")
    assert "editor" not in row_of(user, "300:12345/mallory")


@pytest.mark.parametrize(("mode", "suffix"), [("create", "map"), ("mint", "")])
@pytest.mark.parametrize("url", ["https://example.org/map", "no-url"])
def test_minter_sees_that_an_unpublished_identifier_was_created(
    user: ConsoleUser, server: Harness, mode: str, suffix: str, url: str
) -> None:
    """A minter cannot read it, and must not be led to create it a second time."""
    secret = add_user(user, "ann")
    grant(user, "ann", "minter")
    ann = ConsoleUser(server).sign_in("300:12345/ann", secret)
    ann.get("/console/new")
    ann.submit("/new", mode=mode, prefix="12345", suffix=suffix, unpublished="yes", **{"data.1": url})
    assert (ann.page.status, ann.alert) == (200, "")
    assert "The identifier was created." in ann.text
    assert ("is not an absolute URL" in ann.text) is (url == "no-url")
    assert "The identifier is not public, and you cannot read it." in ann.text
    assert "Create this identifier" not in ann.text
    assert not ann.has_form("/new")


def test_only_the_role_of_the_row_is_revoked(user: ConsoleUser) -> None:
    add_user(user, "ann")
    for right in ("editor", "reader", "add_na"):
        grant(user, "300:12345/ann", right)
    revoke(user, "300:12345/ann", "reader")
    assert rights_of(user, "300:12345/ann") == ["add_na", "editor"]
    revoke(user, "300:12345/ann", "add_na")
    assert rights_of(user, "300:12345/ann") == ["editor"]


def test_administrator_of_a_prefix_without_a_group_is_revoked(user: ConsoleUser, server: Harness) -> None:
    add_user(user, "ann")
    admin = Admin(ValueRef.parse("300:12345/ann")).to_bytes()
    server.registry.do(SetValues(Handle.parse("0.NA/12345"), (PartialValue("HS_ADMIN", admin, 101),)), OPERATOR, "cli")
    grant(user, "300:12345/ann", "reader")
    assert "value 101" in user.text
    revoke(user, "300:12345/ann", "modify_value")
    assert "Access was revoked." in user.text
    assert "value 101" not in user.text
    assert rights_of(user, "300:12345/ann") == ["reader"], "the other row stays"


def test_only_what_can_be_revoked_has_a_button() -> None:
    direct = AccessEntry("300:12345/ann", ("add_na", "read"), KeyState.ACTIVE, value=100)
    member = AccessEntry("300:12345/ann", ("read",), KeyState.ACTIVE, AccessRole.READER, 101, ("203:0.NA/12345",))
    nested = msgspec.structs.replace(member, groups=(*member.groups, "200:12345/team"))
    unnamed = msgspec.structs.replace(member, role=None)
    nothing = msgspec.structs.replace(direct, permissions=())
    on_prefix, on_record = Access("12345", "0.NA/12345", []), Access("12345/n1", "12345/n1", [])
    assert _get_rights(on_prefix, direct) == _get_rights(on_record, direct) == ["add_na", "read"]
    assert _get_rights(on_prefix, member) == ["reader"]
    for access, entry in (
        *((on_prefix, entry) for entry in (nested, unnamed, nothing)),
        *((on_record, entry) for entry in (member, nested, unnamed, nothing)),
    ):
        assert _get_rights(access, entry) == [], "with no right in its form, the button would revoke all"


def test_confirmation_says_that_every_value_loses_the_permissions(user: ConsoleUser, server: Harness) -> None:
    add_user(user, "ann")
    admin = Admin(ValueRef.parse("300:12345/ann")).to_bytes()
    two = (PartialValue("HS_ADMIN", admin, 101), PartialValue("HS_ADMIN", admin, 102))
    server.registry.do(SetValues(Handle.parse("0.NA/12345"), two), OPERATOR, "cli")
    grant(user, "300:12345/ann", "reader")
    assert "on 12345, from all its values. Rights through groups stay." in user.text
    assert "300:12345/ann loses reader on 12345. Its other rights stay." in user.text
    revoke(user, "300:12345/ann", "modify_value")
    assert rights_of(user, "300:12345/ann") == ["reader"]


def test_access_to_one_record_is_given(user: ConsoleUser) -> None:
    add_user(user, "ann")
    grant(user, "300:12345/ann", on="12345/n1")
    assert "Access was given." in user.text
    assert "Who can do what with 12345/n1" in user.text
    assert not user.has_form("/users"), "users belong to a prefix"
    revoke(user, "300:12345/ann")
    assert "Access was revoked." in user.text


def test_invalid_identity_is_refused_and_kept_in_the_form(user: ConsoleUser) -> None:
    grant(user, f"nobody {SCRIPT}")
    assert user.alert
    assert user.form("/access/grant").fields["identity"] == f"nobody {SCRIPT}"
    assert SCRIPT.encode() not in user.page.body


def test_unknown_prefix_is_refused(user: ConsoleUser) -> None:
    user.get("/console/access?on=99999")
    assert user.page.status >= 400
    assert user.alert


def test_existing_records_get_the_group_with_a_job(user: ConsoleUser) -> None:
    add_user(user, "ann")
    grant(user, "300:12345/ann")
    assert "existing records, which do not name its group" in user.text
    user.submit("/access/records")
    assert "The job is done." in user.text
    user.get(ACCESS)
    assert "which do not name its group" not in user.text


def test_access_is_escaped(user: ConsoleUser) -> None:
    user.get("/console/access?on=%3Cscript%3Ealert(1)%3C/script%3E")
    assert SCRIPT.encode() not in user.page.body


def test_user_without_permission_cannot_give_access(guest: ConsoleUser, user: ConsoleUser) -> None:
    guest.get("/console/new")
    wanted = {"on": "12345", "identity": "300:12345/guest", "rights": "owner"}
    guest.post("/console/access/grant", guest.form("/new").fields | wanted)
    assert "Permission denied" in guest.alert
    user.get(ACCESS)
    assert "owner" not in row_of(user, "300:12345/guest")


def picture_of(user: ConsoleUser) -> ET.Element:
    found = re.search(r"(?s)<svg class=\"access-picture.*?</svg>", user.page.body.decode())
    assert found is not None, user.text
    assert "style=" not in found[0]
    return ET.fromstring(found[0])


def test_picture_shows_the_same_identities_as_the_table(user: ConsoleUser) -> None:
    for name in ("ann", "bob"):
        add_user(user, name)
        grant(user, f"300:12345/{name}", "editor" if name == "ann" else "reader")
    user.get(ACCESS)
    picture = picture_of(user)
    described = picture.findtext("desc") or ""
    for identity, role in (("300:0.NA/12345", "owner"), ("300:12345/ann", "editor"), ("300:12345/bob", "reader")):
        assert re.search(rf"{re.escape(identity)} →[^;]* {role}", described), described
        assert f"{identity}: {role}" in [group.findtext("title") for group in picture.findall("g")]
    assert picture.findtext("title") == "Who can do what with 12345"
    assert len(picture.findall("path")) >= 5, "identity to group, and group to prefix"


def test_picture_has_a_limit_and_escapes_all_texts() -> None:
    entries = [
        AccessEntry(f"{number}:12345/<b>{number}", ("add_value",), KeyState.UNKNOWN, groups=("200:a&b", "201:c"))
        for number in range(MAX_IDENTITIES + 2)
    ]
    access = Access("12345/<script>", "12345/x", entries)
    drawn = str(draw_access(access))
    assert "<b>" not in drawn
    assert "<script>" not in drawn
    boxes = ET.fromstring(drawn).findall("g")
    assert len(boxes) == MAX_IDENTITIES + 3, "the identities, two groups, and the record"
    assert count_omitted(access) == 2


# Users


def test_secret_of_a_new_user_is_shown_once_and_works(user: ConsoleUser, server: Harness) -> None:
    secret = add_user(user, "ann", email="ann@example.org")
    assert "300:12345/ann" in user.text
    ConsoleUser(server).sign_in("300:12345/ann", secret)
    user.get(ACCESS)
    assert "12345/ann" in user.text
    assert secret.encode() not in user.page.body


def test_permissions_are_shown_in_words(user: ConsoleUser) -> None:
    add_user(user, "ann")
    assert b'identity=300%3A12345%2Fann#give">Give access' in user.page.body
    grant(user, "ann")
    assert "300:12345/ann editor create handles, list handles value 101" in user.text


def test_form_of_a_user_that_is_sent_again_shows_no_secret(user: ConsoleUser) -> None:
    user.get(ACCESS)
    fields = user.form("/users").fields | {"name": "ann"}
    user.post("/console/users", fields)
    secret = shown_secret(user)
    user.post("/console/users", fields)
    assert user.page.status == 200, user.text
    assert "300:12345/ann" in user.text
    assert secret.encode() not in user.page.body


def test_new_secret_replaces_the_old_one(user: ConsoleUser, server: Harness) -> None:
    old = add_user(user, "ann")
    user.get(ACCESS)
    user.submit("/users/12345%2Fann/reset")
    new = shown_secret(user)
    assert new != old
    ConsoleUser(server).sign_in("300:12345/ann", new)
    with pytest.raises(AssertionError):
        ConsoleUser(server).sign_in("300:12345/ann", old)


def test_disabled_user_cannot_sign_in_and_their_session_ends(user: ConsoleUser, server: Harness) -> None:
    secret = add_user(user, "ann")
    other = ConsoleUser(server).sign_in("300:12345/ann", secret)
    user.get(ACCESS)
    user.submit("/users/12345%2Fann/disable")
    assert "The user was disabled." in user.text
    other.get("/console/tokens")
    assert other.path.startswith("/console/sign-in")
    with pytest.raises(AssertionError):
        ConsoleUser(server).sign_in("300:12345/ann", secret)


def test_unknown_action_on_a_user_changes_nothing(user: ConsoleUser, server: Harness) -> None:
    secret = add_user(user, "ann")
    user.get(ACCESS)
    user.post("/console/users/12345%2Fann/promote", user.form("/users").fields)
    assert user.page.status == 404
    ConsoleUser(server).sign_in("300:12345/ann", secret)


def test_invalid_user_is_refused_and_kept_in_the_form(user: ConsoleUser) -> None:
    user.get(ACCESS)
    user.submit("/users", name="ann", public_key=f"no key {SCRIPT}")
    assert user.alert
    assert user.form("/users").fields["name"] == "ann"
    assert SCRIPT.encode() not in user.page.body


def test_names_of_users_are_escaped(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/x", Value(300, "HS_SECKEY", b"s"), Value.text(1, "DESC", SCRIPT))
    user.get(ACCESS)
    assert "12345/x" in user.text
    assert SCRIPT.encode() not in user.page.body


def test_user_without_permission_cannot_add_users(guest: ConsoleUser) -> None:
    guest.get("/console/new")
    token = guest.form("/new").fields
    guest.post("/console/users", token | {"prefix": "12345", "name": "bob"})
    assert "Permission denied" in guest.alert
    for action in ("reset", "disable"):
        guest.get("/console/new")
        guest.post(f"/console/users/12345%2Fn1/{action}", guest.form("/new").fields)
        assert guest.alert


# Tokens and sessions


def make_token(user: ConsoleUser, *scopes: str, **fields: str) -> str:
    """Create a token, and return it."""
    user.get("/console/tokens")
    form = user.form("/tokens").fields | fields
    user.post("/console/tokens", [*form.items(), *[("scope", scope) for scope in scopes]])
    found = re.search(r'<code id="new-token">([^<]+)</code>', user.page.body.decode())
    assert found is not None, user.text
    return found[1]


def test_token_is_shown_once_and_works_within_its_scope(user: ConsoleUser, server: Harness) -> None:
    token = make_token(user, "read", label="the catalog", namespaces="12345", days="7")
    user.get("/console/tokens")
    assert token.encode() not in user.page.body
    assert "the catalog" in user.text
    bearer = {"Authorization": f"Bearer {token}"}
    assert server.get("/api/v1/jobs", headers=bearer).status == 200
    made = server.post("/api/v1/mint", '{"prefix": "12345"}', headers=bearer | {"Content-Type": "application/json"})
    assert made.status == 403


def test_session_of_a_token_that_cannot_list_users_grants_by_the_name_of_a_handle(
    user: ConsoleUser, server: Harness
) -> None:
    add_user(user, "bob")
    token = make_token(user, "transfer", "namespaces")
    guest = ConsoleUser(server)
    guest.get("/console/sign-in")
    form = next(form for form in guest.forms("/sign-in") if form.fields["method"] == "token")
    guest.post("/console/sign-in", form.fields | {"secret": token})
    guest.get(ACCESS)
    assert "cannot list users: its scopes do not include read, find" in guest.alert
    grant(guest, "bob")
    user.get(ACCESS)
    assert rights_of(user, "300:12345/bob") == ["editor"]


def test_revoked_token_is_refused(user: ConsoleUser, server: Harness) -> None:
    token = make_token(user, "read")
    user.get("/console/tokens")
    user.submit("/revoke")
    assert "The token was revoked." in user.text
    assert server.get("/api/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status == 401


def test_token_without_scope_is_refused(user: ConsoleUser) -> None:
    user.get("/console/tokens")
    user.submit("/tokens", label="nothing")
    assert user.alert == "Invalid input No scope was chosen. Choose what the program can do."
    assert "shown only now" not in user.text


@pytest.mark.parametrize("days", ["0", "-1", "never", "100000"])
def test_token_with_invalid_lifetime_is_refused_and_kept(user: ConsoleUser, days: str) -> None:
    user.get("/console/tokens")
    user.submit("/tokens", scope="read", label="a label to keep", days=days)
    assert user.page.status == 422
    assert user.alert == "Invalid input A token can be valid for 1 to 400 days."
    assert user.form("/tokens").fields["label"] == "a label to keep"
    assert user.form("/tokens").fields["scope"] == "read"


def test_label_of_a_token_is_escaped(user: ConsoleUser) -> None:
    make_token(user, "read", label=SCRIPT)
    user.get("/console/tokens")
    assert SCRIPT in user.text
    assert SCRIPT.encode() not in user.page.body


def test_sessions_are_listed(user: ConsoleUser, server: Harness) -> None:
    user.get("/console/tokens")
    assert user.text.count("signed in") == 1
    ConsoleUser(server).sign_in()
    user.get("/console/tokens")
    assert user.text.count("last used") == 2
    assert user.text.count("this one") == 1


def test_only_own_sessions_and_tokens_are_listed(user: ConsoleUser, guest: ConsoleUser) -> None:
    make_token(user, "read", label="of the administrator")
    guest.get("/console/tokens")
    assert guest.text.count("last used") == 1
    assert "of the administrator" not in guest.text


def test_actions_that_cannot_be_reversed_are_confirmed(user: ConsoleUser) -> None:
    """Without JavaScript: the button is in a part of the page that is opened first."""
    make_token(user, "read", label="the catalog")
    add_user(user, "ann")
    pages = {
        ACCESS: {"/access/revoke", "/users/12345%2Fann/reset", "/users/12345%2Fann/disable"},
        "/console/tokens": {"/revoke"},
        "/console/namespaces/12345": {"/remove"},
    }
    for path, actions in pages.items():
        user.get(path)
        body = user.page.body.decode()
        outside = re.sub(r'(?s)<details class="confirm">.*?</details>', "", body)
        for action in actions:
            assert f'{action}"' in body, path
            assert f'{action}"' not in outside, path

"""Identifiers in the console: search, create, edit with a difference, conflicts, and changes of their life."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import PartialValue, SetValues
from perseid.registry.queries.resolve import Query
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import OPERATOR, SECRET

HANDLE = "12345/console"
PATH = f"/console/records/{quote(HANDLE, safe='')}"


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as made:
        create(made, HANDLE, Value.text(1, "URL", "https://old.example/"), Value.text(2, "TITLE", "A <b>title</b>"))
        yield made


@pytest.fixture
def user(server: Harness) -> ConsoleUser:
    return ConsoleUser(server).sign_in()


def values_of(server: Harness, handle: str) -> dict[int, str]:
    found = server.registry.resolve(Query(Handle.parse(handle)), OPERATOR)
    return {value.index: value.data.decode("utf-8", "replace") for value in found.values}


def test_search_finds_a_handle_in_any_form(user: ConsoleUser) -> None:
    for text in (HANDLE, f"hdl:{HANDLE}", f"https://hdl.example.org/{HANDLE}"):
        user.get("/console/records?q=" + quote(text, safe=""))
        assert "https://old.example/" in user.text


def test_search_by_url_lists_the_records(user: ConsoleUser) -> None:
    user.get("/console/records?q=https%3A%2F%2Fold.example%2F")
    assert HANDLE in user.text
    user.get("/console/records?q=https%3A%2F%2Fnothing.example%2F")
    assert "No identifiers found." in user.text


def test_namespace_is_listed_in_pages(user: ConsoleUser) -> None:
    user.get("/console/records?prefix=12345")
    assert "Next page" in user.text
    user.get("/console/records?prefix=12345&state=reserved")
    assert "No identifiers found." in user.text


def test_data_is_escaped(user: ConsoleUser) -> None:
    user.get(PATH)
    assert b"A &lt;b&gt;title&lt;/b&gt;" in user.page.body
    assert b"<b>title" not in user.page.body


def test_mint_creates_identifiers_once_per_form(user: ConsoleUser) -> None:
    user.get("/console/new?prefix=12345")
    fields = user.form("/new").fields | {
        "suffix": "m-",
        "count": "3",
        "type.1": "URL",
        "data.1": "https://new.example/",
    }
    user.post("/console/new", fields)
    assert user.page.status == 200, user.text
    assert "3 identifiers were created." in user.text
    first = user.text
    user.post("/console/new", fields)
    assert user.text == first, "a reload creates nothing more"


def test_chosen_handle_is_created(user: ConsoleUser, server: Harness) -> None:
    user.get("/console/new")
    user.submit("/new", mode="create", prefix="12345", suffix="chosen", **{"data.1": "https://new.example/"})
    assert "The identifier was created." in user.text
    assert values_of(server, "12345/chosen")[1] == "https://new.example/"
    user.get("/console/new")
    user.submit("/new", mode="create", prefix="12345", suffix="chosen", **{"data.1": "https://new.example/"})
    assert "already exists" in user.alert
    assert user.form("/new").fields["data.1"] == "https://new.example/", "the input is kept"


def test_edit_shows_the_difference_before_it_saves(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://new.example/"})
    assert "https://old.example/" in user.text
    assert values_of(server, HANDLE)[1] == "https://old.example/", "nothing is saved yet"
    user.submit("/edit", save="yes")
    assert "The change was saved." in user.text
    assert values_of(server, HANDLE)[1] == "https://new.example/"


def test_value_is_added_and_removed(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    rows = [name for name in user.form("/edit").fields if name.startswith("type.")]
    new = rows[-1].partition(".")[2]
    user.submit("/edit", **{"remove.2": "yes", f"type.{new}": "EMAIL", f"data.{new}": "ann@example.org"})
    user.submit("/edit", save="yes")
    assert "ann@example.org" in values_of(server, HANDLE).values()
    assert 2 not in values_of(server, HANDLE) or values_of(server, HANDLE)[2] == "ann@example.org"


def test_two_people_get_a_conflict_with_both_versions(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/edit", **{"data.1": "https://mine.example/"})
    assert user.page.status == 409
    assert "Theirs" in user.text
    assert "https://mine.example/" in user.text
    assert values_of(server, HANDLE)[1] == "https://old.example/"
    user.submit("/edit", again="yes")
    user.submit("/edit", **{"data.2": "Theirs"})
    user.submit("/edit", save="yes")
    assert values_of(server, HANDLE) | {1: "https://mine.example/", 2: "Theirs"} == values_of(server, HANDLE)


def test_change_between_difference_and_save_is_a_conflict(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://mine.example/"})
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/edit", save="yes")
    assert user.page.status == 409
    assert values_of(server, HANDLE)[1] == "https://old.example/"


def test_secret_keys_are_not_shown_and_stay(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/keyed", Value(300, "HS_SECKEY", b"very-secret"), Value.text(1, "URL", "https://a.example/"))
    user.get("/console/records/12345%2Fkeyed")
    assert b"very-secret" not in user.page.body
    user.get("/console/records/12345%2Fkeyed/edit")
    assert b"very-secret" not in user.page.body
    user.submit("/edit", **{"data.1": "https://b.example/"})
    assert b"very-secret" not in user.page.body
    user.submit("/edit", save="yes")
    found = server.registry.resolve(Query(Handle.parse("12345/keyed"), public_only=False), OPERATOR)
    assert {value.index: value.data for value in found.values}[300] == b"very-secret"
    assert SECRET not in user.text


def test_invalid_values_are_refused_while_typing_and_when_saved(user: ConsoleUser) -> None:
    user.get(f"{PATH}/edit")
    fields = user.form("/edit").fields | {"type.2": "HS_ADMIN", "data.2": "nonsense"}
    user.post("/console/check", fields)
    assert "This change would be made" not in user.text
    assert user.text
    user.post("/console/check", user.form_fields_of(f"{PATH}/edit"))
    assert "This change would be made." in user.text


def test_life_of_an_identifier(user: ConsoleUser) -> None:
    for action, notice in (
        ("unpublish", "The identifier is hidden now."),
        ("publish", "The identifier is public now."),
        ("tombstone", "The tombstone was created."),
        ("restore", "The record was restored."),
        ("transfer", "The identifier was transferred."),
    ):
        user.get(f"{PATH}/{action}")
        user.submit(f"/{action}", reason="Withdrawn", replaced_by="12345/n1", to="300:0.NA/12345")
        assert notice in user.text, (action, user.text)
    user.get(f"{PATH}/history")
    assert "tombstone" in user.text
    user.get(f"{PATH}/delete")
    user.submit("/delete")
    assert "The record was deleted." in user.text


def test_action_on_a_changed_record_is_refused(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/tombstone")
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/tombstone", reason="Withdrawn")
    assert user.alert
    assert values_of(server, HANDLE)[1] == "https://old.example/"


def test_user_without_permission_is_refused_with_the_rule(server: Harness) -> None:
    create(server, "12345/other", Value(300, "HS_SECKEY", b"other-secret"))
    user = ConsoleUser(server).sign_in("300:12345/other", "other-secret")
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://mine.example/"})
    assert "This change would be refused" in user.alert
    user.get(f"{PATH}/delete")
    user.submit("/delete")
    assert "Permission denied" in user.alert


def test_missing_record_can_be_created(user: ConsoleUser) -> None:
    user.get("/console/records/12345%2Fmissing")
    assert user.page.status == 404
    assert "Create this identifier" in user.text

"""Identifiers in the console: search, create, edit with a difference, conflicts, and changes of their life."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.record import PRIVATE_PERMISSIONS, Permission, Value, ValueRef
from perseid.registry.commands.lifecycle import Tombstone, Unpublish
from perseid.registry.commands.records import PartialValue, Remove, ReplaceRecord, SetValues
from perseid.registry.queries.namespaces import ChangePolicy
from perseid.registry.queries.resolve import Query
from perseid.schema.names import rules
from perseid.schema.records import WarningInfo
from perseid.server.http.console import records, requests
from perseid.server.http.console.advice import describe_warning
from perseid.server.http.console.values import MAX_ROWS, Change, Row, compare, merge
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.pseudo_locale import marked
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import OPERATOR, SECRET

HANDLE = "12345/console"
PATH = f"/console/records/{quote(HANDLE, safe='')}"


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as made:
        create(made, HANDLE, Value.text(1, "URL", "https://old.example/"), Value.text(2, "TITLE", "A <b>title</b>"))
        yield made


def values_of(server: Harness, handle: str) -> dict[int, str]:
    found = server.registry.resolve(Query(Handle.parse(handle)), OPERATOR)
    return {value.index: value.data.decode("utf-8", "replace") for value in found.values}


def test_search_finds_a_handle_in_any_form(user: ConsoleUser) -> None:
    for text in (HANDLE, f"hdl:{HANDLE}", f"https://hdl.example.org/{HANDLE}"):
        user.get("/console/records?q=" + quote(text, safe=""))
        assert "https://old.example/" in user.text


def test_search_for_other_text_tries_values_then_words_of_titles(server: Harness, user: ConsoleUser) -> None:
    create(server, "12345/map", Value.text(1, "URL", "https://old.example/map"), Value.text(2, "TITLE", "Map of Åre"))
    create(server, "12345/exact", Value.text(1, "DESC", "are"))
    for query in ("q=ARE+map", "q=are&by=words", "q=ma&by=words&prefix=12345"):
        user.get(f"/console/records?{query}")
        assert "12345/map" in user.text
        assert "12345/map public Map of Åre" in user.text, "the title is shown"
    user.get("/console/records?q=are")
    assert "12345/exact" in user.text
    assert "12345/map" not in user.text, "an exact value comes first"
    for query in ("q=%21", "q=nothing+here", "q=map&by=value"):
        user.get(f"/console/records?{query}")
        assert "No identifiers found." in user.text


def test_search_for_a_host_lists_its_records(user: ConsoleUser) -> None:
    assert HANDLE in user.read("/console/records?q=old.example")
    assert HANDLE not in user.read("/console/records?q=nothing.example")


def test_search_for_a_url_offers_those_that_begin_like_it(user: ConsoleUser) -> None:
    user.get("/console/records?q=https%3A%2F%2Fold.exa")
    assert "No identifiers found. Find all URLs that begin like this one" in user.text
    found = re.search('href="([^"]*)">Find all', user.page.body.decode())
    assert found is not None
    assert HANDLE in user.read(unescape(found[1]))


def test_search_without_result_says_what_to_do(user: ConsoleUser) -> None:
    user.get("/console/records?q=zzzz")
    assert "No identifiers found. Check the spelling, or write only the beginning" in user.text
    user.get("/console/records?q=old.example&state=tombstone")
    assert "No identifiers found. Search without filters" in user.text
    assert b'href="/console/records?q=old.example">Search without filters' in user.page.body
    user.get("/console/records?prefix=12345&state=reserved")
    assert "Create the first one" not in user.text, "the namespace has others"


def test_invalid_handle_is_refused_with_its_rule(user: ConsoleUser) -> None:
    user.get(f"{PATH}/tombstone")
    user.submit("/tombstone", reason="Withdrawn", replaced_by="nonsense")
    assert "a handle is PREFIX/SUFFIX" in user.alert
    assert "client.rule" not in user.alert
    assert f"{rules()['H1']['title']}: {rules()['H1']['text']}" in user.alert


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


def test_pages_of_a_list_lead_forward_and_back(user: ConsoleUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE_SIZE", 12)
    monkeypatch.setattr(requests, "MAX_CURSORS", 3)

    def follow(text: str) -> list[str]:
        (path,) = re.findall(f'href="([^"]*)">{text}</a>', user.page.body.decode())
        user.get(unescape(path))
        assert "prefix=12345" in path, "filters stay"
        return names()

    def names() -> list[str]:
        return re.findall('href="/console/records/([^"/]+)"', user.page.body.decode())

    user.get("/console/records?prefix=12345")
    pages = [names()]
    assert "First page" not in user.text
    while "Next page" in user.text:
        pages.append(follow("Next page"))
    assert len(pages) == 5
    assert len({name for page in pages for name in page}) == sum(map(len, pages)) > 50
    assert [follow("Previous page"), follow("Previous page")] == [pages[3], pages[2]]
    assert "Previous page" not in user.text, "the path of the page has no more cursors"
    assert follow("First page") == pages[0]
    assert follow("Next page") == pages[1]
    assert "Previous page" not in user.text, "which is the first"


def test_listed_identifiers_have_their_title_and_target(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(Tombstone(Handle.parse("12345/n1"), "Gone"), OPERATOR, "cli")
    private = replace(Value.text(1, "URL", "https://private.example/"), permissions=PRIVATE_PERMISSIONS)
    create(server, "12345/con-private", private)
    user.get("/console/records?q=12345/con*")
    assert f"{HANDLE} public A <b>title</b> https://old.example/ " in user.text
    assert "12345/con-private public –" in user.text
    user.get("/console/records?q=12345/n1*")
    assert "12345/n1 tombstone –" in user.text


def test_state_without_a_namespace_lists_the_only_one_or_asks_for_it(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(Unpublish(Handle.parse(HANDLE)), OPERATOR, "cli")
    user.get("/console/records?state=unpublished")
    assert f"{HANDLE} unpublished" in user.text
    user.get("/console/namespaces")
    user.submit("/namespaces", prefix="12345.1", profile="free")
    user.get("/console/records?state=unpublished")
    assert "To see all identifiers in a state, choose a namespace." in user.text


def test_search_by_the_beginning_of_handles(server: Harness, user: ConsoleUser) -> None:
    for name in ("maps-1", "maps-2", "map"):
        create(server, f"12345/{name}", Value.text(1, "URL", "https://old.example/map"))
    server.registry.do(Unpublish(Handle.parse("12345/maps-2")), OPERATOR, "cli")
    for query in ("q=12345/maps-*", "q=12345/MAPS-*&by=handle", "q=maps-*&prefix=12345"):
        user.get(f"/console/records?{query}")
        assert "12345/maps-1 public" in user.text
        assert "12345/maps-2 unpublished" in user.text
        assert "12345/map public" not in user.text
    user.get("/console/records?q=12345/maps-*&state=unpublished")
    assert "12345/maps-2" in user.text
    assert "12345/maps-1" not in user.text
    user.get("/console/records?q=maps-1&by=handle")
    assert "No identifiers found." in user.text
    user.get("/console/records?q=https://old.example/*&by=url&state=unpublished")
    assert "12345/maps-2" in user.text
    assert "12345/maps-1" not in user.text


def test_data_is_escaped(user: ConsoleUser) -> None:
    user.get(PATH)
    assert b"A &lt;b&gt;title&lt;/b&gt;" in user.page.body
    assert b"<b>title" not in user.page.body


def test_only_urls_of_the_web_are_links(user: ConsoleUser, server: Harness) -> None:
    data = ("https://one.example/?a=<b>", "javascript:alert(1)")
    create(server, "12345/links", *[Value.text(index, "URL", text) for index, text in enumerate(data, 1)])
    body = user.get("/console/records/12345%2Flinks").body.decode()
    assert 'href="https://one.example/?a=&lt;b&gt;" rel="noreferrer"' in body
    assert 'href="javascript' not in body
    assert "javascript:alert(1)" in body


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
    assert user.form("/new").fields["type.2"] == "TITLE", "and what was offered"


def test_title_is_offered_for_a_new_identifier(user: ConsoleUser, server: Harness) -> None:
    for suffix, title in (("with", "A map"), ("without", "")):
        user.get("/console/new")
        fields = {"data.1": "https://new.example/", "data.2": title}
        user.submit("/new", mode="create", prefix="12345", suffix=suffix, **fields)
        assert values_of(server, f"12345/{suffix}").get(2) == (title or None)


def test_edit_shows_the_difference_before_it_saves(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://new.example/"})
    assert "https://old.example/" in user.text
    assert values_of(server, HANDLE)[1] == "https://old.example/", "nothing is saved yet"
    user.submit("/edit", save="yes")
    assert "The change was saved." in user.text
    assert values_of(server, HANDLE)[1] == "https://new.example/"


def test_difference_shows_a_changed_type(user: ConsoleUser) -> None:
    user.get(f"{PATH}/edit")
    before = user.form("/edit").fields["type.2"]
    user.submit("/edit", **{"type.2": "DESC"})
    assert re.search(rf"<del><bdi[^>]*>{before}</bdi></del> <bdi[^>]*>DESC</bdi>", user.page.body.decode())


def test_difference_shows_readers_and_ttl_where_they_change(user: ConsoleUser) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"ttl.2": "60", "data.2": "Mine"})
    assert "Who can read: everybody, TTL 86400 Mine Who can read: everybody, TTL 60 Save" in user.text
    assert "Nothing is saved yet." in user.text
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.2": "Mine"})
    assert "Mine Save" in user.text


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
    index = user.form("/edit").fields["index.1"]
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/edit", **{"data.1": "https://mine.example/", "index.1": "one"})
    assert user.page.status == 422
    assert "The index in row 1 is not a number" in user.alert
    user.submit("/edit", **{"index.1": index})
    assert user.page.status == 409, "the form still has the version that it showed"
    assert "You and they have changed different values: their change stays." in user.text
    assert "Theirs" in user.text
    assert "https://mine.example/" in user.text
    assert values_of(server, HANDLE)[1] == "https://old.example/"
    user.submit("/edit", again="yes")
    user.submit("/edit")
    user.submit("/edit", save="yes")
    assert values_of(server, HANDLE) | {1: "https://mine.example/", 2: "Theirs"} == values_of(server, HANDLE)


def test_both_change_one_value(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/edit")
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/edit", **{"data.2": "Mine"})
    assert user.page.status == 409
    assert "If you save your version now changed 2 TITLE Theirs Mine Continue" in user.text
    user.submit("/edit", again="yes")
    user.submit("/edit")
    user.submit("/edit", save="yes")
    assert values_of(server, HANDLE)[2] == "Mine"


def test_changes_of_different_values_are_merged() -> None:
    base = [Row("1", "URL", "a"), Row("2", "TITLE", "b"), Row("3", "DESC", "c"), Row("4", "EMAIL", "d")]
    theirs = [Row("1", "URL", "theirs"), Row("2", "TITLE", "b"), Row("4", "EMAIL", "d"), Row("5", "DESC", "added")]
    yours = [base[0], Row("2", "TITLE", "mine"), base[2], Row("4", "EMAIL", "d", remove=True), Row("", "NOTE", "new")]
    merged = merge(base, theirs, yours)
    assert merged == [theirs[0], yours[1], yours[3], theirs[3], yours[4]]
    assert compare(theirs, merged) == [Change(theirs[1], yours[1]), Change(theirs[2], None), Change(None, yours[4])]
    assert merge(base, theirs, [Row("1", "URL", "mine"), *base[1:]]) is None, "both change value 1"
    assert merge(base, theirs, [*base, Row("5", "DESC", "mine")]) is None, "both add value 5"
    assert merge(base, theirs, [*base[:2], Row("3", "DESC", "mine"), base[3]]) is None, "they have removed value 3"
    assert merge(base, base, base) == base


def test_characters_that_browsers_cannot_send_stay(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/odd", Value.text(1, "URL", "https://a.example/"), Value(2, "NOTE", b"a\rb\0c\r\nd"))
    user.get("/console/records/12345%2Fodd/edit")
    fields = {"data.1": "https://b.example/", "data.2": "a\r\nb\N{REPLACEMENT CHARACTER}c\r\nd"}
    user.submit("/edit", **fields)
    assert "changed 1 URL" in user.text
    assert "NOTE" not in user.text
    user.submit("/edit", save="yes", **{"data.2": fields["data.2"]})
    found = server.registry.resolve(Query(Handle.parse("12345/odd")), OPERATOR)
    assert [value.data for value in found.values][:2] == [b"https://b.example/", b"a\rb\0c\r\nd"]


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
    user.submit("/edit", **{"data.1": "b.example"})
    assert "'b.example', is not an absolute URL" in user.text, "before it is saved"
    user.submit("/edit", again="yes")
    user.submit("/edit", **{"data.1": "https://b.example/"})
    assert "is not an absolute URL" not in user.text
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


@pytest.mark.parametrize("text", ["abc", "1h", "-1", "2147483648", "99999999999"])
def test_ttl_that_is_no_number_of_seconds_is_refused_in_words(user: ConsoleUser, text: str) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"ttl.1": text})
    assert f"The TTL in row 1, {text}, is not a number of seconds." in user.alert
    assert "such as 86400 for a day" in user.alert
    assert user.form("/edit").fields["ttl.1"] == text


@pytest.mark.parametrize("text", ["0", "3600", "2147483647", "2040-01-01T00:00:00Z", ""])
def test_ttl_is_seconds_or_a_time(user: ConsoleUser, text: str) -> None:
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"ttl.1": text})
    assert user.alert == ""
    user.submit("/edit", save="yes")
    assert "The change was saved." in user.text
    assert f"everybody {text or 86400} 2 " in user.text


def test_life_of_an_identifier(user: ConsoleUser) -> None:
    for action, notice in (
        ("unpublish", "The identifier is hidden now."),
        ("publish", "The identifier is public now."),
        ("tombstone", "The identifier is a tombstone now."),
        ("restore", "The record was restored."),
        ("transfer", "The identifier was transferred."),
    ):
        user.get(f"{PATH}/{action}")
        user.submit(f"/{action}", reason="Withdrawn", replaced_by="12345/n1", to="300:0.NA/12345")
        assert notice in user.text, (action, user.text)
    user.get(f"{PATH}/history")
    assert [each in user.text for each in (" tombstone ", " restore public ", " update public ")] == [True, True, True]
    user.get(PATH)
    assert f'href="{PATH}/delete"' in user.page.body.decode()
    user.get(f"{PATH}/delete")
    user.submit("/delete")
    assert "The record was deleted." in user.text


def test_history_shows_what_each_version_has_changed(user: ConsoleUser) -> None:
    user.get(f"{PATH}/unpublish")
    user.submit("/unpublish")
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://new.example/"})
    user.submit("/edit", save="yes")
    user.get(f"{PATH}/history")
    body = user.page.body.decode().replace("<wbr>", "")
    edited, hidden, created = re.findall(r"<li>\n<p>.*?</details>", body, re.DOTALL)
    assert re.findall("<(?:del|ins)><bdi>(.*?)</bdi>", edited) == ["https://old.example/", "https://new.example/"]
    assert [re.findall("<(?:del|ins)>", each) for each in (hidden, created)] == [[], []]


def test_record_has_its_link(user: ConsoleUser) -> None:
    user.get(PATH)
    assert (
        '<bdi class="name" id="link">https://hdl.example.org/12345/console</bdi>'
    ) in user.page.body.decode().replace("<wbr>", "")


def test_title_begins_the_reason_of_a_tombstone_if_wanted(user: ConsoleUser, server: Harness) -> None:
    user.get(f"{PATH}/tombstone")
    user.submit("/tombstone", reason="Withdrawn", title="A <b>title</b>")
    assert "“A <b>title</b>”: Withdrawn" in values_of(server, HANDLE).values()
    user.get(f"{PATH}/restore")
    user.submit("/restore")
    user.get(f"{PATH}/tombstone")
    assert 'name="title" value="A &lt;b&gt;title&lt;/b&gt;"' in user.page.body.decode()
    user.submit("/tombstone", reason="Withdrawn")
    assert "Withdrawn" in values_of(server, HANDLE).values()


def test_tombstone_is_changed_from_what_it_says(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(ChangePolicy("12345", 'tombstone_reason_type = "WHY"'), OPERATOR, "cli")
    user.get(f"{PATH}/tombstone")
    user.submit("/tombstone", reason="Withdrawn", replaced_by="12345/n1")
    user.get(f"{PATH}/tombstone")
    assert "Change the tombstone of 12345/console" in user.text
    fields = user.form("/tombstone").fields
    assert (fields["reason"], fields["replaced_by"]) == ("Withdrawn", "12345/n1")
    user.submit("/tombstone", reason="Lost", replaced_by="")
    texts = values_of(server, HANDLE).values()
    assert "Lost" in texts
    assert "12345/n1" not in texts, "an empty field removes the replacement"


def test_warnings_of_a_change_are_shown(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(Tombstone(Handle.parse("12345/n1"), "Gone"), OPERATOR, "cli")
    user.get(f"{PATH}/tombstone")
    user.submit("/tombstone", reason="Withdrawn", replaced_by="12345/n1")
    assert "The identifier is a tombstone now. " in user.text
    assert "The replacement 12345/n1 is a tombstone itself." in user.text
    user.get("/console/new")
    user.submit("/new", mode="create", prefix="12345", suffix="odd", **{"data.1": "no-url"})
    assert "The identifier was created. " in user.text
    assert "is not an absolute URL. Use an absolute URL, such as https://example.org/1." in user.text


def test_text_of_a_stored_warning_is_english_if_a_parameter_is_missing() -> None:
    stored = WarningInfo("other_sheets", "Only one sheet is read", {"sheet": "a"}, advice="Save it alone")
    with marked():
        assert describe_warning(stored) == ("Only one sheet is read", "en", "Save it alone", "en")


def test_warning_has_the_words_of_the_console(user: ConsoleUser) -> None:
    user.get("/console/new")
    alias = {"type.1": "HS_ALIAS", "data.1": "12345/none"}
    user.submit("/new", mode="create", prefix="12345", suffix="alias", **alias)
    assert "Value 1 is an alias of 12345/none, which does not exist. Correct the alias, or create the " in user.text
    assert '<span lang="en">Value 1 is an alias' in user.page.body.decode(), "without a translation"


def test_deletion_is_not_offered_where_the_policy_forbids_it(user: ConsoleUser, server: Harness) -> None:
    server.registry.do(ChangePolicy("12345", 'deletion = "tombstone"'), OPERATOR, "cli")
    user.get(PATH)
    assert f'href="{PATH}/tombstone"' in user.page.body.decode()
    assert f'href="{PATH}/delete"' not in user.page.body.decode()


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


def test_title_of_a_record_is_shown(user: ConsoleUser) -> None:
    user.get(PATH)
    assert b'<p class="lead"><bdi>A &lt;b&gt;title&lt;/b&gt;</bdi></p>' in user.page.body


def test_missing_record_can_be_created_also_with_several_namespaces(user: ConsoleUser) -> None:
    user.get("/console/namespaces")
    user.submit("/namespaces", prefix="12345.1", profile="free")
    user.get("/console/records/12345%2Fmissing")
    assert user.page.status == 404
    (path,) = re.findall(r'href="([^"]*)">Create this identifier', user.page.body.decode())
    user.get(unescape(path))
    assert "choose a namespace" in user.text
    user.submit("/new")
    assert "The identifier was created." in user.text
    user.get("/console/new")
    user.submit("/new")
    assert user.alert, "without a suffix that has a prefix, the namespace must be chosen"


# Nothing that a form does not show is lost or revealed


def test_new_secret_keys_are_private(user: ConsoleUser, server: Harness) -> None:
    user.get("/console/new")
    user.submit("/new", mode="create", prefix="12345", suffix="u", **{"type.1": "HS_SECKEY", "data.1": "top-secret"})
    assert "The identifier was created." in user.text
    assert b"top-secret" not in server.get("/api/handles/12345/u").body
    user.get("/console/new")
    fields = {"type.1": "HS_SECKEY", "data.1": "top-secret", "permissions.1": "1110"}
    user.submit("/new", mode="create", prefix="12345", suffix="v", **fields)
    assert "would be public" in user.alert


def test_mask_never_becomes_data(user: ConsoleUser, server: Harness) -> None:
    secret = replace(Value(300, "HS_SECKEY", b"very-secret"), permissions=PRIVATE_PERMISSIONS)
    create(server, "12345/keyed", secret, Value.text(1, "URL", "https://a.example/"))
    edit = "/console/records/12345%2Fkeyed/edit"
    user.get(edit)
    row = next(name for name, text in user.form("/edit").fields.items() if text == "HS_SECKEY")
    user.submit("/edit", **{row: "DESC"})
    assert "no stored secret" in user.alert, "a secret does not become public data"
    user.get(edit)
    server.registry.do(Remove(Handle.parse("12345/keyed"), (300,)), OPERATOR, "cli")
    user.submit("/edit", **{"data.1": "https://b.example/"})
    assert user.page.status == 409
    user.submit("/edit", again="yes")
    user.submit("/edit")
    assert "no stored secret" in user.alert, "a removed key does not come back"


def test_secrets_are_masked_in_search_results(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/keyed", Value(300, "HS_SECKEY", b"very-secret"))
    user.get("/console/records?q=HS_SECKEY&by=type")
    assert "12345/keyed" in user.text
    assert b"very-secret" not in user.page.body


def test_references_and_line_ends_of_other_values_stay(user: ConsoleUser, server: Harness) -> None:
    text = replace(Value.text(1, "DESC", "one\r\ntwo"), references=(ValueRef.parse("3:12345/x"),))
    create(server, "12345/kept", text, Value.text(2, "URL", "https://a.example/"))
    user.get("/console/records/12345%2Fkept/edit")
    user.submit("/edit", **{"data.2": "https://b.example/"})
    assert "one" not in user.text, "it is not a part of the difference"
    user.submit("/edit", save="yes")
    found = server.registry.resolve(Query(Handle.parse("12345/kept")), OPERATOR)
    kept = next(value for value in found.values if value.index == 1)
    assert (kept.data, kept.references) == (b"one\r\ntwo", text.references)


def test_record_that_is_too_long_for_a_form_is_not_edited(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/too-long", *[Value.text(number, "DESC", str(number)) for number in range(1, MAX_ROWS + 20)])
    user.get("/console/records/12345%2Ftoo-long/edit")
    assert user.page.status == 422
    assert not user.has_form("/edit")


def test_values_that_nobody_can_read_keep_their_index(server: Harness) -> None:
    hidden = replace(Value.text(2, "NOTE", "hidden"), permissions=Permission.ADMIN_WRITE)
    create(server, "12345/hidden", Value.text(1, "DESC", "one"), hidden)
    values = (PartialValue("DESC", b"one", 1), PartialValue("DESC", b"two"))
    command = ReplaceRecord(Handle.parse("12345/hidden"), values=values, keep_unreadable=True)
    server.registry.do(command, OPERATOR, "cli")
    with server.registry.snapshot() as snapshot:
        stored = {value.index: value.data for value in snapshot.stored(Handle.parse("12345/hidden")).values}
    assert stored[2] == b"hidden"
    assert b"two" in stored.values()


def test_record_with_private_values_is_shown_without_them(server: Harness) -> None:
    create(server, "12345/other", Value(300, "HS_SECKEY", b"other-secret"))
    private = replace(Value.text(2, "NOTE", "private"), permissions=PRIVATE_PERMISSIONS)
    create(server, "12345/mixed", Value.text(1, "DESC", "public"), private)
    user = ConsoleUser(server).sign_in("300:12345/other", "other-secret")
    user.get("/console/records/12345%2Fmixed")
    assert user.page.status == 200
    assert "public" in user.text
    assert "private" not in user.text


def test_arbitrary_numbers_in_forms_are_refused(user: ConsoleUser) -> None:
    for number in ("9" * 5_000, "-1", "½", ""):
        user.get(f"{PATH}/edit")
        user.submit("/edit", version=number)
        assert user.page.status in (409, 422)
        user.get("/console/new")
        user.submit("/new", count=number)
        assert user.page.status in (422, 200)
        assert user.alert or number == ""

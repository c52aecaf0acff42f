"""All texts of the console are in the catalog: with a language that marks them, no page shows others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import PartialValue, SetValues
from perseid.registry.jobs import rewrite
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.policy.policy import PROFILES
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.pseudo_locale import find_unmarked, marked
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET

HANDLE = "12345/console"
PATH = f"/console/records/{quote(HANDLE, safe='')}"
PILIN = "102.100.272"
DATA = ("hdl.example.org", HANDLE, "12345/missing")
"""The name of the service, and handles in the titles of pages."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Harness]:
    with harness() as made, marked():
        made.registry.spool = tmp_path / "spool"
        admin = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
        policy = replace(PROFILES["pilin"], default_creator="12345/n0")
        made.registry.do(AddNamespace(PILIN, policy, (admin,)), OPERATOR, "cli")
        create(made, HANDLE, Value.text(1, "URL", "https://old.example/"), Value.text(2, "TITLE", "A title"))
        yield made


def test_reader_finds_what_is_not_in_the_catalog() -> None:
    assert find_unmarked("<p>⟦Marked <b>text</b>⟧ <bdi>data</bdi> 12 <code>x y</code> TTL</p>") == []
    assert find_unmarked("<p>⟦Marked⟧ and <b>not</b></p>") == ["and", "not"]
    assert find_unmarked("<title>300:0.NA/12345 → 200:12345/ann: ⟦owner⟧; 12:a/b</title>") == []
    assert find_unmarked("<title>300:0.NA/12345: owner</title>") == ["300:0.NA/12345: owner"]
    assert find_unmarked('<p title="Not"><input type="submit" value="⟦Go⟧"><img alt="not">') == ["Not", "not"]


class Reader(ConsoleUser):
    """A user who reads the pages."""

    def look(self) -> None:
        """Check the page that is shown."""
        assert find_unmarked(self.page.body.decode(), DATA) == [], self.path


@pytest.fixture
def user(server: Harness) -> Reader:
    user = Reader(server)
    user.sign_in()
    return user


def test_texts_of_the_sign_in_are_in_the_catalog(server: Harness) -> None:
    user = Reader(server)
    user.get("/console/sign-in")
    user.look()
    user.submit("/sign-in", identity=ADMINISTRATOR, secret="wrong")
    user.look()
    user.submit("/sign-in", identity=ADMINISTRATOR, secret=SECRET)
    user.look()
    user.submit("/sign-out")
    user.look()


def test_texts_of_pages_are_in_the_catalog(user: Reader) -> None:
    actions = ("publish", "unpublish", "tombstone", "restore", "transfer", "delete")
    for path in (
        *("", "/records", "/records?prefix=12345", "/records?by=url&q=https://old.example/", "/new", "/imports"),
        *("/rewrite", "/rewrite?host=old.example&to=https://new.example/*", "/jobs", "/namespaces", "/types", "/log"),
        *(f"/namespaces/{PILIN}", "/access", "/access?on=12345", "/tokens", "/nothing", "/jobs/0123456789abcdef"),
        *("/records/12345%2Fmissing", "/log?since=nonsense", "/log?actor=300:99999/none", "/rewrite?to=x"),
        *[f"/records/{quote(HANDLE, safe='')}{tail}" for tail in ("", "/edit", "/history")],
        *[f"/records/{quote(HANDLE, safe='')}/{action}" for action in actions],
    ):
        user.get(f"/console{path}")
        user.look()


def test_texts_about_one_record_are_in_the_catalog(user: Reader, server: Harness) -> None:
    for action in ("unpublish", "publish", "tombstone", "restore", "transfer"):
        user.get(f"{PATH}/{action}")
        user.submit(f"/{action}", reason="x", replaced_by="12345/n1", to="300:0.NA/12345")
        user.look()
    user.get(f"{PATH}/history")
    user.look()
    user.get(f"{PATH}/edit")
    user.submit("/edit", **{"data.1": "https://new.example/"})
    user.look()
    server.registry.do(SetValues(Handle.parse(HANDLE), (PartialValue("TITLE", b"Theirs", 2),)), OPERATOR, "cli")
    user.submit("/edit", save="yes")
    user.look()
    user.post("/console/check", user.form_fields_of(f"{PATH}/edit"))
    user.look()
    user.get("/console/new")
    user.submit("/new", prefix="12345", **{"type.1": "HS_ADMIN", "data.1": "nonsense"})
    user.look()
    user.get("/console/new")
    user.submit("/new", mode="create", prefix="12345", suffix="console", **{"data.1": "https://new.example/"})
    user.look()
    assert f"⟦Choose another handle, or open {HANDLE} and edit it⟧" in user.text, "advice, too"
    for mode in ("mint", "reserve"):
        user.get("/console/new")
        user.submit("/new", mode=mode, prefix=PILIN, count="2", **{"data.1": "https://new.example/"})
        user.look()


def test_texts_about_many_records_are_in_the_catalog(user: Reader, server: Harness) -> None:
    for content, advice in (
        ("handle,URL\nnonsense,x", ""),
        ("handle,Signature\n12345/row,x", "⟦Choose what each column means, or leave it out."),
        (f"handle,URL\n{HANDLE},https://row.example/", "⟦Remove the row, or choose under Options what happens"),
        ("handle,URL\n12345/row,https://row.example/", ""),
    ):
        user.get("/console/imports")
        fields = user.form("/imports").fields
        fields.pop("file", None)
        user.upload("/console/imports", fields, "rows.csv", content.encode())
        while "is being checked" in user.text:
            user.get(user.path)
        user.look()
        assert advice in user.text
    user.submit("/apply")
    user.look()
    user.get(user.path.partition("?")[0])
    user.look()
    user.get(f"{user.path}/undo")
    user.look()
    user.get("/console/jobs")
    user.look()
    order = Rewrite("https://old.example/*", "https://new.example/*")
    job = rewrite.start(server.registry, order, OPERATOR, "cli", "", 1)
    user.get(f"/console/jobs/{job.id}")
    user.look()
    assert f"⟦Resume job {job.id}⟧" in user.text


def test_texts_about_namespaces_and_access_are_in_the_catalog(user: Reader) -> None:
    user.get(f"/console/namespaces/{PILIN}")
    fields = {name: text for name, text in user.form("/policy").fields.items() if text}
    user.post(f"/console/namespaces/{PILIN}/policy", fields | {"rule.purpose": "Another", "rule.retired": "yes"})
    user.look()
    user.get("/console/access?on=12345")
    user.submit("/users", name="ann")
    user.look()
    user.get("/console/access?on=12345")
    user.look()
    user.get("/console/tokens")
    user.submit("/tokens", scope="read")
    user.look()
    user.get("/console/log")
    user.look()

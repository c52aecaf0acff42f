"""Many records in the console: import of a file, change of links, jobs with undo, and the log."""

import asyncio
import re
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from perseid.ledger.store.jobs import EndJob
from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.minting import Reserve
from perseid.registry.commands.records import Create, PartialValue, SetValues
from perseid.registry.jobs import runner
from perseid.registry.queries.resolve import Query
from perseid.registry.results import Refused
from perseid.server.http.auth.web_sessions import SECURE_COOKIE
from perseid.server.http.connection.responses import send_stream
from perseid.server.http.console import log
from perseid.server.http.messages import Client, Request
from perseid.server.http.v1.routes import imports
from tests.registry.registries import admin, key_holder
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import STRANGER, Harness, harness, header_of
from tests.server.http.resolver.resolver_records import create
from tests.server.http.v1.apis import send
from tests.server.http.v1.callers import with_token
from tests.server.installations import OPERATOR

FILE = "handle,URL\n12345/row-1,https://one.example/\n12345/row-2,https://two.example/\n"
ADMINISTRATOR_KEY = key_holder(300, "0.NA/12345")
BAD_FILE = "handle,URL\n12345/row-1,https://one.example/\nnonsense,https://two.example/\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Harness]:
    with harness() as made:
        made.registry.spool = tmp_path / "spool"
        for number in range(3):
            create(made, f"12345/old-{number}", Value.text(1, "URL", f"https://old.example/{number}"))
        yield made


def url_of(server: Harness, handle: str) -> str | None:
    try:
        found = server.registry.resolve(Query(Handle.parse(handle)), OPERATOR)
    except Refused:
        return None
    return next((value.data.decode() for value in found.values if value.type == "URL"), None)


def upload(user: ConsoleUser, content: str, name: str = "rows.csv", **options: str) -> None:
    """Send the form with a file, and wait for its check."""
    user.get("/console/imports")
    fields = user.form("/imports").fields | options
    fields.pop("file", None)
    user.upload("/console/imports", fields, name, content.encode())
    settled(user)


def settled(user: ConsoleUser) -> str:
    """Wait for the check of a file, and return the text of the page."""
    while "is being checked" in user.text:
        user.get(user.path)
    return user.text


def follow(user: ConsoleUser, text: str) -> None:
    """Open the link with a text."""
    found = re.search(f'href="([^"]*)">{re.escape(text)}</a>', user.page.body.decode())
    assert found is not None, user.text
    user.get(unescape(found[1]))


def test_file_without_rows_is_not_imported(user: ConsoleUser) -> None:
    upload(user, "handle,URL\n")
    assert "The file has no rows." in user.text
    assert not user.has_form("/apply")


def test_file_is_checked_and_imported_and_undone(user: ConsoleUser, server: Harness) -> None:
    upload(user, FILE)
    assert "2 valid" in user.text
    assert "2 created" in user.text
    assert url_of(server, "12345/row-1") is None, "nothing is changed yet"
    user.submit("/apply")
    assert "The job is done." in user.text
    user.get(user.path)
    assert "File rows.csv SHA-256 of the file " in user.text
    assert "Changed records 12345/row-1 create 12345/row-2 create Show the file Undo" in user.text
    assert url_of(server, "12345/row-2") == "https://two.example/"
    job = user.path.rpartition("/")[2].partition("?")[0]
    assert f"Job {job} import: rows.csv" in user.text
    user.get(f"/console/jobs/{job}/undo")
    assert f"Undo job {job} import: rows.csv" in user.text
    assert "2 records that the job created become tombstones, because somebody may use their identifiers." in user.text
    assert "12345/row-2 public → tombstone" in user.text
    assert "https://two.example/" in user.text, "what the record loses"
    user.submit("/undo")
    assert url_of(server, "12345/row-2") is None
    undo = user.path.rpartition("/")[2].partition("?")[0]
    user.get(user.path)
    assert f'<a href="/console/jobs/{job}"><code>{job}</code></a>' in user.page.body.decode(), (
        "the undone job is a link"
    )
    user.get(f"/console/jobs/{job}")
    assert f'href="/console/jobs/{undo}/undo">Redo' in user.page.body.decode()
    user.get(f"/console/jobs/{undo}")
    assert f"Job {undo} undo: import: rows.csv" in user.text
    user.get("/console/jobs")
    assert "undo import: rows.csv done" in user.text, "what was undone is in the list, too"
    user.get(f"/console/jobs/{undo}/undo")
    assert f"Redo job {job}" in user.text
    assert "The redo changes 2 records. They become again what they were before the undo" in user.text
    assert "is done again. You can undo this as well." in user.text
    user.submit("/undo")
    assert url_of(server, "12345/row-2") == "https://two.example/", "an undo can be undone"


def test_invalid_rows_are_reported_and_downloaded(user: ConsoleUser, server: Harness) -> None:
    upload(user, BAD_FILE)
    assert "1 invalid" in user.text
    assert "nonsense" in user.text
    assert not user.has_form("/apply")
    assert "The file cannot be imported as it is, because rows are invalid." in user.text
    assert "If the valid rows are imported 1 created" in user.text
    report = user.get(f"{user.path.partition('?')[0]}/report")
    assert b"nonsense" in report.body
    assert url_of(server, "12345/row-1") is None


def test_valid_rows_are_imported_on_request(user: ConsoleUser, server: Harness) -> None:
    upload(user, BAD_FILE, on_existing="skip")
    form = next(form for form in user.forms("/check") if "options" not in form.fields)
    user.post(form.action, form.fields | {"skip_invalid": "yes"})
    assert "What will happen 1 created" in settled(user)
    user.submit("/apply")
    assert url_of(server, "12345/row-1") == "https://one.example/"
    assert "If an identifier exists already skip the row Invalid rows, skipped 1 " in user.text


def test_file_can_be_discarded(user: ConsoleUser) -> None:
    upload(user, FILE)
    user.submit("/discard")
    assert "The uploaded file was deleted." in user.text


def test_pending_files_are_listed_and_discarded(user: ConsoleUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MAX_PENDING", 2)
    user.get("/console/imports")
    assert "Files that wait to be imported" not in user.text
    upload(user, FILE, "first.csv")
    upload(user, BAD_FILE, "second.csv")
    user.get("/console/imports")
    assert "Files that wait to be imported" in user.text
    assert "first.csv 2 valid" in user.text
    assert "second.csv 1 valid, 1 invalid" in user.text
    upload(user, FILE, "third.csv")
    assert "Limit of 2 pending imports reached" in user.alert
    user.submit("/discard")
    assert "The uploaded file was deleted." in user.text
    upload(user, FILE, "third.csv")
    assert "2 valid" in user.text, "there is space again"


def test_file_is_minted_again_on_request(user: ConsoleUser) -> None:
    content = "URL\nhttps://one.example/\n"
    upload(user, content, mint="yes", prefix="12345")
    other = user.path  # the same file, which was checked before it was minted
    upload(user, content, mint="yes", prefix="12345")
    user.submit("/apply")
    job = user.path.rpartition("/")[2].partition("?")[0]
    upload(user, content, mint="yes", prefix="12345")
    refusal = f"Job {job} has minted handles for this file already, 1 in all. Undo job {job} first, or mint"
    assert refusal in user.text
    assert f'href="/console/jobs/{job}"' in user.page.body.decode()
    user.get(other)
    user.submit("/apply")
    assert refusal in user.alert
    user.submit("/check", mint_again="yes")
    assert "1 minted" in settled(user)
    assert "First identifiers" not in user.text, "they are not known yet"
    user.submit("/apply")
    assert "The job is done." in user.text
    assert "Mints identifiers yes " in user.text


def test_unknown_column_is_refused_and_mapped(user: ConsoleUser, server: Harness) -> None:
    content = FILE.replace("URL", "Shelf")
    upload(user, content, prefix="12345", skip_invalid="yes")
    assert not user.has_form("/apply")
    fields = user.form("/check").fields
    assert (fields["column.1"], fields["meaning.1"]) == ("Shelf", "URL"), "its cells are URLs"
    user.submit("/check", **{"meaning.1": "-"})
    assert "2 valid" in settled(user), "the column is left out"
    fields = user.form("/check").fields
    assert (fields["map"], fields["prefix"], fields["skip_invalid"]) == ("Shelf=-", "12345", "yes"), "options are kept"
    user.get("/console/imports")
    user.submit("/discard")
    upload(user, content.replace("Shelf", "Ulr"))
    assert user.form("/check").fields["meaning.1"] == "URL", "what was probably meant"
    upload(user, content)
    user.submit("/check", **{"other.1": "URL"})
    settled(user)
    user.submit("/apply")
    assert url_of(server, "12345/row-1") == "https://one.example/"


def test_options_are_kept_until_a_file_is_checked(user: ConsoleUser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: object) -> None: ...

    monkeypatch.setattr(imports, "_check", wait)
    user.get("/console/imports")
    fields = user.form("/imports").fields | {"prefix": "12345", "skip_invalid": "yes", "map": "a=b=URL\nShelf=-"}
    fields.pop("file", None)
    user.upload("/console/imports", fields, "rows.csv", FILE.encode())
    assert "is being checked" in user.text
    assert f'<a href="{escape(user.path)}">Show the result</a>' in user.page.body.decode()
    user.get(f"/console/imports?like={user.path.rpartition('/')[2]}")
    kept = user.form("/imports").fields
    assert (kept["prefix"], kept["skip_invalid"], kept["map"]) == ("12345", "yes", "a=b=URL\nShelf=-")


def test_options_are_changed_without_another_upload(user: ConsoleUser) -> None:
    upload(user, FILE.replace("12345/", ""))
    assert "Write PREFIX/SUFFIX, or choose a namespace under Options." in user.text
    user.submit("/check", map="nonsense")
    assert "nonsense" in user.alert
    assert user.form("/check").fields["map"] == "nonsense", "what was entered is kept"
    user.submit("/check", map="", prefix="12345")
    assert "What will happen 2 created" in settled(user)
    user.get("/console/imports?like=0123456789abcdef")
    assert "There is no such import" in user.alert
    assert user.has_form("/imports")


def test_check_with_other_options_keeps_those_that_are_not_changed(user: ConsoleUser) -> None:
    upload(user, FILE.replace("12345/", ""), name="rows.txt", format="csv", profile="", raw="yes")
    user.submit("/check", prefix="12345")
    assert "What will happen 2 created" in settled(user)
    shown = user.form("/check").fields
    assert (shown["format"], shown["profile"], shown["raw"], shown["prefix"]) == ("csv", "", "yes", "12345")
    user.get(f"/console/imports?like={user.path.rpartition('/')[2]}")
    kept = user.form("/imports").fields
    assert (kept["format"], kept["raw"], kept["prefix"]) == ("csv", "yes", "12345")


def test_other_options_than_shown_are_not_applied(user: ConsoleUser, server: Harness) -> None:
    row = "12345/old-1,https://new.example/1\n"
    upload(user, f"handle,URL\n{row}", on_existing="skip")
    assert "Nothing changes: the records are as the file says, or are skipped." in user.text
    with pytest.raises(AssertionError, match="/apply"):
        user.forms("/apply")
    upload(user, f"handle,URL\n{row}12345/more,https://new.example/2\n", on_existing="skip")
    shown = user.form("/apply")
    user.submit("/check", on_existing="update")
    assert "1 updated" in settled(user)
    user.post(shown.action, shown.fields)
    assert "was checked again. Look at the result of the last check, then import the file." in user.alert
    assert url_of(server, "12345/old-1") == "https://old.example/1"
    assert "1 updated" in user.text
    user.submit("/apply")
    assert url_of(server, "12345/old-1") == "https://new.example/1"


def test_values_in_problems_keep_their_case(user: ConsoleUser) -> None:
    upload(user, "handle,URL\n12345/row-1,nonsense\n")
    assert "nonsense is not an absolute URL." in user.text
    assert "Nonsense" not in user.text


def test_example_can_be_imported(user: ConsoleUser) -> None:
    example = user.get("/console/imports/example.csv")
    assert header_of(example, "Content-Disposition") == 'attachment; filename="example.csv"'
    upload(user, example.body.decode())
    assert "What will happen 2 created" in user.text
    assert "handle handle URL URL TITLE TITLE" in user.text


def test_no_file_is_a_problem(user: ConsoleUser) -> None:
    user.get("/console/imports")
    user.upload("/console/imports", user.form("/imports").fields, "", b"")
    assert "No file was chosen" in user.alert


def test_links_are_changed_after_a_preview(user: ConsoleUser, server: Harness) -> None:
    query = f"url={quote('https://old.example/*', safe='')}&to={quote('https://new.example/*', safe='')}"
    user.get(f"/console/rewrite?{query}")
    assert "https://new.example/2" in user.text
    assert "3 identifiers would change." in user.text
    assert url_of(server, "12345/old-2") == "https://old.example/2"
    user.submit("/rewrite")
    assert "The job is done." in user.text
    assert url_of(server, "12345/old-2") == "https://new.example/2"
    job = user.path.rpartition("/")[2].partition("?")[0]
    user.get(f"/console/jobs/{job}/undo")
    assert "3 records return to their earlier versions. You can undo this as well." in user.text
    assert "12345/old-0 https://new.example/0 https://old.example/0" in user.text, "before and after the undo"
    user.get("/console/jobs")
    assert "change links https://old.example/* → https://new.example/* done 3 / 3" in user.text


def test_undo_that_is_not_allowed_has_no_button(user: ConsoleUser, server: Harness) -> None:
    job = runner.start_job(server.registry, "import", {"file": "rows.csv"}, ADMINISTRATOR_KEY, "http")
    values = (Value.text(1, "URL", "https://one.example/"), admin(100, "300:12345/other"))
    server.registry.do(Create(Handle.parse("12345/other"), values), ADMINISTRATOR_KEY, "http", job_id=job.id)
    server.registry.ledger.change(EndJob(job.id))
    user.get(f"/console/jobs/{job.id}/undo")
    assert "Permission denied" in user.text
    assert "cannot create a tombstone for 12345/other: requires permission DELETE_HANDLE" in user.text
    assert not user.has_form("/undo")


def test_change_to_an_empty_value_is_no_removal(user: ConsoleUser, server: Harness) -> None:
    name = Handle.parse("12345/empty")
    server.registry.do(Create(name, (Value.text(1, "DESC", ""),)), ADMINISTRATOR_KEY, "http")
    job = runner.start_job(server.registry, "import", {"file": "rows.csv"}, ADMINISTRATOR_KEY, "http")
    server.registry.do(SetValues(name, (PartialValue("DESC", b"new", 1),)), ADMINISTRATOR_KEY, "http", job_id=job.id)
    server.registry.ledger.change(EndJob(job.id))
    user.get(f"/console/jobs/{job.id}/undo")
    assert '12345/empty DESC new ""' in user.text


def test_undo_of_a_reservation_leaves_it(user: ConsoleUser, server: Harness) -> None:
    job = runner.start_job(server.registry, "reserve", {"prefix": "12345"}, ADMINISTRATOR_KEY, "http")
    reserved = tuple([Handle.parse(f"12345/r{number}") for number in range(2)])
    server.registry.do(Reserve(reserved), ADMINISTRATOR_KEY, "http", job_id=job.id)
    server.registry.ledger.change(EndJob(job.id))
    user.get(f"/console/jobs/{job.id}/undo")
    assert "2 identifiers that the job reserved stay reserved, because they may be printed somewhere." in user.text
    assert not user.has_form("/undo")


def test_links_that_do_not_exist_change_nothing(user: ConsoleUser) -> None:
    user.get("/console/rewrite?url=https%3A%2F%2Fnothing.example%2F*&to=https%3A%2F%2Fnew.example%2F*")
    assert "No URL matches." in user.text
    assert "Without * at the end" not in user.text
    user.get("/console/rewrite?url=https%3A%2F%2Fold.example%2F&to=https%3A%2F%2Fnew.example%2F")
    assert "Without * at the end, only this one URL is changed." in user.text
    found = re.search('href="(/console/rewrite[^"]*)">Change all', user.page.body.decode())
    assert found is not None
    assert "https://new.example/2" in user.read(unescape(found[1]))
    user.get("/console/rewrite?to=https%3A%2F%2Fnew.example%2F*")
    assert user.alert


def test_records_of_a_job_are_all_in_its_log(
    user: ConsoleUser, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_JOB_ENTRIES", 1)
    monkeypatch.setattr(log, "PAGE_SIZE", 1)
    upload(user, FILE)
    user.submit("/apply")
    create(server, "12345/other", Value.text(1, "URL", "https://other.example/"))
    user.get(user.path)
    assert "Changed records 12345/row-1 create All its changes in the log" in user.text
    follow(user, "All its changes in the log")
    assert "Log of job " in user.text
    assert "12345/row-1" in user.text
    assert "12345/row-2" not in user.text
    follow(user, "Next page")
    assert "12345/row-2" in user.text
    assert "Next page" not in user.text, "not the entries of others"
    assert user.get("/console/log?job=0123456789abcdef").status == 404


def test_host_of_changed_links_is_shown_as_a_host(user: ConsoleUser) -> None:
    user.get(f"/console/rewrite?host=old.example&to={quote('https://new.example/*', safe='')}")
    user.submit("/rewrite")
    assert "change links: old.example → https://new.example/*" in user.text
    assert "Host old.example To https://new.example/*" in user.text
    assert "*://" not in user.text


def test_notes_of_jobs_lead_to_them(user: ConsoleUser, server: Harness) -> None:
    upload(user, FILE)
    user.submit("/apply")
    job = user.path.rpartition("/")[2].partition("?")[0]
    note = f"undo {job}<b>"
    server.registry.do(SetValues(Handle.parse("12345/row-2"), (PartialValue("DESC", b"x", 2),)), OPERATOR, "cli", note)
    for path in ("/console/log", "/console/records/12345%2Frow-2/history"):
        user.get(path)
        assert f'<a href="/console/jobs/{job}">import</a><bdi>, line 3</bdi>' in user.page.body.decode()
        assert f"<bdi>{escape(note)}</bdi>" in user.page.body.decode(), "only what a job has written is a link"


def test_job_of_nobody_is_not_found(user: ConsoleUser) -> None:
    user.get("/console/jobs/0123456789abcdef")
    assert user.page.status == 404


def test_progress_is_streamed_with_the_session(
    user: ConsoleUser, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.get(f"/console/rewrite?host=old.example&to={quote('https://new.example/*', safe='')}")
    user.submit("/rewrite")
    job = user.path.rpartition("/")[2].partition("?")[0]
    events = user.get(f"/console/jobs/{job}/events")
    assert b"event: end" in events.body
    assert server.get(f"/console/jobs/{job}/events").status == 303
    monkeypatch.setattr(server.context.web_sessions, "is_active", lambda *_: False)
    assert user.get(f"/console/jobs/{job}/events").body == b""


class Connection:
    """Receives a response; the client leaves after a number of parts."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> bool:
        self.parts -= 1
        return self.parts > 0


def test_listener_is_not_counted_after_its_stream(
    user: ConsoleUser, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.get(f"/console/rewrite?host=old.example&to={quote('https://new.example/*', safe='')}")
    user.submit("/rewrite")
    path = f"{user.path.partition('?')[0]}/events".encode()
    cookie = [("cookie", f"{SECURE_COOKIE}={user.cookie}")]
    counted = server.context.api.listeners.all

    async def stream(method: str, parts: int = 1) -> None:
        response = await server.service.handle(Request(method, path, cookie, client=Client(STRANGER, secure=True)))
        assert response.stream is not None, response
        assert len(counted) == 1
        await send_stream(Connection(parts), b"", response.stream, with_body=method == "GET", chunked=True)
        assert not counted, "in the same loop, whose end would stop all tasks"

    asyncio.run(stream("GET"))
    asyncio.run(stream("HEAD"))
    monkeypatch.setattr(server.context.web_sessions, "is_active", lambda *_: False)
    asyncio.run(stream("GET", 9))


def test_log_shows_who_changed_what(user: ConsoleUser, server: Harness) -> None:
    user.get("/console/log")
    assert user.text.index("12345/old-2 ") < user.text.index("12345/old-1 "), "the newest first"
    assert re.search("<time[^>]*>[0-9T:-]+Z</time>", user.page.body.decode()), "without microseconds"
    with server.registry.snapshot() as snapshot:
        size = snapshot.reader.size
    user.get(f"/console/log?since={size - 3}")
    assert user.text.index("12345/old-2 ") < user.text.index("12345/old-1 "), "the newest first"
    assert user.text.count("local:tests") == 3
    user.get("/console/log?since=nonsense")
    assert user.alert
    user.get("/console/log?since=2026-11-15T10:00:00Z")
    assert 'name="since" value="2026-11-15"' in user.page.body.decode()


def test_log_is_filtered_by_a_form(user: ConsoleUser, server: Harness) -> None:
    create(server, "12345/mine", Value.text(1, "URL", "https://example.org/"))
    user.get("/console/log")
    assert "Clear all filters" not in user.text
    assert "local:tests" in user.text
    user.get("/console/log?actor=local:tests&action=create&prefix=12345&since=2026-11-15&until=2999-01-01")
    assert "is in the future" in user.alert
    assert "Clear all filters" in user.text
    user.get("/console/log?actor=local:tests&action=create&prefix=12345&since=2026-11-15")
    body = user.page.body.decode()
    for field in (
        'name="actor" value="local:tests"',
        '<option value="create" selected>',
        '<option value="12345" selected>',
        'name="since" value="2026-11-15"',
    ):
        assert field in body
    assert 'href="/console/log?actor=local%3Atests&amp;action=create&amp;prefix=12345&amp;since=2026-11-15"' in body
    assert "12345/old-1 " in user.text
    user.get("/console/log?actor=300:99999/none")
    assert "No entries match these filters." in user.text
    assert '<a href="/console/log">Show all entries</a>' in user.page.body.decode()
    user.get("/console/log?actor=ann")
    assert "Invalid actor ann" in user.alert
    user.get("/console/log?action=eat")
    assert "Clear all filters" not in user.text


def test_names_in_the_log_lead_to_their_changes(user: ConsoleUser, server: Harness) -> None:
    token = with_token(server, "create")
    body = {"handle": "12345/by-token", "values": [{"type": "URL", "data": "https://example.org/"}]}
    assert send(server, "POST", "/handles", body, headers=token).status == 201
    user.get("/console/log?action=create")
    name, issuer = re.findall(r'href="(/console/log\?action=create&amp;actor=[^"]+)"', user.page.body.decode())[:2]
    assert "actor=token%3A" in name
    for path in (name, issuer):
        user.get(unescape(path))
        assert "12345/by-token " in user.text
        assert "12345/old-1 " not in user.text


def test_pages_of_a_filtered_log_continue(user: ConsoleUser, server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.registry.queries.log.MAX_COMPARED", 5)
    create(server, "12345/a-delete", Value.text(1, "URL", "https://example.org/"))
    user.get("/console/log?action=delete")
    assert "the search continues on the next page" in user.text
    for _ in range(99):
        following = re.search('rel="next" href="([^"]+)"', user.page.body.decode())
        if following is None:
            break
        assert "action=delete" in following[1]
        user.get(unescape(following[1]))
    assert "No entries match these filters." in user.text

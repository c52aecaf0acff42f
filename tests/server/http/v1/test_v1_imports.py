"""Imports over HTTP: upload, check, report, apply; each for the uploading user only."""

import asyncio
import json
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from perseid.bulk.imports import FileCheck
from perseid.names.handle import Handle
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.commands.records import Create
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.jobs import import_job, spool
from perseid.registry.jobs.runner import JobRun
from perseid.registry.jobs.spool import SpooledImport
from perseid.schema.imports import ImportState
from perseid.server.http.messages import Response
from perseid.server.http.v1.api_call import ApiCall
from perseid.server.http.v1.job_requests import reserve_slot
from perseid.server.http.v1.routes import imports
from perseid.server.state import jobs as state_jobs
from perseid.server.state.jobs import MAX_RUNNING, Slot
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1 import openapi_document
from tests.server.http.v1.apis import got, problem, send
from tests.server.installations import OPERATOR

ANN = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
TABLE = "handle,URL\n12345/i1,https://a.example/\n12345/i2,https://b.example/\n"


@pytest.fixture
def importing(server: Harness, tmp_path: Path) -> Harness:
    server.registry.spool = tmp_path / "spool"
    return server


def upload(server: Harness, text: str, query: str = "") -> Response:
    target = f"/imports?name=t.csv{query}"
    headers = {**basic(), "Content-Type": "text/csv"}
    answer = server.ask("POST", f"/api/v1{target}", text.encode(), headers=headers)
    openapi_document.check("POST", target, answer)
    return answer


def get(server: Harness, path: str) -> Response:
    return send(server, "GET", path, headers=basic())


def url_of(server: Harness, name: str) -> str | None:
    with server.registry.snapshot() as snapshot:
        values = snapshot.stored(Handle.parse(name)).values
    return next((value.data.decode() for value in values if value.type == "URL"), None)


def test_small_file_is_checked_at_once_and_applied_as_a_job(importing: Harness) -> None:
    found = got(upload(importing, TABLE), 202)
    assert (found["state"], found["valid"], found["outcomes"]) == ("ready", 2, {"created": 2})
    assert found["detected"]["delimiter"] == ","
    assert url_of(importing, "12345/i1") is None
    path = f"/imports/{found['id']}"
    answer = send(importing, "POST", f"{path}/apply", {"note": "why", "sha256": found["sha256"]}, headers=basic())
    job = got(answer, 202)
    assert (job["kind"], job["state"], job["done"]) == ("import", "done", 2)
    assert url_of(importing, "12345/i2") == "https://b.example/"
    assert got(get(importing, path))["job"] == job["job"]
    assert not (Path(str(importing.registry.spool)) / found["id"] / "source").exists(), "the file is deleted"
    undone = got(send(importing, "POST", f"/jobs/{job['job']}/undo", {}, headers=basic()), 202)
    assert undone["done"] == 2


def test_only_the_file_that_was_checked_is_applied(importing: Harness) -> None:
    """Another file than the caller has checked is refused: the hash that the check returned pins it."""
    found = got(upload(importing, TABLE), 202)
    path = f"/imports/{found['id']}"
    other = send(importing, "POST", f"{path}/apply", {"sha256": "00" * 32}, headers=basic())
    assert found["sha256"] in problem(other, "state-conflict")["detail"]
    assert url_of(importing, "12345/i1") is None
    assert got(get(importing, path))["state"] == "ready"
    got(send(importing, "POST", f"{path}/apply", {"sha256": found["sha256"].upper()}, headers=basic()), 202)
    assert url_of(importing, "12345/i1")


def test_advice_names_parameters_of_the_api(importing: Harness) -> None:
    found = got(upload(importing, "handle,Shelf mark\n12345/s,A 1\n"), 202)
    assert found["problem"] == "Unknown columns: 'Shelf mark'."
    assert "the parameter map=Shelf%20mark%3DTYPE" in found["advice"]
    shelf = {"column": "Shelf mark", "meaning": "TYPE"}
    assert (found["advice_kind"], found["advice_parameters"]) == ("MAP_COLUMN", shelf)
    found = got(upload(importing, "handle,URL\n,https://example.org/\n"), 202)
    (row,) = got(get(importing, f"/imports/{found['id']}/problems"))["problems"]
    assert (row["fix"], row["advice_kind"]) == (
        "Enter the handle. To mint handles, send the parameter mint.",
        "MINT_OR_ENTER_HANDLE",
    )


def test_form_with_a_file_is_refused(importing: Harness, tmp_path: Path) -> None:
    """As `curl -F` sends it: its first line would be the names of columns."""
    body = f'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n{TABLE}\r\n--b--\r\n'.encode()
    headers = {**basic(), "Content-Type": "multipart/form-data; boundary=b"}
    answer = importing.ask("POST", "/api/v1/imports?name=t.csv", body, headers=headers)
    openapi_document.check("POST", "/imports?name=t.csv", answer)
    found = problem(answer, "unsupported-media-type")
    assert "the content of the file as the body" in found["advice"]
    assert not [*tmp_path.glob("spool/*")]


def test_import_is_deleted_on_request(importing: Harness) -> None:
    found = got(upload(importing, TABLE), 202)
    path = f"/imports/{found['id']}"
    assert got(send(importing, "DELETE", path, headers=basic()))["id"] == found["id"]
    problem(get(importing, path), "not-found")


def test_check_ends_when_its_import_is_deleted(
    importing: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advance = FileCheck.advance

    def delete_first(check: FileCheck) -> bool:
        shutil.rmtree(str(importing.registry.spool))
        return advance(check)

    monkeypatch.setattr(FileCheck, "advance", delete_first)
    monkeypatch.setattr(imports, "SAVE_SECONDS", 0)
    upload(importing, TABLE)
    assert not caplog.records, "it is no internal error"
    assert not Path(str(importing.registry.spool)).exists()


@pytest.mark.parametrize("before", ["", "CREATE 12345/batch\n1 URL 86400 1110 UTF8 https://example.org/\n\n"])
@pytest.mark.parametrize("identity", ["SECKEY:300:12345/ann", "nonsense"])
def test_batch_file_with_a_secret_is_refused_and_deleted(importing: Harness, before: str, identity: str) -> None:
    text = f"{before}AUTHENTICATE {identity}\ntop secret\n\nCREATE 12345/second\n"
    found = got(upload(importing, text, "&format=batch"), 202)
    line = before.count("\n") + 1
    assert found["state"] == "invalid"
    assert found["problem"].startswith(f"line {line}: AUTHENTICATE is not accepted by a server")
    assert "Remove AUTHENTICATE and the line after it" in found["advice"]
    stored = [path for path in Path(str(importing.registry.spool)).rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if b"top secret" in path.read_bytes()]
    problem(send(importing, "POST", f"/imports/{found['id']}/apply", {}, headers=basic()), "state-conflict")


def test_batch_file_with_a_passphrase_is_refused_and_deleted(importing: Harness) -> None:
    text = "CREATE 12345/batch\n\nSESSIONSETUP\nUSESESSION:1\npassphrase: top secret\n\nCREATE 12345/second\n"
    found = got(upload(importing, text, "&format=batch"), 202)
    assert found["state"] == "invalid"
    assert found["problem"].startswith("line 5: PASSPHRASE of SESSIONSETUP is not accepted by a server")
    stored = [path for path in Path(str(importing.registry.spool)).rglob("*") if path.is_file()]
    assert not [path for path in stored if b"top secret" in path.read_bytes()]
    allowed = text.replace("top secret", "")
    assert got(upload(importing, allowed, "&format=batch"), 202)["detected"]["format"] == "batch"


def test_upload_leaves_space_for_the_ledger(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MIN_FREE", 1 << 60)
    problem(upload(importing, TABLE), "storage-full")
    monkeypatch.undo()
    assert got(upload(importing, TABLE), 202)["valid"] == 2


def test_file_is_deleted_if_the_disk_is_full(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(_: SpooledImport, path: Path) -> BinaryIO:
        path.symlink_to("/dev/full")
        return BytesIO()

    monkeypatch.setattr(SpooledImport, "create", create)
    problem(upload(importing, TABLE), "storage-full")
    assert not [*Path(str(importing.registry.spool)).glob("*")]


def test_clients_wait_for_a_check_that_starts_slowly(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "FIRST_SECONDS", 0)
    assert got(upload(importing, TABLE), 202)["state"] in ("checking", "ready")


def test_no_reader_waits_for_a_file_to_be_opened(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    original = FileCheck.open

    def open_(*arguments: Any) -> FileCheck:
        threads.append(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr(FileCheck, "open", open_)
    assert got(upload(importing, TABLE), 202)["state"] == "ready"
    (thread,) = threads
    assert thread is not threading.main_thread(), "here, the main thread does the work of all pools"


def test_no_check_that_has_a_slot_waits_for_another_file_to_be_opened() -> None:
    """A file that waits is claimed by nobody, like one whose check was interrupted."""
    barrier = threading.Barrier(MAX_RUNNING)

    def start() -> Any:
        return barrier.wait(timeout=30)

    async def open_all() -> list[Any]:
        return await asyncio.gather(*[imports._open(start) for _ in range(MAX_RUNNING)])

    assert sorted(asyncio.run(open_all())) == [*range(MAX_RUNNING)]


def test_invalid_rows_are_listed_and_reported(importing: Harness) -> None:
    table = (
        "handle,URL\n"
        + "".join(f"12345/i{number},nowhere{number}\n" for number in range(5))
        + "12345/ok,https://a.example/\n"
    )
    found = got(upload(importing, table), 202)
    assert (found["state"], found["invalid"], found["valid"]) == ("invalid", 5, 1)
    path = f"/imports/{found['id']}"
    page = got(get(importing, f"{path}/problems?limit=2"))
    assert [each["line"] for each in page["problems"]] == [2, 3]
    more = got(get(importing, f"{path}/problems?limit=10&cursor={page['next']}"))
    assert [each["line"] for each in more["problems"]] == [4, 5, 6]
    assert more["next"] is None
    report = get(importing, f"{path}/report")
    assert header_of(report, "Content-Type") == "application/octet-stream"
    assert report.body.decode("utf-8-sig").count("\r\n") == 6
    assert get(importing, f"{path}/report?offset={len(report.body)}").body == b""
    problem(send(importing, "POST", f"{path}/apply", {}, headers=basic()), "state-conflict")
    skipping = got(upload(importing, table, "&skip_invalid=true"), 202)
    job = got(send(importing, "POST", f"/imports/{skipping['id']}/apply", {}, headers=basic()), 202)
    assert job["done"] == 1
    unreadable = got(upload(importing, "handle,Shelf\n12345/x,7\n"), 202)
    assert unreadable["state"] == "invalid"
    assert "Shelf" in unreadable["problem"]


def test_existing_records_show_their_changes(importing: Harness) -> None:
    importing.registry.do(Create(Handle.parse("12345/i1"), ()), OPERATOR, "cli")
    assert got(upload(importing, TABLE), 202)["invalid"] == 1
    found = got(upload(importing, TABLE, "&on_existing=update"), 202)
    (change,) = got(get(importing, f"/imports/{found['id']}/changes"))["handles"]
    assert (change["handle"], change["changes"][0]["new"]["value"]) == ("12345/i1", "https://a.example/")


def test_file_that_was_imported_names_its_job(importing: Harness) -> None:
    job = got(
        send(importing, "POST", f"/imports/{got(upload(importing, TABLE), 202)['id']}/apply", {}, headers=basic()), 202
    )
    again = got(upload(importing, TABLE), 202)
    assert (again["state"], again["problem"]) == ("invalid", None)
    assert (again["advice_kind"], again["advice_parameters"]) == ("UPDATE_IMPORTED", {"job": job["job"]})
    assert again["advice"].startswith(f"Job {job['job']} imported this file already. To update its records, send ")
    undo = got(send(importing, "POST", f"/jobs/{job['job']}/undo", {}, headers=basic()), 202)
    again = got(upload(importing, TABLE), 202)
    assert again["advice"].endswith(f"To bring all back: POST /api/v1/jobs/{undo['job']}/undo")
    skipped = got(upload(importing, TABLE, "&on_existing=skip"), 202)
    assert (skipped["state"], skipped["advice"]) == ("ready", None)
    refused = problem(send(importing, "POST", f"/imports/{skipped['id']}/apply", {}, headers=basic()), "state-conflict")
    assert "changes nothing: all rows are unchanged or skipped" in refused["detail"]
    changed = got(send(importing, "POST", f"/imports/{again['id']}/check?mint=true&prefix=12345", headers=basic()), 202)
    assert changed["advice"] is None, "the result of the last check is forgotten"


def test_minted_handles_are_returned_beside_the_rows(importing: Harness) -> None:
    table = "URL,TITLE\nhttps://a.example/,A\nhttps://b.example/,B\n"
    found = got(upload(importing, table, "&mint=true&prefix=12345"), 202)
    assert (found["outcomes"], found["sample"]) == ({"minted": 2}, []), "the handles are not known yet"
    path = f"/imports/{found['id']}"
    job = got(send(importing, "POST", f"{path}/apply", {}, headers=basic()), 202)
    assert got(get(importing, "/imports")) == {"imports": []}, "it was applied"
    lines = get(importing, f"{path}/handles").body.decode("utf-8-sig").splitlines()
    assert lines[0] == "URL,TITLE,handle"
    handle = lines[2].split(",")[2]
    assert url_of(importing, handle) == "https://b.example/"
    again = got(upload(importing, table, "&mint=true&prefix=12345"), 202)
    assert again["state"] == "invalid"
    assert again["problem"] == f"Job {job['job']} has minted handles for this file already, 2 in all."
    assert (again["advice_kind"], again["advice_parameters"]) == ("MINT_AGAIN", {"job": job["job"]})
    assert again["advice"].startswith(f"Undo it first: POST /api/v1/jobs/{job['job']}/undo. To mint other handles, ")
    others = got(upload(importing, table, "&mint=true&prefix=12345&mint_again=true"), 202)
    assert (others["state"], others["valid"]) == ("ready", 2)


def test_expired_imports_are_not_pending(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not listed, and do not count as pending."""
    monkeypatch.setattr(imports, "MAX_PENDING", 1)
    got(upload(importing, TABLE), 202)
    problem(upload(importing, TABLE), "too-many-requests")
    monkeypatch.setattr(spool, "EXPIRES", -1)
    assert got(get(importing, "/imports")) == {"imports": []}
    monkeypatch.setattr(spool, "EXPIRES", 3_600)
    got(upload(importing, TABLE), 202)
    monkeypatch.setattr(spool, "EXPIRES", -1)
    got(upload(importing, TABLE), 202)


def test_limits_and_permissions(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    problem(importing.ask("POST", "/api/v1/imports", TABLE), "authentication-required")
    found = got(upload(importing, TABLE), 202)
    path = f"/imports/{found['id']}"
    problem(send(importing, "GET", path), "authentication-required")
    importing.configure(import_size=10)
    problem(upload(importing, TABLE), "body-too-large")
    importing.configure(import_size=1 << 20, import_spool=100)
    problem(upload(importing, TABLE), "storage-full")
    table = "handle,URL\n" + "".join([f"12345/q{number},https://a.example/\n" for number in range(600)])
    importing.configure(import_spool=len(table) + 10_000)
    monkeypatch.setattr(imports, "SAVE_SECONDS", 0)
    full = got(upload(importing, table), 202)
    assert (full["state"], "space" in full["problem"]) == ("invalid", True), "the rows take more than the file"
    assert full["advice"] == "Retry later"
    assert got(send(importing, "DELETE", f"/imports/{full['id']}", headers=basic()))
    importing.configure(import_spool=1 << 20)
    monkeypatch.setattr(imports, "MAX_PENDING", 1)
    problem(upload(importing, TABLE), "too-many-requests")
    assert [each["id"] for each in got(get(importing, "/imports"))["imports"]] == [found["id"]]
    problem(send(importing, "GET", "/imports"), "authentication-required")
    values = (Value(301, "HS_SECKEY", b"of ann", permissions=PRIVATE_PERMISSIONS),)
    importing.registry.do(Create(Handle.parse("12345/ann"), values), OPERATOR, "cli")
    ann = basic("301:12345/ann", "of ann")
    assert got(send(importing, "GET", "/imports", headers=ann)) == {"imports": []}
    for route in ("", "/problems", "/changes", "/report", "/handles"):
        problem(send(importing, "GET", path + route, headers=ann), "not-found")
    problem(send(importing, "POST", f"{path}/apply", {}, headers=ann), "not-found")
    problem(send(importing, "DELETE", path, headers=ann), "not-found")
    assert got(get(importing, path))["id"] == found["id"], "its user sees it"
    assert json.dumps(found)


def test_token_for_chosen_or_for_minted_handles_can_upload(importing: Harness) -> None:
    for number, (scope, query) in enumerate((("create", ""), ("mint", "&mint=true&prefix=12345"))):
        secret = Secret.new(secrets.token_bytes)
        scopes = ScopeSet.of((scope,), ("12345",))
        importing.registry.do(CreateToken(secret, scopes, "", 1_000), ANN, "cli")
        table = f"{'handle,' if not query else ''}URL\n{f'12345/t{number},' if not query else ''}https://a.example/\n"
        headers = {"Authorization": f"Bearer {secret.text()}"}
        target = f"/api/v1/imports?name=t{number}.csv{query}"
        found = got(importing.ask("POST", target, table.encode(), headers=headers), 202)
        assert (found["state"], found["valid"]) == ("ready", 1)
        path = f"/imports/{found['id']}/apply"
        assert got(send(importing, "POST", path, {}, headers=headers), 202)["done"] == 1
    secret = Secret.new(secrets.token_bytes)
    importing.registry.do(CreateToken(secret, ScopeSet.of(("update",), ("12345",)), "", 1_000), ANN, "cli")
    headers = {"Authorization": f"Bearer {secret.text()}"}
    problem(importing.ask("POST", "/api/v1/imports?name=t.csv", TABLE.encode(), headers=headers), "permission-denied")


def find_import(server: Harness, import_id: str) -> SpooledImport:
    found = spool.Spool(Path(str(server.registry.spool))).find(import_id)
    assert found is not None
    return found


def test_report_of_a_check_that_is_not_complete_is_refused(importing: Harness) -> None:
    found = got(upload(importing, "handle,URL\n12345/i1,nowhere\n"), 202)
    path, spooled = f"/imports/{found['id']}/report", find_import(importing, found["id"])
    spooled.update(state=ImportState.CHECKING)
    assert problem(get(importing, path), "state-conflict")["advice"] == "Wait until it has finished"
    spooled.update(state=ImportState.INVALID)
    assert b"nowhere" in get(importing, path).body


def test_handles_of_a_canceled_job_are_complete_after_it_was_resumed(
    importing: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_job, "ROWS_PER_STEP", 1)
    table = "URL\nhttps://a.example/\nhttps://b.example/\n"
    path = f"/imports/{got(upload(importing, table, '&mint=true&prefix=12345'), 202)['id']}"
    job = import_job.start(importing.registry, find_import(importing, path.rpartition("/")[2]), ANN, "http")
    assert JobRun(importing.registry, job, ANN).advance()
    assert got(send(importing, "POST", f"/jobs/{job.id}/cancel", headers=basic()))["state"] == "canceled"
    assert get(importing, f"{path}/handles").body.count(b"\r\n") == 2
    assert got(send(importing, "POST", f"/jobs/{job.id}/resume", headers=basic()), 202)["state"] == "done"
    assert get(importing, f"{path}/handles").body.count(b"\r\n") == 3


# Checks with other options


def recheck(server: Harness, import_id: str, query: str = "") -> Response:
    target = f"/imports/{import_id}/check"
    answer = server.ask("POST", f"/api/v1{target}?{query}", b"", headers=basic())
    openapi_document.check("POST", target, answer)
    return answer


def test_file_is_checked_again_with_other_options(importing: Harness) -> None:
    table = "handle,Shelf\n12345/i1,https://a.example/\nnonsense,https://b.example/\n"
    made = got(upload(importing, table, "&on_existing=skip"), 202)
    assert (made["state"], made["problem_type"]) == ("invalid", "unknown-columns")
    assert made["options"] == {"on_existing": "skip"}
    mapped = got(recheck(importing, made["id"], "map=Shelf%3DURL"), 202)
    assert (mapped["id"], mapped["name"], mapped["state"], mapped["invalid"]) == (made["id"], "t.csv", "invalid", 1)
    assert mapped["options"] == {"map": ["Shelf=URL"]}, "what is omitted has its default"
    first = get(importing, f"/imports/{made['id']}/report")
    assert b"nonsense" in first.body
    left = got(recheck(importing, made["id"], "map=Shelf%3DURL&prefix=12345"), 202)
    assert (left["state"], left["outcomes"], left["sample"]) == (
        "ready",
        {"created": 2},
        ["12345/i1", "12345/nonsense"],
    )
    assert b"nonsense" not in get(importing, f"/imports/{made['id']}/report").body, "of the last check"
    ready = got(recheck(importing, made["id"], "map=Shelf%3DURL&skip_invalid=true"), 202)
    assert (ready["state"], ready["valid"], ready["invalid"]) == ("ready", 1, 1)
    assert get(importing, f"/imports/{made['id']}/report").body == first.body
    assert len(got(get(importing, "/imports"))["imports"]) == 1
    got(send(importing, "POST", f"/imports/{made['id']}/apply", {}, headers=basic()), 202)
    assert url_of(importing, "12345/i1") == "https://a.example/"


def test_result_of_another_check_is_not_applied(importing: Harness) -> None:
    made = got(upload(importing, TABLE), 202)
    path = f"/imports/{made['id']}/apply"
    again = got(recheck(importing, made["id"], "on_existing=update"), 202)
    assert (made["check"], again["check"]) == (0, 1)
    refused = send(importing, "POST", path, {"check": 0}, headers=basic())
    assert "was checked again" in problem(refused, "state-conflict")["detail"]
    got(send(importing, "POST", path, {"check": 1}, headers=basic()), 202)


def test_earlier_result_stays_if_the_check_cannot_start(importing: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    made = got(upload(importing, TABLE), 202)
    monkeypatch.setattr(state_jobs, "MAX_RUNNING", 1)
    reserved = reserve_slot

    @contextmanager
    def reserve_last(call: ApiCall) -> Iterator[Slot]:
        """Somebody else takes the slot after the first look at it."""
        with reserved(call) as slot:
            yield slot
        taken.enter_context(importing.jobs.running.reserve(OPERATOR))

    with ExitStack() as taken:
        monkeypatch.setattr(imports, "reserve_slot", reserve_last)
        checked = got(recheck(importing, made["id"], "on_existing=update"), 202)
        problem(recheck(importing, made["id"]), "busy")
    assert checked["state"] == "ready"
    assert got(get(importing, f"/imports/{made['id']}")) == checked


def test_repeated_request_does_not_conflict_with_its_own_check(importing: Harness) -> None:
    """Clients repeat it after a lost response, while the file is still being checked."""
    made = got(upload(importing, TABLE, "&map=DESC%3D-&prefix=12345"), 202)
    spooled = find_import(importing, made["id"])
    with spooled.claim():
        spooled.update(state=ImportState.CHECKING)
        again = got(recheck(importing, made["id"], "map=DESC%3D-&prefix=12345"), 202)
        assert (again["state"], again["check"], again["options"]) == ("checking", made["check"], made["options"])
        problem(recheck(importing, made["id"], "prefix=12345"), "state-conflict")
    interrupted = got(recheck(importing, made["id"], "map=DESC%3D-&prefix=12345"), 202)
    assert (interrupted["state"], interrupted["check"]) == (made["state"], made["check"] + 1)


def test_only_a_pending_file_of_the_user_is_checked_again(importing: Harness) -> None:
    made = got(upload(importing, TABLE), 202)
    assert importing.ask("POST", f"/api/v1/imports/{made['id']}/check", b"").status == 401
    problem(recheck(importing, "0123456789abcdef"), "not-found")
    problem(recheck(importing, made["id"], "map=nonsense"), "invalid-request")
    assert got(get(importing, f"/imports/{made['id']}"))["state"] == "ready", "what is refused changes nothing"
    with find_import(importing, made["id"]).claim():
        problem(recheck(importing, made["id"]), "state-conflict")
    got(send(importing, "POST", f"/imports/{made['id']}/apply", {}, headers=basic()), 202)
    problem(recheck(importing, made["id"]), "state-conflict")
    gone = got(upload(importing, TABLE.replace("i", "j")), 202)
    find_import(importing, gone["id"]).source.unlink()
    problem(recheck(importing, gone["id"]), "not-found")

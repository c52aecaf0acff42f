"""The overview of the console: namespaces, latest jobs and latest changes of the user."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from perseid.ledger.errors import ReadOnlyMode, StorageFull, StoreUnavailable, WriteProblem
from perseid.ledger.statistics import StatisticsStore
from perseid.records.record import Value
from perseid.registry.queries.namespaces import ChangePolicy
from perseid.schema.jobs import JobResponse, JobState
from perseid.server.http.console.findings import check_jobs
from tests.server.http.console.console_user import ConsoleUser
from tests.server.http.contexts import Harness, harness
from tests.server.http.resolver.resolver_records import create
from tests.server.installations import OPERATOR


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as made:
        for number in range(12):
            create(made, f"12345/latest-{number}", Value.text(1, "URL", f"https://old.example/{number}"))
        yield made


def test_overview_shows_namespaces_and_the_latest_changes_first(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    user.get("/console")
    shown = [number for number in range(12) if f"12345/latest-{number} " in user.text]
    assert shown == list(range(2, 12)), "the latest ten"
    assert user.text.index("12345/latest-11 ") < user.text.index("12345/latest-10 ")
    assert b'href="/console/namespaces/12345"' in user.page.body
    assert b'href="/console/new?prefix=12345"' in user.page.body


def test_overview_shows_the_latest_jobs(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    user.get("/console/rewrite?url=https%3A%2F%2Fold.example%2F*&to=https%3A%2F%2Fnew.example%2F*")
    user.submit("/rewrite")
    user.get("/console")
    assert "Latest jobs" in user.text
    assert "12 / 12" in user.text


def test_changes_of_the_installation_lead_to_their_pages(server: Harness) -> None:
    server.registry.do(ChangePolicy("12345", 'purpose = "Maps"'), OPERATOR, "cli")
    user = ConsoleUser(server).sign_in()
    for path in ("/console", "/console/log"):
        user.get(path)
        assert "update policy of 12345 " in user.text.replace(" cli ", " ")
        assert b'href="/console/namespaces/12345"><bdi>policy of 12345' in user.page.body
    for name, there in (
        ("POLICY/12345", "Show what would change"),
        ("HOMED/0.NA/12345", "Namespace"),
        ("TOKENS/A", "Tokens"),
    ):
        assert there in user.read(f"/console/records/{quote(f'0.SITE/{name}', safe='')}")
        assert user.page.status == 200
    user.get("/console/records/0.SITE%2FOTHER")
    assert (user.page.status, "Create this identifier" in user.text) == (404, False)


def test_overview_counts_public_identifiers(server: Harness, tmp_path: Path) -> None:
    store = server.registry.statistics = StatisticsStore(tmp_path)
    with server.registry.snapshot() as snapshot:
        while store.count_changes(snapshot.reader, server.registry.now()):
            pass
    count = store.count_public("12345")["12345"]
    assert f"{count} public identifiers" in ConsoleUser(server).sign_in().read("/console")
    create(server, "12345/owner", Value(300, "HS_SECKEY", b"secret-of-an-owner"))
    admin = ConsoleUser(server).sign_in()
    admin.get("/console/access?on=12345")
    admin.submit("/grant", identity="300:12345/owner", rights="owner")
    owner = ConsoleUser(server).sign_in("300:12345/owner", "secret-of-an-owner")
    assert f"{count} public identifiers" in owner.read("/console"), "also without permission for all namespaces"


def test_overview_says_what_needs_attention(server: Harness) -> None:
    user = ConsoleUser(server).sign_in()
    user.get("/console/tokens")
    user.submit("/tokens", scope="read", label="the catalog", days="20")
    assert "Needs attention" not in user.read("/console")
    now = server.context.time()
    server.service.server = replace(server.context, time=lambda: now + 7 * 86_400)
    user.sign_in()
    assert "Token the catalog expires on" in user.read("/console")
    assert b'href="/console/tokens"' in user.page.body
    job = JobResponse(
        "0123456789abcdef", "rewrite", JobState.UNFINISHED, {}, 3, 9, "2026-11-18T10:00:00Z", None, "", ""
    )
    (finding,) = check_jobs([job, msgspec.structs.replace(job, state=JobState.DONE)])
    assert (finding.text, finding.path) == (
        "Job 0123456789abcdef is unfinished. Resume it, or undo it.",
        "/console/jobs/0123456789abcdef",
    )


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (StorageFull("no space"), "Changes are refused now: "),
        (ReadOnlyMode("read-only until 14:00"), "Changes are refused now: Read-only until 14:00; nothing was changed."),
        (StoreUnavailable("gone"), "Changes are refused now: the database cannot be reached."),
        (None, "This server is not ready: the answers are being built."),
    ],
)
def test_overview_tells_the_state_of_the_server(
    server: Harness, monkeypatch: pytest.MonkeyPatch, problem: WriteProblem | None, words: str
) -> None:
    user = ConsoleUser(server).sign_in()
    if problem is None:
        server.service.server = replace(server.context, ready=lambda: "the answers are being built")
    # Not the state itself: a thread of the ledger checks it again.
    monkeypatch.setattr(type(server.registry.ledger), "write_problem", property(lambda _ledger: problem))
    assert words in user.read("/console")
    assert words in user.read("/console/records")


def test_user_without_permissions_sees_nothing_of_others(server: Harness) -> None:
    create(server, "12345/guest", Value(300, "HS_SECKEY", b"secret-of-a-guest"))
    guest = ConsoleUser(server).sign_in("300:12345/guest", "secret-of-a-guest")
    guest.get("/console")
    assert "You have access to no namespace yet." in guest.text
    assert "give it to your identity: 300:12345/guest" in guest.text
    assert "Latest changes" not in guest.text
    assert "12345/latest" not in guest.text


def test_overview_is_escaped(server: Harness) -> None:
    create(server, "12345/<b>x", Value.text(1, "URL", "https://old.example/"))
    user = ConsoleUser(server).sign_in()
    user.get("/console")
    assert b"12345/<wbr>&lt;b&gt;x" in user.page.body
    assert b"<b>x" not in user.page.body

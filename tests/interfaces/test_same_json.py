"""`--json` prints what the HTTP API returns: the same request has the same JSON at both interfaces.

The requests run in order on two copies of one installation. A list is one page of the API, and one line for each of its
items at the command line.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import typer

from perseid.cli import app
from perseid.cli._commands import LazyCommand
from perseid.ledger.statistics import DAY, StatisticsStore
from tests.server.http.contexts import basic
from tests.server.http.v1.apis import send
from tests.server.http.v1.interfaces import BothInterfaces, both_interfaces
from tests.server.installations import ADMINISTRATOR, SECRET

NOW: Final = ("at", "changed", "timestamp")
"""Times of entries that both requests make themselves."""

JOB: Final = ("job", "started_at", "ended_at", "undone_by")
"""Ids and times of jobs."""

RANDOM: Final = ("handles", "metadata")
"""Minted handles are random in this namespace."""


@dataclass(frozen=True)
class Case:
    """A command and its route."""

    words: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    items: str = ""
    """The field of the page whose items the command prints, one a line."""
    differs: tuple[str, ...] = ()
    """Fields that differ by call."""


CASES: Final = (
    # Reading
    Case("resolve 12345/n0", "GET", "/handles/12345%2Fn0"),
    Case("resolve 12345/N0 --at 20", "GET", "/handles/12345%2FN0?at=20"),
    Case("resolve 12345/private --private", "GET", "/handles/12345%2Fprivate?private=true"),
    Case("resolve 12345/n0 --authority", "GET", "/handles/12345%2Fn0/authority"),
    Case("resolve 102.100.TYPE/CREATOR", "GET", "/handles/102.100.TYPE%2FCREATOR"),
    Case("history 12345/n0", "GET", "/handles/12345%2Fn0/history"),
    Case("diff 12345/n0 1", "GET", "/handles/12345%2Fn0/differences?earlier=1"),
    Case("log --since 50", "GET", "/log?since=50&limit=1000", items="entries", differs=NOW),
    Case(
        "log --actor local:tests --action create --prefix 12345 --newest --until 50",
        "GET",
        "/log?actor=local:tests&action=create&prefix=12345&newest=true&until=50&limit=1000",
        items="entries",
        differs=NOW,
    ),
    Case("list 12345", "GET", "/namespaces/12345/handles?limit=1000", items="handles"),
    Case(
        "list 12345 --state published",
        "GET",
        "/namespaces/12345/handles?state=published&limit=1000",
        items="handles",
    ),
    Case("history 12345/n0 --limit 1", "GET", "/handles/12345%2Fn0/history?limit=1", differs=("next",)),
    Case("find --type EMAIL --prefix 12345", "GET", "/find?type=EMAIL&prefix=12345&limit=1000", items="results"),
    Case(
        "cite 12345/n0 --resolver https://x.example", "GET", "/handles/12345%2Fn0/citation?resolver=https://x.example"
    ),
    Case(
        "cite 12345/n0 --style bibtex --at 20 --resolver https://x.example",
        "GET",
        "/handles/12345%2Fn0/citation?style=bibtex&at=20&resolver=https://x.example",
    ),
    Case("prove 12345/n0 --at 20", "GET", "/handles/12345%2Fn0/proof?at=20", differs=("checkpoint", "path")),
    Case(
        "statistics 12345 --by namespace",
        "GET",
        "/statistics?namespace=12345&by=namespace",
        differs=("since", "until"),  # of the last month
    ),
    Case("statistics 12345 --wanted", "GET", "/statistics/wanted?namespace=12345"),
    Case("list 12345 --starts-with n4", "GET", "/namespaces/12345/handles?starts_with=n4&limit=1000", items="handles"),
    Case(
        "find --prefix 12345 --state tombstone", "GET", "/find?prefix=12345&state=tombstone&limit=1000", items="results"
    ),
    # Records
    Case(
        "create 12345/new --value 1:DESC=x",
        "POST",
        "/handles",
        {"handle": "12345/new", "values": [{"index": 1, "type": "DESC", "data": "x"}]},
    ),
    Case("add 12345/new 2:URL=x", "POST", "/handles/12345%2Fnew/values", {"values": [{"type": "URL", "data": "x"}]}),
    Case("set 12345/new URL=y", "PUT", "/handles/12345%2Fnew/values", {"values": [{"type": "URL", "data": "y"}]}),
    Case("resolve 12345/new", "GET", "/handles/12345%2Fnew", differs=NOW),
    Case("remove 12345/new 2", "DELETE", "/handles/12345%2Fnew/values?index=2"),
    Case("history 12345/new", "GET", "/handles/12345%2Fnew/history", differs=("at", "timestamp", "interface")),
    Case("unpublish 12345/new", "POST", "/handles/12345%2Fnew/unpublish"),
    Case("publish 12345/new", "POST", "/handles/12345%2Fnew/publish"),
    Case("tombstone 12345/new --reason gone", "POST", "/handles/12345%2Fnew/tombstone", {"reason": "gone"}),
    Case("tombstone 12345/new --undo", "POST", "/handles/12345%2Fnew/revive"),
    Case("transfer 12345/new --to 300:12345/ann", "POST", "/handles/12345%2Fnew/transfer", {"to": "300:12345/ann"}),
    Case("link version 12345/n1 12345/n2", "POST", "/links/versions", {"work": "12345/n1", "version": "12345/n2"}),
    Case("link version 12345/n1 12345/n2", "POST", "/links/versions", {"work": "12345/n1", "version": "12345/n2"}),
    Case(
        "link metadata 12345/n3 12345/n4", "POST", "/links/metadata", {"resource": "12345/n3", "metadata": "12345/n4"}
    ),
    Case("delete 12345/n5", "DELETE", "/handles/12345%2Fn5"),
    # Explanations
    *[
        Case(f"explain {words}", "POST", "/explain", {"command": words.split()[0], **body})
        for words, body in (
            ("create 12345/newer", {"handle": "12345/newer"}),
            ("set 12345/n0 URL=x", {"handle": "12345/n0", "values": [{"type": "URL", "data": "x"}]}),
            ("add 12345/n0 DESC=x", {"handle": "12345/n0", "values": [{"type": "DESC", "data": "x"}]}),
            ("remove 12345/n0 1", {"handle": "12345/n0", "indexes": [1]}),
            ("delete 12345/n0", {"handle": "12345/n0"}),
            ("mint 12345", {"prefix": "12345"}),
            ("publish 12345/n0", {"handle": "12345/n0"}),
            ("unpublish 12345/n0", {"handle": "12345/n0"}),
            ("tombstone 12345/n0", {"handle": "12345/n0"}),
            ("transfer 12345/n0 --to 300:12345/ann", {"handle": "12345/n0", "to": "300:12345/ann"}),
            ("remove 12345/n0 77", {"handle": "12345/n0", "indexes": [77]}),
        )
    ],
    # Jobs
    Case(
        "rewrite --host example.org --type URL --to https://new.example/* --dry-run",
        "GET",
        "/rewrites/preview?host=example.org&type=URL&to=https://new.example/*&limit=1000",
        items="handles",
    ),
    Case(
        "rewrite --url https://example.org/* --to https://new.example/* --yes --note moved",
        "POST",
        "/rewrites",
        {"url": "https://example.org/*", "to": "https://new.example/*", "note": "moved"},
        differs=JOB,
    ),
    Case("undo last --dry-run", "GET", "/jobs/last/undo", differs=JOB),
    Case("undo last --yes", "POST", "/jobs/last/undo", {}, differs=JOB),
    Case("jobs show", "GET", "/jobs/last", differs=JOB),
    Case(
        "transfer 12345/n4* --to 300:12345/ann --yes",
        "POST",
        "/transfers",
        {"where": "12345/n4*", "to": "300:12345/ann"},
        differs=(*JOB, "total"),  # only the server counts before it starts
    ),
    Case("jobs list", "GET", "/jobs", items="jobs", differs=(*JOB, "total")),
    # Minting; at the command line many handles are a job
    Case("mint 12345 --count 3", "POST", "/mint", {"prefix": "12345", "count": 3}, differs=RANDOM),
    Case("mint 12345 --with-metadata", "POST", "/mint", {"prefix": "12345", "metadata": []}, differs=RANDOM),
    Case("reserve 12345", "POST", "/reserve", {"prefix": "12345"}, differs=RANDOM),
    Case("reserve 12345/r1 12345/r2", "POST", "/reserve", {"handles": ["12345/r1", "12345/r2"]}),
    # Namespaces, types and tokens
    Case("namespace add 99", "POST", "/namespaces", {"prefix": "99"}),
    Case(
        "namespace add 98 --profile pilin --purpose Maps",
        "POST",
        "/namespaces",
        {"prefix": "98", "profile": "pilin", "purpose": "Maps"},
        differs=("creator",),  # its handle has the time
    ),
    Case("namespace remove 99", "DELETE", "/namespaces/99"),
    Case("namespace remove 98 --retire --note gone", "DELETE", "/namespaces/98?retire&note=gone"),
    Case("namespace list", "GET", "/namespaces", items="namespaces", differs=("creator",)),
    Case("namespace show 12345", "GET", "/namespaces/12345"),
    Case("namespace policy 12345", "GET", "/namespaces/12345/policy"),
    Case("namespace policy 12345 --file -", "PUT", "/namespaces/12345/policy", {"policy": 'purpose = "Maps"\n'}),
    Case(
        "type add 12345/SCALE --definition 'The scale of a map' --pattern 1:.* --example 1:25000",
        "POST",
        "/types",
        {
            "handle": "12345/SCALE",
            "description": "The scale of a map",
            "pattern": "1:.*",
            "example": "1:25000",
        },
    ),
    Case("type show 12345/SCALE", "GET", "/types/12345%2FSCALE"),
    Case("type list", "GET", "/types", items="types"),
    Case(
        "token create --scope read,find --namespace 12345 --expires-in 30d --label x",
        "POST",
        "/tokens",
        {"scopes": ["read", "find"], "namespaces": ["12345"], "expires_in": "30d", "label": "x"},
        differs=("id", "token", "expires"),
    ),
    Case("token list", "GET", "/tokens", items="tokens", differs=("id", "created", "expires")),
    Case("token show {token}", "GET", "/tokens/{token}", differs=("id", "created", "expires")),
    Case("token revoke {token}", "DELETE", "/tokens/{token}", differs=("id", "created", "expires", "revoked")),
    # Users and rights
    Case(
        "user add 12345 zoe --email zoe@example.org",
        "POST",
        "/users",
        {"prefix": "12345", "name": "zoe", "email": "zoe@example.org"},
        differs=("secret",),
    ),
    Case(
        "grant 12345/zoe editor --on 12345",
        "POST",
        "/grants",
        {"identity": "12345/zoe", "rights": ["editor"], "on": "12345"},
    ),
    Case(
        "grant 12345/zoe editor --on 12345",
        "POST",
        "/grants",
        {"identity": "12345/zoe", "rights": ["editor"], "on": "12345"},
    ),
    Case(
        "grant 12345/zoe reader --on 12345/n0 --dry-run",
        "POST",
        "/grants",
        {"identity": "12345/zoe", "rights": ["reader"], "on": "12345/n0", "dry_run": True},
    ),
    Case("access 12345", "GET", "/access?on=12345"),
    Case("access 12345/n0", "GET", "/access?on=12345/n0"),
    Case("revoke 12345/zoe --on 12345", "POST", "/revocations", {"identity": "12345/zoe", "on": "12345"}),
    Case("user list 12345", "GET", "/users?prefix=12345&limit=1000", items="users"),
    Case("user reset 12345/zoe", "POST", "/users/12345%2Fzoe/reset", {}, differs=("secret",)),
    Case("user disable 12345/zoe", "POST", "/users/12345%2Fzoe/disable", {}),
    # Syntax
    Case("name parse hdl:102.100.272/d7j1g0dqh?x", "GET", "/names/parse?text=hdl:102.100.272/d7j1g0dqh%3Fx"),
    Case("name convert 12345/a --to path", "GET", "/names/convert?text=12345/a&to=path"),
    Case(
        f"name convert hdl:1/{'A' * 32}?x#y --to handle --scheme cordra --strict",
        "GET",
        f"/names/convert?text=hdl:1/{'A' * 32}%3Fx%23y&to=handle&scheme=cordra&strict=true",
    ),
    Case("name rules H3", "GET", "/names/rules/H3"),
    Case("suffix pilin --decode D7J1G0DQH", "GET", "/suffixes/pilin/D7J1G0DQH"),
    Case("suffix pilin --at 2007-09-17T07:14:50.919Z", "GET", "/suffixes/pilin?at=2007-09-17T07:14:50.919Z"),
    Case("suffix cordra --version 1", "GET", "/suffixes/cordra?version=1", differs=("suffix", "uuid")),
)
"""Every command that has a route, in the order in which both run."""

INPUT: Final = {"namespace policy 12345 --file -": b'purpose = "Maps"\n'}
"""Standard input of commands."""

WITHOUT_ROUTE: Final = {
    "init": "creates the installation",
    "serve": "starts the server",
    "config": "shows the files of the installation",
    "check": "checks the machine and the files of the installation",
    "upgrade": "changes the tables of a stopped installation",
    "backup": "writes a file",
    "restore": "creates an installation",
    "rebuild": "rewrites the views",
    "login": "saves a server on this machine",
    "logout": "removes a saved server from this machine",
    "whoami": "shows what the command works on",
    "key list": "shows all keys of the installation; GET /ledger/key has those of the ledger",
    "key rotate": "changes the key files of the installation",
    "key generate": "writes key files, without an installation",
    "namespace derive": "POST /namespaces with the derived prefix, as for namespace add",
    "edit": "starts an editor; GET and PUT /handles/{handle} with If-Match",
    "redact": "erases data permanently, only at the machine",
    "qr": "with --json it describes the file that it writes; GET /handles/{handle}/qr returns the image",
    "verify": "works without a server",
    "jobs cancel": "needs an unfinished job; it prints the job, as jobs show",
    "jobs resume": "needs an interrupted job; it prints the job, as jobs show",
    "jobs undo": "the same command as undo",
    "import": "reads a file of this machine, and reports about it; it prints the job, as jobs show",
    "export": "writes a file; with --json it describes the file",
    "node export": "writes a file",
    "read-only": "changes the state of all nodes",
    "node join": "creates the directory of a node",
    "site add": "writes the site information of an installation",
    "site join": "writes the site information of an installation",
    "site misplaced": "reads the site information of an installation",
    "migrate copy": "copies another server",
    "migrate compare": "compares another server with the copy",
    "migrate checklist": "shows what is left to do by hand",
    "migrate keys": "reads the key files of another server",
    "bench": "measures this machine",
}
"""Every other command with `--json`, and the reason."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothInterfaces]:
    """Two copies with the same statistics."""
    with both_interfaces() as both:
        folder = tmp_path_factory.mktemp("statistics")
        both.server.registry.statistics = StatisticsStore(folder)
        yesterday = int(time.time()) - DAY
        for store in (StatisticsStore(both.site.directory), both.server.registry.statistics):
            counts = {("12345", "redirects"): 3, ("12345", "bot_pages"): 2, ("12345", "not_found"): 1}
            store.add(yesterday, counts, {("12345", "12345/wanted"): 1})
        yield both


def test_json_of_the_command_line_is_json_of_the_api(both: BothInterfaces) -> None:
    tokens = {"cli": "", "api": ""}
    for case in CASES:
        words = case.words.replace("{token}", tokens["cli"])
        identity = [] if words.startswith(("name ", "suffix ")) else ["--as", ADMINISTRATOR]
        done = both.site(words, "--json", *identity, stdin=INPUT.get(words, b""))
        path = case.path.replace("{token}", tokens["api"])
        answer = send(both.server, case.method, path, case.body, headers=basic(ADMINISTRATOR, SECRET))
        assert answer.status < 300, (case, answer)
        printed, returned = [json.loads(line) for line in done.out.splitlines()], json.loads(answer.body)
        if "token" in returned:
            tokens = {"cli": printed[0]["id"], "api": returned["id"]}
        if case.items:
            assert returned.get("next") is None
            returned = returned[case.items]
        else:
            (printed,) = printed
        assert without(printed, case.differs) == without(returned, case.differs), case


def without(document: Any, names: tuple[str, ...]) -> Any:
    """Replace the values of fields that differ by call."""
    if isinstance(document, list):
        return [without(each, names) for each in document]
    if isinstance(document, dict):
        return {
            name: len(value)
            if name in names and isinstance(value, list)
            else "…"
            if name in names
            else without(value, names)
            for name, value in document.items()
        }
    return document


def json_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands with the option `--json`."""
    command = command.load() if isinstance(command, LazyCommand) else command
    for name, child in getattr(command, "commands", {}).items():
        yield from json_commands(child, (*path, name))
    if any("--json" in param.opts for param in command.params):
        yield " ".join(path)


def test_every_command_has_a_case_or_a_reason() -> None:
    commands = set(json_commands(typer.main.get_command(app)))
    tested = {command for command in commands for case in CASES if f"{case.words} ".startswith(f"{command} ")}
    assert not tested & WITHOUT_ROUTE.keys()
    assert commands == tested | WITHOUT_ROUTE.keys()

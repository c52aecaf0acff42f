"""The curl commands and Python programs of the documentation pages: both send the same request, and they work."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

import perseid
from perseid.client.api import Client, Operations
from perseid.client.api_exchange import ApiRequest, HttpRequest, Upload, build_request
from perseid.schema.common import MAX_PAGE
from perseid.schema.imports import ImportQuery
from perseid.schema.jobs import JobResponse
from perseid.schema.namespaces import SCOPES
from perseid.server.http.pages import docs_examples
from perseid.server.http.pages.docs_examples import Example, curl_command, make_example, python_program
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE, Route
from tests.server.http.v1 import openapi_document
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.running import serving

URL: Final = "http://127.0.0.1:8000"
ROUTES: Final = get_api().routes
SAFE: Final = [route for route in ROUTES if route.method == "GET" or route.operation == "explain"]
VARIABLES: Final = {"TOKEN": "perseid_x", "SECRET": "s", "TOKEN_ID": "abcdefgh", "IMPORT_ID": "0123456789abcdef"}
FAILING_CURL: Final = 'curl() { command curl --silent --show-error --fail-with-body --max-time 60 "$@"; }'


def example_of(route: Route) -> Example:
    document = openapi_document.document()
    return make_example(route, document["paths"][route.path][route.method.lower()], document["components"]["schemas"])


def run_python(program: str) -> None:
    exec(compile(program, "example", "exec"), {"__name__": "example"})


class _Sent(Exception):
    """A request that is not sent."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__()
        self.request = request


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients raise their first request, with variables and a file as an example has them."""

    def send(self: Client, request: ApiRequest[Any]) -> None:
        raise _Sent(build_request(request, self.options.origin, self.options.credentials.headers() or {}))

    monkeypatch.setattr(Client, "send", send)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    (tmp_path / docs_examples.FILE).write_bytes(b"handle,URL\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_python_sends_the_request_of_curl(route: Route) -> None:
    example = example_of(route)
    with pytest.raises(_Sent) as sent:
        run_python(python_program(example, URL))
    request = sent.value.request
    words = shlex.split(curl_command(example, URL))
    expected = urlsplit(re.sub(r"\$(\w+)", lambda match: VARIABLES[match[1]], words[-1]))
    if route.operation == "watchJob":  # whose client reads the job first
        expected = expected._replace(path=expected.path.removesuffix("/events"))
    found = urlsplit(request.url)
    assert (request.method, found.path) == (route.method, expected.path)
    pages = [("limit", str(MAX_PAGE))] if "limit" in route.query.__struct_fields__ else []  # as large as allowed
    assert sorted(parse_qsl(found.query)) == sorted([*parse_qsl(expected.query), *pages])
    scheme = {"token": "Bearer", "secret": "Basic", "": ""}[example.credentials]
    assert request.headers.get("Authorization", "").partition(" ")[0] == scheme
    assert any(word.startswith("Authorization: Bearer") for word in words) == (scheme == "Bearer")
    assert ("-u" in words) == (scheme == "Basic")
    if route.is_streamed:
        assert isinstance(request.body, Upload)
        assert b"".join(request.body) == b"handle,URL\n"
        request.body.file.close()
        assert f"@{docs_examples.FILE}" in words
    elif route.body is not None:
        (body,) = [words[place + 1] for place, word in enumerate(words) if word == "-d"]
        decode = msgspec.json.Decoder(route.body).decode
        assert isinstance(request.body, bytes)
        assert decode(request.body) == decode(body.encode())


def test_python_calls_only_methods_of_the_client() -> None:
    called = set()
    for route in ROUTES:
        tree = ast.parse(python_program(example_of(route), URL))
        names = [
            node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "client"
        ]
        assert len(names) == 1, route.operation
        assert hasattr(Operations, names[0]) or names == ["watch"], route.operation
        called.add(names[0])
    assert len(called) == len(ROUTES), "each operation has a method of its own"


def test_python_passes_the_type_checker(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    for route in ROUTES:
        program = python_program(example_of(route), URL)
        (folder / f"{route.operation}.py").write_text(program + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {len(ROUTES)} source files" in done.stdout


# At a running server


def run_curl(
    example: Example, url: str, variables: Mapping[str, str], folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a command as a reader does, in a folder and with variables; it fails if it is refused."""
    assert shutil.which("curl"), "curl is not installed; on Debian: apt-get install curl"
    command = f"{FAILING_CURL}\n{curl_command(example, url)}"
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", "-c", command], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@dataclass(frozen=True)
class Site:
    """A server with everything that the examples of reads name."""

    url: str
    variables: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(copy_to(tmp_path_factory.mktemp("docs"))) as server:
        url = f"http://127.0.0.1:{server.http[1]}"
        with perseid.connect(url, identity=ADMINISTRATOR, secret=SECRET) as client:
            client.create("12345/x", {"URL": "https://example.org/x"})
            client.add_type("12345/SCALE", "The scale of a map")
            client.add_user("12345", "ann")
            client.create("12345/maps-1", {"URL": "https://example.org/1"})
            created = client.create_token(SCOPES, all_namespaces=True)
        with perseid.connect(url, token=created.token) as client:  # imports and jobs belong to who starts them
            file = BytesIO(b"URL,HS_VLIST\nhttps://example.org/row,\nhttps://example.org/bad,nobody\n")
            options = ImportQuery(name="rows.csv", prefix="12345", mint=True, skip_invalid=True)
            checked = client.check_import(file, options)
            assert (checked.valid, checked.invalid) == (1, 1), checked
            client.wait(client.apply_import(checked.id).job)
        yield Site(url, {"TOKEN": created.token, "TOKEN_ID": created.id, "IMPORT_ID": checked.id})


@pytest.mark.parametrize("route", SAFE, ids=lambda route: route.operation)
def test_curl_command_of_a_read_works(site: Site, tmp_path: Path, route: Route) -> None:
    done = run_curl(example_of(route), site.url, site.variables, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("route", SAFE, ids=lambda route: route.operation)
def test_python_program_of_a_read_works(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], route: Route
) -> None:
    for name, value in site.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    run_python(python_program(example_of(route), site.url))
    shown = capsys.readouterr().out or list(tmp_path.iterdir())
    assert shown or route.operation == "listImportChanges", "an import that only mints changes no record"


# Changes, in an order in which each finds what it needs


@dataclass(frozen=True)
class Step:
    """A change, and the type of the problem if it is refused as it should be."""

    operation: str
    problem: str = ""


CHANGES: Final = [
    *map(Step, ("mint", "reserve", "generate", "createRecord", "setValues", "addValues", "replaceRecord")),
    *map(Step, ("removeValues", "unpublish", "publish", "tombstone", "revive", "createAlias", "linkVersion")),
    *map(Step, ("linkMetadata", "addType", "rewrite", "undoJob", "addUser", "grant", "grantInRecords", "revoke")),
    Step("resumeJob", "state-conflict"),  # it is complete
    Step("cancelJob", "state-conflict"),
    *map(Step, ("transferAll", "resetUser", "changePolicy", "createImport", "recheckImport")),
    *map(Step, ("deleteImport", "applyImport")),
    *map(Step, ("deleteRecord", "transfer", "disableUser", "createToken")),
    Step("addNamespace", "already-exists"),
    Step("removeNamespace", "state-conflict"),  # it is not empty
    Step("revokeToken"),
]


def test_changes_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {step.operation: step for step in CHANGES}
    assert {*steps} | {route.operation for route in SAFE} == {route.operation for route in ROUTES}
    routes = {route.operation: route for route in ROUTES}
    table = b"handle,URL\n12345/row,https://example.org/row\n"
    (tmp_path / docs_examples.FILE).write_bytes(table)
    monkeypatch.setenv("SECRET", SECRET)
    with serving(copy_to(tmp_path)) as server:
        url = f"http://127.0.0.1:{server.http[1]}"
        with perseid.connect(url, identity=ADMINISTRATOR, secret=SECRET) as client:
            for name in ("map", "map-1", "about-map", "maps-1"):
                client.create(f"12345/{name}", {"URL": f"https://example.org/{name}"})
            token = client.create_token(SCOPES, all_namespaces=True)
        with perseid.connect(url, token=token.token) as client:
            imports: dict[str, str] = {}
            for operation in ("recheckImport", "deleteImport", "applyImport"):
                imports[operation] = client.check_import(BytesIO(table), ImportQuery(name="table.csv")).id
            for step in CHANGES:
                example = example_of(routes[step.operation])
                if step.operation == "transfer":
                    client.create("12345/x", {"URL": "https://example.org/"}, reuse_deleted=True)
                if example.credentials == "secret":  # curl asks for it on the terminal
                    run_python(python_program(example, url))
                    continue
                variables = {"TOKEN": token.token, "TOKEN_ID": token.id, "IMPORT_ID": imports.get(step.operation, "")}
                done = run_curl(example, url, variables, tmp_path)
                if step.problem:
                    assert f"#{step.problem}" in done.stdout, step
                else:
                    assert done.returncode == 0, (step, done.stdout, done.stderr)
                if example.route.response is JobResponse:
                    client.wait("last")


def test_examples_are_below_the_base_path() -> None:
    assert all(f'"{URL}{BASE}/' in curl_command(example_of(route), URL) for route in ROUTES)

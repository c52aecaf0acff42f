"""Jobs on a running server, across restarts and reloads."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.queries.find import Search, find
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.processes.jobs import NICENESS
from tests.cli.installation import call
from tests.server.http.contexts import basic
from tests.server.http.test_http_application import reload
from tests.server.installations import ADMINISTRATOR, OPERATOR, PREFIX, copy_to
from tests.server.processes.test_processes import children, eventually
from tests.server.running import Address, serving

COUNT = 5_000
ORDER = {"url": "http://old.example/*", "to": "https://new.example/*", "note": "the host has moved"}
ADMIN = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """An installation with thousands of names that lead to one host."""
    directory = copy_to(tmp_path)
    with Installation.open(directory, environ={}) as installation:
        load(installation, 0, COUNT)
    return directory


def load(installation: Installation, first: int, count: int) -> None:
    names = (f"{PREFIX}/m{number:05}" for number in range(first, first + count))
    installation.ledger.load(
        Draft(
            Action.CREATE,
            State.NORMAL,
            name,
            "cli",
            str(OPERATOR),
            values=(Value.text(1, "URL", f"http://old.example/{name}"), ADMIN),
        )
        for name in names
    )


def ask(
    address: Address, method: str, path: str, plain: object = None, identity: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    body = None if plain is None else json.dumps(plain)
    connection.request(
        method,
        f"/api/v1{path}",
        body,
        {**(identity or basic()), **({"Content-Type": "application/json"} if body else {})},
    )
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def listen(address: Address, path: str, identity: dict[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """Events as they come, to the end of the stream."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", f"/api/v1{path}", headers={**(identity or basic()), "Accept": "text/event-stream"})
    response = connection.getresponse()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
    name = ""
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))
    connection.close()


def test_rewrite_survives_a_restart(filled: Path) -> None:
    with serving(filled) as server:
        status, begun = ask(server.http, "POST", "/rewrites", ORDER)
        assert (status, begun["state"]) == (202, "running")
        where = f"/jobs/{begun['job']}"
        events = listen(server.http, f"{where}/events")
        name, first = next(events)
        assert (name, first["job"], first["state"]) == ("progress", begun["job"], "running")
        eventually(lambda: bool(children(server, "jobs")), "the process of jobs")
        (process,), (worker,) = children(server, "jobs"), children(server, "worker")
        normal = os.getpriority(os.PRIO_PROCESS, worker)
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, process) == min(normal + NICENESS, 19), "a low priority")
        os.kill(process, signal.SIGKILL)
        eventually(lambda: children(server, "jobs") not in ([], [process]), "another process of jobs")
        assert ask(server.http, "GET", where)[1]["state"] == "running"
        assert json.loads(call("jobs", "show", begun["job"], "--json", "-d", str(filled)).out)["state"] == "running"
        assert "  running " in call("jobs", "list", "-d", str(filled)).out
        server.stop()  # while it goes on, and while somebody listens
        assert "end" not in [name for name, _ in events]
        assert f"to resume it: perseid jobs resume {begun['job']}" in server.errors
    with serving(filled) as server:
        status, left = ask(server.http, "GET", where)
        assert (left["state"], left["problem"]["title"]) == ("unfinished", "Job failed")
        assert left["problem"]["detail"].startswith("The server stopped, or")
        assert left["problem"]["advice"] == f"Resume that job: POST /api/v1{where}/resume"
        shown = json.loads(call("jobs", "show", begun["job"], "--json", "-d", str(filled)).out)
        assert (shown["state"], shown["problem"]["detail"]) == ("unfinished", left["problem"]["detail"])
        assert first["done"] <= left["done"] < COUNT
        status, told = ask(server.http, "POST", f"{where}/resume")
        assert (status, told["job"]) == (202, begun["job"])
        heard = list(listen(server.http, f"{where}/events"))
        assert [name for name, _ in heard][-1] == "end"
        assert (heard[-1][1]["state"], heard[-1][1]["done"]) == ("done", COUNT)
        status, entries = ask(server.http, "GET", "/find?host=new.example&limit=1")
        assert entries["results"][0]["handle"] == f"{PREFIX}/m00000"
    with Installation.open(filled, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        with registry.snapshot() as snapshot:
            assert find(snapshot, OPERATOR, Search(host="old.example")).items == ()
        verify(installation.log)


def test_running_job_uses_settings_after_sighup(filled: Path) -> None:
    """A user who is no longer server administrator after a reload stops at the next step."""
    bea, beas = f"300:{PREFIX}/bea", basic(f"300:{PREFIX}/bea", "beas secret")
    with Installation.open(filled, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        key = Value(300, "HS_SECKEY", b"beas secret", permissions=Permission(0x0C))
        registry.do(Create(Handle.parse(f"{PREFIX}/bea"), (key,)), OPERATOR, "cli")
        load(installation, COUNT, 3 * COUNT)  # so many that it goes on for longer than settings take to be read
    settings = filled / "perseid.toml"
    before = settings.read_text()
    settings.write_text(f'[administrators]\nserver = ["{ADMINISTRATOR}", "{bea}"]\nfull_access = true\n')
    with serving(filled) as server:
        status, begun = ask(server.http, "POST", "/transfers", {"where": PREFIX, "to": bea}, beas)
        assert (status, begun["state"]) == (202, "running"), begun
        settings.write_text(before)
        reload(server, "were reloaded")
        events = list(listen(server.http, f"/jobs/{begun['job']}/events", beas))
        name, told = events[-1]
        assert (name, told["state"]) == ("end", "unfinished")
        assert "LIST_HANDLES" in told["problem"]["detail"]

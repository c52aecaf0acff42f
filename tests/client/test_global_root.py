"""The global root: packaged, cached or fetched, and the tool that writes the packaged one."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

import global_root
from perseid.client import roots
from perseid.client.bootstrap import CACHE_LIFETIME, Bootstrap, find_cache, read_cache, write_cache
from perseid.client.errors import Unreachable
from perseid.client.roots import Root
from perseid.records.json_form import value_to_json
from perseid.records.record import Value
from perseid.records.site import Site
from tests.client.worlds import OTHER_HOST, ROOT_HOST, make_site, site_value
from tests.wire.key_material import SERVER_KEY

Records = Mapping[str, tuple[Value, ...]]

SITE = Site.from_bytes(make_site(ROOT_HOST, key=SERVER_KEY).to_bytes())
OTHER = Site.from_bytes(make_site(OTHER_HOST, key=SERVER_KEY).to_bytes())
KEY = Value(300, "HS_PUBKEY", SERVER_KEY.public.to_bytes())
RECORDS: Records = {
    "0.NA/0.NA": (Value.text(1, "HS_SERV", "10320/root"), Value.text(2, "HS_SERV", "0.na/0.na")),
    "10320/ROOT": (site_value(SITE), site_value(OTHER, 2, "HS_SITE.6")),
    "0.0/0.0": (KEY,),
}


class Publisher(ThreadingHTTPServer):
    """Publishes records as the operators do."""

    def __init__(self, records: Records) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.records = {handle.upper(): values for handle, values in records.items()}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/handles"


class _Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        handle = unquote(self.path.removeprefix("/api/handles/")).upper()
        self.server.asked.append(handle)
        values = self.server.records.get(handle)
        body = json.dumps({"handle": handle, "values": [value_to_json(value) for value in values or ()]}).encode()
        self.send_response(404 if values is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def publisher(records: Records = RECORDS) -> Iterator[Publisher]:
    with Publisher(records) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(roots, "PACKAGED", tmp_path / "data" / "global_root.json")
    return tmp_path


def make_cache(home: Path, age: float, now: float) -> Path:
    path = find_cache({"HOME": str(home)})
    write_cache(path, Bootstrap({"0.NA/0.NA": (site_value(OTHER),)}, now - age))
    return path


def test_fetched_records_are_cached_for_the_user_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with publisher() as server:
        monkeypatch.setattr(roots, "GLOBAL_RECORDS", server.url)
        first = Root.load("global")
        assert sorted(server.asked) == ["0.NA/0.NA", "10320/ROOT"]
        assert Root.load("global") == first
        assert len(server.asked) == 2
    assert first.sites == (SITE, OTHER)
    path = home / ".cache" / "perseid" / "global_root.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [each.name for each in path.parent.iterdir()] == ["global_root.json"]


def test_old_records_are_fetched_again_and_kept_if_nobody_answers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    with publisher() as server:
        monkeypatch.setattr(roots, "GLOBAL_RECORDS", server.url)
        path = make_cache(home, CACHE_LIFETIME - 1, now)
        assert Root.load("global").sites == (OTHER,)
        for age in (CACHE_LIFETIME, -1):
            make_cache(home, age, now)
            assert Root.load("global").sites == (SITE, OTHER)
        make_cache(home, CACHE_LIFETIME, now)
        path.chmod(0o666)
        assert Root.load("global").sites == (SITE, OTHER), "others could write it"
        assert path.stat().st_mode & 0o777 == 0o600
    make_cache(home, CACHE_LIFETIME, now)
    found = Root.load("global")
    assert (found.sites, found.updated) == ((OTHER,), now - CACHE_LIFETIME)
    path.unlink()
    with pytest.raises(Unreachable):
        Root.load("global")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"handles": 1}', b"\xff"])
def test_malformed_cache_is_not_used(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(content)
    assert read_cache(tmp_path / "cache") is None


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_cache(tmp_path / "file" / "perseid" / "global_root.json", Bootstrap(RECORDS, 0.0))


def test_packaged_root_is_used_before_anybody_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "GLOBAL_RECORDS", "http://127.0.0.1:1/api/handles")
    roots.PACKAGED.parent.mkdir()
    roots.PACKAGED.write_bytes(Bootstrap(RECORDS, 1_700_000_000.0).to_bytes())
    found = Root.load("global")
    assert (found.sites, found.updated) == ((SITE, OTHER), 1_700_000_000.0)
    assert not (home / ".cache").exists()


def run_tool(monkeypatch: pytest.MonkeyPatch, source: str, to: Path) -> None:
    monkeypatch.setattr("sys.argv", ["global_root.py", "--from", source, "--to", str(to)])
    global_root.main()


def test_tool_writes_what_it_fetched_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "data" / "global_root.json"
    with publisher() as server:
        run_tool(monkeypatch, server.url, written)
    out = capsys.readouterr().out
    assert out.startswith("300:0.0/0.0  ")
    assert out.endswith(f"2 sites in 3 records, written to {written}\n")
    assert Root.load(written).sites == (SITE, OTHER)
    run_tool(monkeypatch, str(written), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == written.read_bytes()


INVALID: Mapping[str, tuple[Records, str]] = {
    "no root": ({"0.0/0.0": (KEY,)}, "the record of 0.NA/0.NA is missing"),
    "no trust root": ({"0.NA/0.NA": (site_value(SITE),)}, "the record of 0.0/0.0 is missing"),
    "no keys": ({**RECORDS, "0.0/0.0": ()}, "has no HS_PUBKEY value"),
    "bad key": ({**RECORDS, "0.0/0.0": (Value(300, "HS_PUBKEY", b"key"),)}, "the key of 300:0.0/0.0 is malformed"),
    "no service": ({each: RECORDS[each] for each in ("0.NA/0.NA", "0.0/0.0")}, "the service 10320/ROOT is missing"),
    "no sites": ({**RECORDS, "10320/ROOT": ()}, "the records have no sites"),
    "bad site": ({**RECORDS, "10320/ROOT": (Value(1, "HS_SITE", b"x"),)}, "the site in 1:10320/ROOT is malformed"),
    "no servers": ({**RECORDS, "10320/ROOT": (site_value(replace(SITE, servers=())),)}, "has no servers"),
    "bad server key": (
        {**RECORDS, "10320/ROOT": (site_value(replace(SITE, servers=(replace(SITE.servers[0], public_key=b""),))),)},
        "the key of server 0 of 1:10320/ROOT is malformed",
    ),
    "other record": ({**RECORDS, "10320/other": (site_value(SITE),)}, "no service leads to 10320/OTHER"),
}


@pytest.mark.parametrize("name", INVALID)
def test_tool_writes_nothing_that_is_incomplete_or_malformed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, text = INVALID[name]
    (tmp_path / "in").write_bytes(Bootstrap(records, 1.0).to_bytes())
    with pytest.raises(SystemExit, match=text):
        run_tool(monkeypatch, str(tmp_path / "in"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("http://id.example.org/api/handles", "is not an https URL"),
        ("http://127.0.0.1:1/api/handles", "cannot be read"),
        ("missing", "No such file"),
    ],
)
def test_tool_needs_an_authentic_source(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=text):
        run_tool(monkeypatch, source, tmp_path / "out")


def test_packaged_root_of_this_version_is_valid() -> None:
    """It may be missing: then the operators are asked."""
    if roots.PACKAGED.is_file():
        global_root.check(global_root.read(str(roots.PACKAGED)))
    assert roots.PACKAGED.parent.parent == Path(roots.__file__).parent

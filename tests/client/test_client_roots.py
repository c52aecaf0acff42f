"""Roots from files, folders and the environment; none is chosen unless the user asks for it."""

import json
from pathlib import Path

import pytest

import perseid
from perseid.client import roots
from perseid.client.bootstrap import MAX_FILE_BYTES, Bootstrap
from perseid.client.errors import ClientError, ProtocolError, Unreachable
from perseid.client.resolution import Resolver, resolve
from perseid.client.roots import ROOT_VARIABLE, Root
from perseid.records.binary import Writer
from perseid.records.json_form import value_to_json
from perseid.records.record import Value, values_to_bytes
from perseid.records.site import Site
from tests.client.worlds import HOST, OTHER_HOST, ROOT_HOST, make_site, site_value

SITE = make_site(ROOT_HOST)
OTHER = make_site(OTHER_HOST)


def bootstrap() -> bytes:
    records = {
        "0.NA/0.NA": (Value.text(1, "HS_SERV", "10320/root"), Value.text(2, "HS_SERV", "0.na/0.na")),
        "10320/ROOT": (site_value(SITE), site_value(OTHER, 2, "HS_SITE.6")),
        "0.0/0.0": (Value(300, "HS_PUBKEY", b"key"),),
    }
    handles = {
        handle: {"handle": handle, "values": [value_to_json(value) for value in values]}
        for handle, values in records.items()
    }
    return json.dumps({"lastUpdate": 1, "handles": handles}).encode()


def record() -> bytes:
    return json.dumps({"handle": "0.NA/0.NA", "values": [value_to_json(site_value(SITE))]}).encode()


FORMATS = {
    "bootstrap_handles": (bootstrap(), (SITE, OTHER)),
    "root_info": (values_to_bytes((site_value(SITE), Value.text(2, "DESC", "root"))), (SITE,)),
    "siteinfo.json": (SITE.to_text().encode(), (SITE,)),
    "siteinfo.bin": (SITE.to_bytes(), (SITE,)),
    "record.json": (record(), (SITE,)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_a_root_file_is_read(name: str, tmp_path: Path) -> None:
    data, sites = FORMATS[name]
    (tmp_path / name).write_bytes(data)
    root = Root.load(tmp_path / name)
    assert (root.sites, root.name) == (sites, str(tmp_path / name))
    if name != "record.json":
        assert Root.load(str(tmp_path)).sites == sites


def local_info() -> bytes:
    inner = Writer().i32(1).i32(2).text("0.NA/1").text("0.na/2").bytes_(OTHER.to_bytes()).getvalue()
    return Writer().bytes_(inner).getvalue()


def local_info_json() -> bytes:
    return json.dumps([{"nas": ["0.NA/1", "0.na/2"], "site": OTHER.to_json()}]).encode()


@pytest.mark.parametrize(("name", "data"), [("local_info", local_info()), ("local_info.json", local_info_json())])
def test_the_folder_of_a_deployed_client_is_read(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "root_info").write_bytes(FORMATS["root_info"][0])
    (tmp_path / name).write_bytes(data)
    (tmp_path / "local_addresses").write_text(f"203.0.113.5 {HOST}\nnonsense\n")
    root = Root.load(tmp_path)
    assert root.sites == (SITE,)
    assert root.local_sites == {"0.NA/1": (OTHER,), "0.NA/2": (OTHER,)}
    assert root.local_addresses == {"203.0.113.5": HOST}
    assert root.resolver == ()


@pytest.mark.parametrize(
    ("name", "data"), [("resolver_site", SITE.to_bytes()), ("resolver_service", values_to_bytes((site_value(SITE),)))]
)
def test_a_caching_server_of_a_deployed_client_is_used(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert Root.load(tmp_path).resolver == (SITE,)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("missing", None, "cannot be read: No such file"),
        ("text", b"hello", "is not root information"),
        ("empty", b"{}", "is not root information"),
        ("no-sites", b'{"values": []}', "has no sites"),
        ("binary", b"\0\1\2", "is not root information"),
        ("long", b" " * (MAX_FILE_BYTES + 1), "more than 4,194,304 bytes"),
    ],
)
def test_a_file_that_is_not_a_root_is_refused_with_advice(
    name: str, data: bytes | None, text: str, tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ClientError, match=text) as caught:
        Root.load(tmp_path / name)
    assert caught.value.advice


def test_a_malformed_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "local_info.json").write_text("[{}]")
    with pytest.raises(ClientError, match="has a malformed file"):
        Root.load(tmp_path)


def test_without_a_root_nothing_is_resolved_and_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    for call in (lambda: perseid.resolve("10.1000/1"), lambda: resolve("10.1000/1"), Resolver):
        with pytest.raises(ClientError, match="no root is configured") as caught:
            call()
        assert 'root="global"' in caught.value.advice
        assert ROOT_VARIABLE in caught.value.advice


def test_the_environment_can_name_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").write_bytes(SITE.to_bytes())
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "root"))
    assert Root.load(None).sites == (SITE,)


def test_the_global_root_is_that_of_the_deployed_client_or_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(url: str) -> Bootstrap:
        fetched.append(url)
        return Bootstrap({"0.NA/0.NA": (site_value(OTHER),)}, 0.0)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(roots, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(Bootstrap, "fetch", fetch)
    assert Root.load("global").sites == (OTHER,)
    assert fetched == [roots.GLOBAL_RECORDS]
    (tmp_path / ".handle").mkdir()
    (tmp_path / ".handle" / "bootstrap_handles").write_bytes(bootstrap())
    assert Root.load("global").sites == (SITE, OTHER)
    assert len(fetched) == 1


def test_a_site_is_required() -> None:
    with pytest.raises(ClientError, match="the root has no sites"):
        Root(())


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (record(), 200, None),
        (b"[]", 200, ProtocolError),
        (b"{}", 200, ProtocolError),
        (b"", 404, Unreachable),
        (b"", 302, Unreachable),
    ],
)
def test_root_records_are_fetched_over_http(
    content: bytes, status: int, error: type[ClientError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx  # noqa: PLC0415 - as the client does

    class Local(httpx.Client):
        def __init__(self, **options: object) -> None:
            headers = {"Location": "https://example.net/"} if status == 302 else {}
            answer = httpx.Response(status, content=content, headers=headers)
            super().__init__(transport=httpx.MockTransport(lambda _: answer), follow_redirects=False)
            assert not options["follow_redirects"]

    monkeypatch.setattr(httpx, "Client", Local)
    if error is None:
        assert Root.fetch("https://id.example.org/api/handles").sites == (Site.from_bytes(SITE.to_bytes()),)
    else:
        with pytest.raises(error):
            Root.fetch("https://id.example.org/api/handles")

"""`perseid site`, and the rules of a partition at the command line: who has a handle, and what the others say."""

import atexit
import functools
import ipaddress
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.partition import HashOption, find_server_index
from perseid.records.site import Attribute, Interface, Purpose, Transport
from perseid.records.site import Site as SiteInformation
from perseid.registry.installation.files import has_several_servers
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import SiteError, load_server_identity
from perseid.registry.partition import Partition
from tests.cli.installation import Site, call, refused, site
from tests.registry.installation.server_files import site as describe
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY

COUNT = 3
NAMES = [f"12345/{letter}" for letter in "abcdefghij"]


def separate(directory: Path, port: int) -> Site:
    """An installation with a key and a port of its own."""
    done = call("key", "rotate", "server", "-d", str(directory))
    assert done.code == 0, done
    path = directory / "siteinfo.json"
    document = json.loads(path.read_text())
    for interface in document["servers"][0]["interfaces"]:
        interface["port"] += port
    path.write_text(json.dumps(document))
    (directory / "siteinfo.bin").unlink()
    return Site(directory)


@functools.cache
def _templates() -> list[Path]:
    folder = Path(tempfile.mkdtemp(prefix="perseid-sites-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    directories = []
    for number in range(COUNT):
        (folder / str(number)).mkdir()
        directories.append(separate(site(folder / str(number), "--prefix", "12345").directory, number).directory)
    return directories


def make_servers(folder: Path, *, count: int = COUNT) -> list[Site]:
    """Installations that are not one site yet."""
    for number in range(count):
        shutil.copytree(_templates()[number], folder / str(number))
    return [Site(folder / str(number)) for number in range(count)]


def unite(servers: list[Site], *options: str) -> None:
    first, *others = servers
    for number, other in enumerate(others):
        first.ok("site add", str(other.directory / "siteinfo.json"), *(() if number else options))
    for other in others:
        other.ok("site join", str(first.directory / "siteinfo.json"))


def information(server: Site) -> SiteInformation:
    return SiteInformation.from_text((server.directory / "siteinfo.json").read_text())


@pytest.mark.parametrize("option", list(HashOption))
def test_each_server_accepts_its_share_only(tmp_path: Path, option: HashOption) -> None:
    servers = make_servers(tmp_path)
    unite(servers, "--hash", option.name.lower())
    assert {information(each) for each in servers} == {information(servers[0])}
    assert information(servers[0]).hash_option == option
    positions = [load_server_identity(each.directory, _config(each)).position for each in servers]
    assert positions == list(range(COUNT))
    owners = [find_server_index(name.encode(), option, COUNT) for name in NAMES]
    for position, server in enumerate(servers):
        for name, owner in zip(NAMES, owners, strict=True):
            done = server("create", name, "--url", "https://example.org/")
            if owner == position:
                assert (done.code, done.out) == (0, f"{name}\n")
                assert server("resolve", name).code == 0
            else:
                what = "Prefix 12345" if option is HashOption.PREFIX else name
                reason = f"{what} belongs to server {owner + 1} of this site; this is server {position + 1}"
                refused(done, reason, f"Use that server: http://127.0.0.1:{8000 + owner}", code=3)
                for words in ("resolve", "delete", "history", f"set {name} DESC=x #"):
                    done = server(words.partition("#")[0], *(() if "#" in words else (name,)))
                    refused(done, reason, code=3)
        assert server("resolve 0.NA/12345").code == 0
        minted = server("mint 12345 --count 8")
        if option is HashOption.PREFIX and owners[0] != position:
            refused(minted, "Prefix 12345 belongs to server", code=3)
        else:
            assert {find_server_index(each.encode(), option, COUNT) for each in minted.out.split()} == {position}


def _config(server: Site) -> Config:
    return Config.load(server.directory, {})


def test_servers_can_be_added_at_any_server(tmp_path: Path) -> None:
    first, second, third = make_servers(tmp_path)
    unite([first, second])
    added = second.lines("site add", str(third.directory / "siteinfo.json"))
    assert ["(this server)" in line for line in added[:3]] == [False, True, False]
    for other in (first, third):
        other.ok("site join", str(second.directory / "siteinfo.json"))
    assert len({information(each) for each in (first, second, third)}) == 1


def test_problem_of_another_server_is_typed(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    unite(servers)
    name = next(each for each in NAMES if find_server_index(each.encode(), 2, 2) == 1)
    done = servers[0]("create", name, "--url", "https://example.org/", "--json")
    problem = json.loads(done.err)
    assert (problem["type"], problem["status"], problem["code"]) == ("/docs/problems#other-server", 421, 301)
    assert problem["advice_parameters"] == {"address": "http://127.0.0.1:8001"}


def test_records_from_before_are_listed_and_can_be_deleted(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    first, second = servers
    refused(first("site misplaced"), "The site has one server", code=1)
    for name in NAMES:
        first.ok("create", name, "--url", "https://example.org/")
    unite(servers)
    wrong = [name for name in NAMES if find_server_index(name.encode(), 2, 2) == 1]
    assert first.lines("site misplaced") == [f"{name}  http://127.0.0.1:8001" for name in wrong]
    listed = [json.loads(line) for line in first.lines("site misplaced --json")]
    assert listed == [{"handle": name, "server": 2, "address": "http://127.0.0.1:8001"} for name in wrong]
    assert second.lines("site misplaced") == []
    note = f"12345: {len(wrong)} records left from before the site was divided, of other servers"
    assert note in first.ok("check").out
    assert "before the site was divided" not in second.ok("check").out
    refused(first("resolve", wrong[0]), "belongs to server 2", code=3)
    # They are moved by export and import; each server takes what is its own.
    rows = tmp_path / "rows.jsonl"
    first.ok("export 12345 -o", str(rows))
    moved = second("import", str(rows), "--skip-invalid", "--yes", "--preserve-dates")
    assert moved.code == 0, moved
    assert [name for name in NAMES if second("resolve", name).code == 0] == wrong
    for name in wrong:
        done = first.ok("delete", name)
        warning = f"{name} belongs to another server of this site: only the copy that was left here is deleted"
        assert done.err == f"Warning: {warning}. Use that server: http://127.0.0.1:8001\n"
    assert first.lines("site misplaced") == []
    refused(first("delete", wrong[0]), "belongs to server 2", code=3)


def test_migration_keeps_to_the_share_of_the_server(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    first, _ = servers
    owners = {name: find_server_index(name.encode(), 2, 2) for name in NAMES}
    own, others = ([name for name in NAMES if owners[name] == position] for position in (0, 1))
    old = tmp_path / "old.json"

    def write(names: list[str], url: str = "https://example.org/") -> None:
        record = {"values": [{"index": 1, "type": "URL", "data": url}]}
        old.write_text(json.dumps({"homedPrefixes": ["0.NA/12345"], "handleRecords": dict.fromkeys(names, record)}))

    write(others[:1])
    first.ok(f"migrate {old}")
    unite(servers)
    write(NAMES, "https://example.org/new")
    done = first(f"migrate {old} --json")
    *rejected, counts = [json.loads(line) for line in done.out.splitlines()]
    reason = "it belongs to server 2 of this site, http://127.0.0.1:8001"
    assert [(each["handle"], each["reason"]) for each in rejected] == [(name, reason) for name in others]
    assert (done.code, counts["created"], counts["rejected"]) == (4, len(own), len(others))
    assert first.lines("site misplaced") == [f"{others[0]}  http://127.0.0.1:8001"], "it is not changed"
    compared = first.ok(f"migrate compare {old} --json").json
    assert (compared["records"], compared["different"], compared["missing"]) == (len(own), 0, 0)
    write(own, "https://example.org/new")
    assert first.ok(f"migrate {old} --json").json["deleted"] == 1
    assert first.lines("site misplaced") == []


def test_users_of_other_servers_are_named_with_their_key(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    unite(servers)
    name = next(each for each in NAMES if find_server_index(each.encode(), 2, 2) == 1)
    done = servers[0](f"grant {name} editor --on 12345")
    refused(done, "it belongs to server 2 of this site, http://127.0.0.1:8001, so its key must be named", code=4)
    assert f"such as 300:{name}" in done.err
    servers[0].ok(f"grant 300:{name} editor --on 12345")


def test_jobs_from_before_are_not_undone_at_the_wrong_server(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    name = next(each for each in NAMES if find_server_index(each.encode(), 2, 2) == 1)
    rows = tmp_path / "rows.csv"
    rows.write_text(f"handle,URL\n{name},https://example.org/\n")
    servers[0].ok(f"import {rows} --yes")
    unite(servers)
    (job,) = servers[0].lines("jobs list")
    done = servers[0](f"undo {job.split()[0]} --yes")
    refused(done, f"{name}: it belongs to server 2 of this site, http://127.0.0.1:8001", code=4)


def test_remote_identities_cannot_delete_what_is_misplaced(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    for name in NAMES:
        servers[0].ok("create", name, "--url", "https://example.org/")
    unite(servers)
    name = next(each for each in NAMES if find_server_index(each.encode(), 2, 2) == 1)
    refused(servers[0]("delete", name, "--as", "300:0.NA/12345"), "belongs to server 2", code=3)


def test_attributes_of_each_server_keep_their_meaning(tmp_path: Path) -> None:
    servers = make_servers(tmp_path)
    for number, server in enumerate(servers):
        path = server.directory / "siteinfo.json"
        document = json.loads(path.read_text())
        values = {"desc": "Reports", "domain": f"s{number}.example.org", "path": f"/{number}", "alt_addr": "192.0.2.9"}
        document["attributes"] = [{"name": name, "value": value} for name, value in values.items()]
        document["servers"][0]["address"] = "::"
        path.write_text(json.dumps(document))
    first, second, third = servers
    first.ok("site add", str(second.directory / "siteinfo.json"), "--url", "https://two.example/")
    first.ok("site add", str(third.directory / "siteinfo.json"))
    made = information(first)
    assert [made.attribute(f"domain.{n}") for n in range(3)] == [f"s{n}.example.org" for n in range(3)]
    assert [made.attribute(f"path.{n}") for n in range(3)] == ["/0", "/1", "/2"]
    assert [server.server_id for server in made.servers] == [1, 2, 3]
    assert [made.attribute(f"alt_addr.{n}") for n in (1, 2, 3)] == ["192.0.2.9"] * 3
    assert {made.attribute(name) for name in ("domain", "path", "alt_addr")} == {None}
    assert made.attribute("desc") == "Reports"
    addresses = [Partition(made, 0).address(n) for n in range(3)]
    assert addresses == ["http://s0.example.org:8000", "https://two.example", "http://s2.example.org:8002"]


def test_url_of_a_server_is_checked_and_can_be_changed(tmp_path: Path) -> None:
    """A text that is not a URL would be a relative redirect, which never ends."""
    first, second = make_servers(tmp_path, count=2)
    path = second.directory / "siteinfo.json"
    document, original = json.loads(path.read_text()), path.read_text()
    for name in ("url", "url.0"):
        path.write_text(json.dumps({**document, "attributes": [{"name": name, "value": "two.example.org"}]}))
        refused(first("site add", str(path)), "Invalid URL 'two.example.org' in", "siteinfo.json", code=1)
    path.write_text(original)
    first.ok("site add", str(path), "--url", "https://two.example.org")
    refused(first("site add", str(path)), "is already in the site", "to change its URL, use --url", code=1)
    serial = information(first).serial
    first.ok("site add", str(path), "--url", "https://2.example.org/hdl/")
    made = information(first)
    assert (len(made.servers), made.serial) == (2, serial + 1)
    assert [each.value for each in made.attributes if each.name == "url.1"] == [b"https://2.example.org/hdl"]
    second.ok("site join", str(first.directory / "siteinfo.json"))
    second.ok("site add", str(path), "--url", "https://ii.example.org")
    first.ok("site join", str(path))
    assert information(first).attribute("url.1") == "https://ii.example.org"
    refused(first("site add", str(path), "--url", "https://x.example.org"), "describes 2 servers", code=1)
    for value in (b"2.example.org", b"/", b"javascript:x", b"ftp://2.example.org", b"\xff"):
        unusual = Partition(replace(made, attributes=(Attribute("url.1", value),)), 0)
        assert unusual.url(1) == unusual.address(1) == "http://127.0.0.1:8001"


def test_public_url_of_the_settings_is_that_of_the_first_server(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    settings_file = servers[0].directory / "perseid.toml"
    settings_file.write_text(
        settings_file.read_text().replace('#public_url = ""', 'public_url = "https://one.example"')
    )
    unite(servers)
    assert Partition(information(servers[0]), 1).address(0) == "https://one.example"


def test_sites_that_cannot_be_united_are_refused(tmp_path: Path) -> None:
    first, second, third = make_servers(tmp_path)
    description = str(second.directory / "siteinfo.json")
    own = str(first.directory / "siteinfo.json")
    refused(first("site add", own), "is already in the site", code=1)
    refused(first("site add", str(tmp_path / "absent")), "Cannot read", code=1)
    refused(first("site add", str(first.directory / "perseid.toml")), "is not site information", code=1)
    refused(first("site add", description, "--url", "two.example.org"), "Invalid URL 'two.example.org'", code=1)
    refused(second("site join", own), "does not describe several servers", "perseid site add", code=1)
    first.ok("site add", description, "--hash", "suffix")
    refused(first("site add", description), "is already in the site", code=1)
    refused(first("site add", str(third.directory / "siteinfo.json"), "--hash", "all"), "cannot change", code=1)
    refused(third("site join", own), "does not describe several servers of which one has the key", code=1)
    refused(third("site add", own), "describes 2 servers", code=1)
    old = tmp_path / "old.json"
    shutil.copy(own, old)
    first.ok("site add", str(third.directory / "siteinfo.json"))
    second.ok("site join", own)
    refused(second("site join", str(old)), "has serial number", "use the newest", code=1)
    second.ok("site join", own)  # nothing to do
    assert "position = 2" in (second.directory / "perseid.toml").read_text()


def test_servers_at_one_address_are_refused(tmp_path: Path) -> None:
    first, second = make_servers(tmp_path, count=2)
    path = second.directory / "siteinfo.json"
    path.write_text(path.read_text().replace("2642", "2641"))
    refused(first("site add", str(path)), "has the address and a port of another one, 127.0.0.1", code=1)


def test_position_is_written_to_any_file_of_settings(tmp_path: Path) -> None:
    first, second = make_servers(tmp_path, count=2)
    first.ok("site add", str(second.directory / "siteinfo.json"))
    path = second.directory / "perseid.toml"
    for text in ("", "[site]\n", "[site]\nposition = 7 # old\n[http]\nport = 1\n", "[http]\n#position = 1\n"):
        path.write_text(text)
        second.ok("site join", str(first.directory / "siteinfo.json"))
        assert Config.parse(path.read_text(), {}).site.position == 2
        assert ("port = 1" in path.read_text()) is ("port = 1" in text)
    spaced = "\ufeff[http]\r\nport = 1\r\n\r\n [ site ] # this one\r\n\tposition = 1\r\n"
    path.write_bytes(spaced.encode())
    second.ok("site join", str(first.directory / "siteinfo.json"))
    config = Config.parse(path.read_text(), {})
    assert (config.site.position, config.http.port) == (2, 1)


def test_settings_that_cannot_be_changed_stay_valid(tmp_path: Path) -> None:
    first, second = make_servers(tmp_path, count=2)
    first.ok("site add", str(second.directory / "siteinfo.json"))
    path, joining = second.directory / "perseid.toml", f"site join {first.directory / 'siteinfo.json'}"
    for text in ("site = { position = 1 }\n", "site.position = 1\n", '["site"]\nposition = 1\n'):
        path.write_text(text)
        done = second(joining)
        assert (done.code, "set it to 2 yourself, then run this again" in done.err) == (1, True), done
        assert path.read_text() == text
        assert not has_several_servers(second.directory)
    path.write_text("site = { position = 2 }\n")
    second.ok(joining)
    assert (path.read_text(), has_several_servers(second.directory)) == ("site = { position = 2 }\n", True)


def test_one_server_has_no_partition(tmp_path: Path) -> None:
    server = site(tmp_path)
    assert not has_several_servers(server.directory)
    with Installation.open(server.directory) as installation:
        assert installation.registry().rules.partition is None


def test_files_of_several_servers_are_noticed_in_each_form(tmp_path: Path) -> None:
    two = describe(SERVER_KEY, RSA_KEY)
    two = replace(two, attributes=(Attribute("desc", b"x"),))
    for place in (tmp_path / "a", tmp_path / "b" / "keys"):
        text = two.to_text().encode()
        forms = (("siteinfo.bin", two.to_bytes()), ("siteinfo.json", text), ("siteinfo.json", b"\xef\xbb\xbf\n" + text))
        for name, data in forms:
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
            assert has_several_servers(place if place.name != "keys" else place.parent)
            (place / name).write_bytes(describe(SERVER_KEY).to_bytes())
            assert not has_several_servers(place if place.name != "keys" else place.parent)
            (place / name).unlink()


def test_position_that_the_site_does_not_have_is_refused(tmp_path: Path) -> None:
    servers = make_servers(tmp_path, count=2)
    unite(servers)
    path = servers[1].directory / "perseid.toml"
    text = path.read_text()
    path.write_text(text.replace("position = 2", "position = 3"))
    refused(servers[1]("mint 12345"), "site.position is 3", "has 2 servers", code=1)
    path.write_text(text.replace("position = 2", "position = 1"))
    with pytest.raises(SiteError, match="does not match server 1"):
        load_server_identity(servers[1].directory, _config(servers[1]))


def test_damaged_files_of_one_server_do_not_matter_to_commands(tmp_path: Path) -> None:
    server = site(tmp_path, "--prefix", "12345")
    for damaged in (b"", b"\0\1\2", b"{}", b"\0" * 100):
        (server.directory / "siteinfo.bin").write_bytes(damaged)
        server.ok("mint 12345 --reserve")


@settings(max_examples=100)
@given(st.text(min_size=1, max_size=12), st.sampled_from(HashOption), st.integers(2, 9), st.data())
def test_exactly_one_server_has_each_handle(suffix: str, option: HashOption, count: int, data: st.DataObject) -> None:
    handle = Handle("12345", suffix.encode(errors="ignore").decode() or "x")
    servers = describe(SERVER_KEY).servers * count
    whole = replace(describe(SERVER_KEY), servers=servers, hash_option=option)
    partitions = [Partition(whole, position) for position in range(count)]
    owner = find_server_index(str(handle).encode(), option, count)
    assert [each.position for each in partitions if each.find_other(handle) is None] == [owner]
    assert {each.find_other(handle) for each in partitions} <= {None, owner}
    position = data.draw(st.integers(0, count - 1))
    assert partitions[position].find_other(Handle("0.NA", "12345")) is None
    of_prefix = partitions[position].find_other_of_prefix("12345")
    assert of_prefix == (partitions[position].find_other(handle) if option is HashOption.PREFIX else None)


def test_addresses_name_what_clients_can_use() -> None:
    base = describe(DSA_KEY)
    native = Interface(Purpose.ADMIN | Purpose.QUERY, Transport.TCP, 2641)
    six = ipaddress.ip_address("2001:db8::1").packed
    cases = {
        (Interface(Purpose.QUERY, Transport.HTTPS, 443),): "https://[2001:db8::1]",
        (Interface(Purpose.QUERY, Transport.HTTP, 80),): "http://[2001:db8::1]",
        (native,): "[2001:db8::1]:2641",
        (): "[2001:db8::1]",
    }
    for interfaces, expected in cases.items():
        server = replace(base.servers[0], address=six, interfaces=interfaces)
        assert Partition(replace(base, servers=(server, server)), 0).address(1) == expected

"""Three servers of one site, each with its share of the handles: real processes, commands and clients."""

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from perseid.client import ClientError, NativeClient, NotFound, Resolver, Unreachable, native_operations
from perseid.client.native_site import SiteClient
from perseid.client.roots import Root
from perseid.records.partition import find_server_index
from perseid.records.record import Value
from perseid.records.site import Site as SiteInformation
from perseid.records.site import Transport
from perseid.registry.installation.installation import Installation
from tests.cli.installation import call
from tests.server.failover import wait_until
from tests.server.native.native_client import NativeClient as PlainClient
from tests.server.native.native_client import Via
from tests.server.running import Serving, free_port, start

COUNT = 3
PREFIX = "12345"
ADMINISTRATOR = f"300:0.NA/{PREFIX}"
NAMES = tuple(f"{PREFIX}/report-{number}" for number in range(12))
PERSON = f"{PREFIX}/ann"
MOVED = tuple(f"{PREFIX}/moved-{number}" for number in range(3))
"""Handles from before the site was divided."""


@dataclass(frozen=True)
class Cluster:
    """The servers, and what clients know."""

    directories: tuple[Path, ...]
    servers: list[Serving]
    information: SiteInformation
    secret: str
    person_secret: str

    def owner(self, handle: str) -> int:
        """The position of the server that has a handle, by the rule of the protocol."""
        return find_server_index(handle.encode(), self.information.hash_option, COUNT)

    def client(self, position: int = 0, identity: str = ADMINISTRATOR, secret: str = "") -> SiteClient:
        """A client that is told about one of the servers."""
        key = self.information.servers[position].key
        return SiteClient(
            *self.servers[position].native, identity=identity, key=secret or self.secret, server_key=key, timeout=30
        )

    def resolver(self, transport: Transport) -> Resolver:
        site = (self.information,)
        root = Root(site, local_sites={f"0.NA/{PREFIX}": site})
        return Resolver(root, transports=(transport,))

    def others(self, handle: str) -> list[int]:
        return [position for position in range(COUNT) if position != self.owner(handle)]

    def http(
        self, position: int, method: str, path: str, body: object = None, basic: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.servers[position].http, timeout=30)
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            if basic:
                headers["Authorization"] = f"Basic {base64.b64encode(basic.encode()).decode()}"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()


def perseid(*words: object, stdin: str = "") -> str:
    done = call(*map(str, words), stdin=stdin.encode())
    assert done.code == 0, done
    return done.out


def set_ports(directory: Path, native: int, web: int) -> None:
    """Set the ports in the settings and in the site information, as an administrator does."""
    settings = directory / "perseid.toml"
    text = settings.read_text()
    for section, port in (("native", native), ("http", web)):
        begin = text.index(f"[{section}]")
        text = text[:begin] + text[begin:].replace("#port = ", f"port = {port} # ", 1)
    settings.write_text(text)
    path = directory / "siteinfo.json"
    document = json.loads(path.read_text())
    for interface in document["servers"][0]["interfaces"]:
        interface["port"] = web if interface["protocol"] == "HTTP" else native
    path.write_text(json.dumps(document))
    (directory / "siteinfo.bin").unlink()


def stop_if_running(server: Serving) -> None:
    if server.process.poll() is None:
        server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("partition")
    directories = tuple(folder / f"server-{number + 1}" for number in range(COUNT))
    first, *others = directories
    for directory in directories:
        perseid("init", directory, "--prefix", PREFIX)
        set_ports(directory, free_port(), free_port())
    # One administrator for all: the prefix handle is copied.
    prefix_handle = perseid("resolve", f"0.NA/{PREFIX}", "--private", "--json", "-d", first)
    secret = next(each for each in json.loads(prefix_handle)["values"] if each["type"] == "HS_SECKEY")["data"]["value"]
    for name in MOVED:
        perseid("create", name, "--url", "https://example.org/old", "-d", first)
    for directory in others:
        perseid("site", "add", directory / "siteinfo.json", "-d", first)
        perseid("set", f"0.NA/{PREFIX}", "--from", "-", "-d", directory, stdin=prefix_handle)
    for directory in others:
        perseid("site", "join", first / "siteinfo.json", "-d", directory)
    information = SiteInformation.from_text((first / "siteinfo.json").read_text())
    home = directories[find_server_index(PERSON.encode(), information.hash_option, COUNT)]
    person_secret = json.loads(perseid("user", "add", PREFIX, "ann", "--json", "-d", home))["secret"]
    for directory in directories:
        perseid("grant", f"300:{PERSON}", "editor", "--on", PREFIX, "-d", directory)
    with ExitStack() as stack:
        servers = []
        for directory, server in zip(directories, information.servers, strict=True):
            port = server.interfaces[0].port
            web = next(each.port for each in server.interfaces if each.transport == Transport.HTTP)
            output = directory.with_suffix(".output")
            output.mkdir()
            running = start(directory, output, "--native-port", str(port), PERSEID_HTTP_PORT=str(web))
            stack.callback(stop_if_running, running)
            servers.append(running)
        made = Cluster(directories, servers, information, secret, person_secret)
        with made.client() as client:
            results = list(
                client.do_many(
                    native_operations.create(name, [Value.text(1, "URL", f"https://example.org/{name}")])
                    for name in NAMES
                )
            )
        assert results == list(NAMES)
        yield made


def records(directory: Path) -> set[str]:
    """The handles with a record in the ledger of one server."""
    with Installation.open(directory, writable=False) as installation, installation.log.open_reader() as reader:
        return {change.handle for change in reader.current() if change.handle in NAMES}


def test_created_handles_are_in_the_ledger_of_their_server(cluster: Cluster) -> None:
    held = [records(directory) for directory in cluster.directories]
    assert held == [{name for name in NAMES if cluster.owner(name) == position} for position in range(COUNT)]
    assert all(held)


@pytest.mark.parametrize("transport", [Transport.UDP, Transport.TCP, Transport.HTTP])
def test_clients_resolve_at_the_right_server(cluster: Cluster, transport: Transport) -> None:
    resolver = cluster.resolver(transport)
    for name in NAMES:
        assert resolver.resolve(name).target == f"https://example.org/{name}"
    with pytest.raises(NotFound, match="does not exist"):
        resolver.resolve(f"{PREFIX}/absent")


def test_clients_administer_through_any_server(cluster: Cluster) -> None:
    changed = Value.text(2, "DESC", "changed")
    for position in range(COUNT):
        with cluster.client(position) as client:
            for name in NAMES[:4]:
                client.add(name, [changed])
                assert changed.data in [value.data for value in client.resolve(name, private=True)]
                client.remove(name, [2])
            listed = client.list_handles(PREFIX)
            assert [listed.count(name) for name in NAMES] == [1] * len(NAMES)
            assert client.list_prefixes().count(f"0.NA/{PREFIX}") == 1


def test_left_copies_are_not_listed_beside_moved_records(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert {name for name in MOVED if name in client.list_handles(PREFIX)} == {
            name for name in MOVED if cluster.owner(name) == 0
        }
        for name in MOVED:
            if cluster.owner(name) != 0:
                client.create(name, [Value.text(1, "URL", "https://example.org/new")])
        listed = client.list_handles(PREFIX)
    assert [listed.count(name) for name in MOVED] == [1] * len(MOVED)


def test_statistics_leave_copies_out(cluster: Cluster) -> None:
    basic = f"{quote(ADMINISTRATOR, safe='')}:{cluster.secret}"

    def get(path: str) -> Any:
        status, _, body = cluster.http(0, "GET", path, basic=basic)
        assert status == 200, body
        return json.loads(body)

    lines = perseid("list", PREFIX, "--json", "-d", cluster.directories[0]).splitlines()
    listed = [json.loads(line)["handle"] for line in lines]
    own = [name for name in listed if cluster.owner(name) == 0]
    assert set(listed) - set(own) == {name for name in MOVED if cluster.owner(name) != 0} != set()
    shown = get(f"/api/handles?prefix={PREFIX}&page=0&pageSize=2")["totalCount"]
    assert int(shown) == len(listed), "server administrators see the copies"

    def counted() -> list[int]:
        return [row["identifiers"] for row in get(f"/api/v1/statistics?namespace={PREFIX}&by=namespace")["rows"]]

    wait_until(lambda: counted() == [len(own)], "the changes are counted")


def test_native_requests_for_other_servers_are_refused(cluster: Cluster) -> None:
    name = NAMES[0]
    for position in cluster.others(name):
        server = cluster.servers[position]
        for via in (Via.UDP, Via.TCP):
            with PlainClient(server.native, via) as plain:
                assert (plain.resolve(name).code, plain.resolve(name).code.name) == (301, "SERVER_NOT_RESP")
        with NativeClient(*server.native, identity=ADMINISTRATOR, key=cluster.secret) as client:
            for operation in (
                native_operations.create(name, []),
                native_operations.add(name, [Value.text(5, "URL", "https://example.org/")]),
                native_operations.delete(name),
            ):
                with pytest.raises(ClientError) as refused:
                    client.do(operation)
                assert refused.value.code == 301


def test_http_requests_for_other_servers_are_refused_with_the_address(cluster: Cluster) -> None:
    name = NAMES[0]
    owner = cluster.owner(name)
    host, port = cluster.servers[owner].http
    address = f"http://{host}:{port}"
    basic = f"{quote(ADMINISTRATOR, safe='')}:{cluster.secret}"
    for position in cluster.others(name):
        path = f"/api/v1/handles/{quote(name, safe='')}"
        value = {"type": "URL", "data": "https://example.org/"}
        for method, where, body in (
            ("GET", path, None),
            ("DELETE", path, None),
            ("POST", "/api/v1/handles", {"handle": name, "values": [value]}),
        ):
            status, _, answer = cluster.http(position, method, where, body, basic)
            problem = json.loads(answer)
            assert (status, problem["type"].partition("#")[2]) == (421, "other-server"), problem
            assert problem["advice_parameters"] == {"address": address}
            assert f"belongs to server {owner + 1} of this site" in problem["detail"]
        status, headers, _ = cluster.http(position, "GET", f"/{name}?noredirect")
        assert (status, headers["location"]) == (307, f"{address}/{name}?noredirect")
        status, _, answer = cluster.http(position, "GET", f"/api/handles/{name}")
        assert (status, json.loads(answer)["responseCode"]) == (400, 301)
    status, headers, _ = cluster.http(owner, "GET", f"/{name}")
    assert (status, headers["location"]) == (302, f"https://example.org/{name}")


def test_redirects_of_public_requests_lead_to_the_record(cluster: Cluster) -> None:
    name = NAMES[1]
    for position in cluster.others(name):
        location = cluster.http(position, "GET", f"/{name}")[1]["location"]
        found = urlsplit(location)
        assert (found.hostname, found.port) == cluster.servers[cluster.owner(name)].http
        assert cluster.http(cluster.owner(name), "GET", found.path)[1]["location"] == f"https://example.org/{name}"


def test_prefix_handles_and_policies_are_at_every_server(cluster: Cluster) -> None:
    for position in range(COUNT):
        assert cluster.http(position, "GET", f"/api/v1/handles/0.NA%2F{PREFIX}")[0] == 200
        assert cluster.http(position, "GET", f"/api/v1/namespaces/{PREFIX}")[0] == 200


def test_each_server_mints_in_its_own_share(cluster: Cluster) -> None:
    basic = f"{quote(ADMINISTRATOR, safe='')}:{cluster.secret}"
    for position in range(COUNT):
        status, _, answer = cluster.http(position, "POST", "/api/v1/mint", {"prefix": PREFIX, "count": 20}, basic)
        assert status == 201, answer
        minted = json.loads(answer)["handles"]
        assert {cluster.owner(handle) for handle in minted} == {position}
        with PlainClient(cluster.servers[position].native, Via.UDP) as plain:
            assert plain.resolve(minted[0]).code == 1


def test_identity_of_another_server_of_the_site_is_verified_there(cluster: Cluster) -> None:
    identity, secret = f"300:{PERSON}", cluster.person_secret
    for position in cluster.others(PERSON):
        name = next(
            each for number in range(99) if cluster.owner(each := f"{PREFIX}/by-ann-{position}-{number}") == position
        )
        with cluster.client(position, identity, secret) as client:
            assert client.create(name, [Value.text(1, "URL", "https://example.org/")]) == name
        basic = f"{quote(identity, safe='')}:"
        other = next(each for number in range(99) if cluster.owner(each := f"{name}-{number}") == position)
        new = {"handle": other, "values": [{"type": "URL", "data": "https://example.org/"}]}
        assert cluster.http(position, "POST", "/api/v1/handles", new, basic + "wrong")[0] == 401
        assert cluster.http(position, "POST", "/api/v1/handles", new, basic + secret)[0] == 201


def test_import_refuses_the_rows_of_other_servers(cluster: Cluster, tmp_path: Path) -> None:
    names = [f"{PREFIX}/row-{number}" for number in range(6)]
    file = tmp_path / "rows.csv"
    file.write_text("handle,URL\n" + "".join(f"{name},https://example.org/{name}\n" for name in names))
    directory = cluster.directories[0]
    done = call(
        "import", str(file), "--skip-invalid", "--yes", "-d", str(directory), "--report", str(tmp_path / "bad.csv")
    )
    assert done.code == 0, done
    refused = (tmp_path / "bad.csv").read_text()
    for name in names:
        owner = cluster.owner(name)
        assert (f"{name} belongs to server {owner + 1} of this site" in refused) is (owner != 0)
        assert (call("resolve", name, "-d", str(directory)).code == 0) is (owner == 0)


def test_a_closed_client_connects_to_no_server(cluster: Cluster) -> None:
    client = cluster.client()
    by_owner = [next(name for name in NAMES if cluster.owner(name) == position) for position in range(COUNT)]
    assert client.resolve(by_owner[0])
    client.close()
    for name in by_owner:
        with pytest.raises(Unreachable, match="the client was closed"):
            client.resolve(name)


def test_stopped_server_takes_away_only_its_share(cluster: Cluster) -> None:
    gone = cluster.owner(NAMES[0])
    cluster.servers[gone].kill()
    resolver = cluster.resolver(Transport.TCP)
    for name in NAMES:
        if cluster.owner(name) == gone:
            with pytest.raises(Unreachable):
                resolver.resolve(name)
        else:
            assert resolver.resolve(name).target == f"https://example.org/{name}"
    alive = next(position for position in range(COUNT) if position != gone)
    with cluster.client(alive) as client:
        results = list(client.do_many(native_operations.add(name, [Value.text(3, "DESC", "later")]) for name in NAMES))
        with pytest.raises(Unreachable, match=rf"^Server {gone + 1} of the site, 127\.0\.0\.1: ") as caught:
            client.home("0.NA/54321")
    before = ", ".join(str(each + 1) for each in range(gone)) or "none"
    assert caught.value.detail.endswith(f"; servers changed before: {before}")
    failed = {name for name, result in zip(NAMES, results, strict=True) if isinstance(result, Unreachable)}
    assert failed == {name for name in NAMES if cluster.owner(name) == gone}

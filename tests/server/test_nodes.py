"""Two nodes on one PostgreSQL database, made and used as docs/guides/run-several-nodes.md says.

Behind a load balancer, as two sites, in read-only mode, and while they are upgraded one after the other.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import quote, urlencode

import alembic.config
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.client import NativeClient as PythonClient
from perseid.client import native_operations as operations
from perseid.ledger import errors
from perseid.ledger.log import commit
from perseid.ledger.store import TABLES_VERSION, migrations, store
from perseid.records.record import Value
from perseid.registry.installation import installation
from perseid.registry.installation.certificates import create_self_signed
from perseid.wire.codes import ResponseCode
from tests.cli.installation import call
from tests.postgres import BINARIES, USER, Cluster, postgres
from tests.server.failover import PREFIX, perseid, request, token_for, wait_until
from tests.server.native.native_client import NativeClient, Via
from tests.server.running import Serving, serving
from tests.test_documentation import GUIDE_OF_NODES, Shell, agrees, blocks, session

__all__ = ["postgres"]

ADMINISTRATOR = f"300:0.NA/{PREFIX}"
NAME = "id.example.org"
HOST = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
"""An address of this machine that no other test process uses, because HAProxy has no free ports to ask for."""
HTTPS_PORT, NATIVE_PORT = 8443, 2641
CLIENT = "127.0.0.1"
URL = Value.text(1, "URL", "https://example.org/")
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{new}", "{old}", None, None


def upgrade() -> None:
    op.add_column("node_reports", sa.Column("new_{new}", sa.Text))
"""


def section(title: str) -> str:
    """A section of the guide."""
    _, found, rest = GUIDE_OF_NODES.read_text().partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def commands(title: str) -> list[tuple[str, str]]:
    """The commands of a section with their documented output."""
    found = [each for each in blocks(GUIDE_OF_NODES, section(title)) if each.language == "console"]
    return [command for each in found for command in session(each)]


def example(title: str, language: str, start: str) -> str:
    """An example in a section of the guide."""
    found = [each.text for each in blocks(GUIDE_OF_NODES, section(title)) if each.language == language]
    (text,) = [each for each in found if each.startswith(start)]
    return text


@dataclass(frozen=True)
class Nodes:
    """Two machines: the shell, the directory and the server of each."""

    shells: list[Shell]
    directories: list[Path]
    servers: list[Serving]
    token: str
    secret: str
    environ: dict[str, str]
    stack: ExitStack

    def stop(self, number: int) -> None:
        self.servers[number].stop()

    def start(self, number: int) -> None:
        """Start a stopped server again, at the same ports."""
        old = self.servers[number]
        ports = {"PERSEID_HTTP_PORT": str(old.http[1])}
        options = ("--native-port", str(old.native[1]))
        environ = self.environ | ports
        self.servers[number] = self.stack.enter_context(serving(self.directories[number], *options, **environ))

    def mint(self, number: int) -> tuple[int, str]:
        body = {"prefix": PREFIX, "values": [{"type": "URL", "data": "https://example.org/minted"}]}
        status, answer = request(self.servers[number].http, "POST", "/api/v1/mint", body, self.token)
        return status, answer.decode()

    def resolve(self, number: int, suffix: str) -> int:
        return request(self.servers[number].http, "GET", f"/api/handles/{PREFIX}/{suffix}")[0]

    def state(self, number: int) -> str:
        return request(self.servers[number].http, "GET", "/readyz")[1].decode()

    def refuses_changes(self, number: int) -> bool:
        return self.state(number) == "ready, changes are refused: read-only\n"


def has_serial(client: NativeClient, serial: int) -> bool:
    return client.site().serial == serial


def follow(shell: Shell, steps: list[tuple[str, str]], url: str = "") -> None:
    """Type commands of the guide, with the real URL of the database."""
    for command, expected in steps:
        printed = shell.run(command.replace("postgresql://names@db.example.org/names", url))
        assert agrees(printed, expected), f"$ {command}\n{printed}"


@pytest.fixture(scope="module")
def nodes(postgres: Cluster) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folders = [Path(name) / each for each in ("first", "second")]
        shells = []
        for folder in folders:
            folder.mkdir()
            shells.append(Shell(folder))
            stack.callback(shells[-1].close)
        first, second = shells
        first.run(f"export PGHOST={postgres.folder} PGUSER={USER} PATH={BINARIES}:$PATH")
        follow(first, commands("The database"))
        follow(first, commands("The first node"), f"postgresql://names@/names?host={postgres.folder}")
        for file in ("node.perseid", "passphrase"):
            shutil.copy(folders[0] / file, folders[1])
        join, remove, check = commands("The second node")
        follow(second, [join, remove])
        directories = [folder / "names" for folder in folders]
        perseid("create", f"{PREFIX}/first", "--url", "https://example.org/first", "-d", directories[0])
        done = call("user", "reset", f"0.NA/{PREFIX}", "-d", str(directories[0]), "--json")
        settings = tomllib.loads(example("The first node", "toml", "[native]"))
        real = {"0.0.0.0": "127.0.0.1", "192.0.2.10": HOST}
        environ = {"PERSEID_LOG_ACCESS": "false"}
        for part, values in settings.items():
            for key, value in values.items():
                text = value[0] if isinstance(value, list) else value
                environ[f"PERSEID_{part}_{key}".upper()] = str(real.get(text, text))
        servers = [stack.enter_context(serving(each, **environ)) for each in directories]
        wait_until(lambda: agrees(second.run(check[0]), check[1]), "both nodes have reported")
        token, secret = token_for(directories[0]), json.loads(done.out)["secret"]
        yield Nodes(shells, directories, servers, token, secret, environ, stack)


@pytest.fixture(scope="module")
def balancer(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """HAProxy with the example of the guide; its certificate."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "haproxy is not installed: make test installs it"
    work = tmp_path_factory.mktemp("haproxy")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = create_self_signed(key, [NAME]).public_bytes(Encoding.PEM)
    (work / "pem").write_bytes(certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    text = example("One name", "text", "defaults")
    text = text.replace("bind :443", f"bind {HOST}:{HTTPS_PORT}").replace("bind :2641", f"bind {HOST}:{NATIVE_PORT}")
    text = text.replace("/etc/haproxy/id.example.org.pem", str(work / "pem"))
    text = text.replace("backend http\n", f"backend http\n    source {HOST}\n")
    for number, server in enumerate(nodes.servers, 1):
        text = text.replace(f"192.0.2.1{number}:8000", "{}:{}".format(*server.http))
        text = re.sub(
            rf"192\.0\.2\.1{number}:2641 check port 8000",
            "{}:{} check port {}".format(*server.native, server.http[1]),
            text,
        )
    assert "192.0.2" not in text
    (work / "conf").write_text(text)
    with (work / "log").open("wb") as log:
        process = subprocess.Popen([program, "-db", "-f", str(work / "conf")], stdout=log, stderr=log)
    try:
        wait_until(
            lambda: process.poll() is not None or through(work / "pem", "/readyz") == (200, b"ready\n"), "HAProxy"
        )
        assert process.poll() is None, (work / "log").read_text()
        yield work / "pem"
    finally:
        process.terminate()
        process.wait(30)


def exchange(
    certificate: Path, method: str, path: str, body: str | None = None, source: str = CLIENT, **headers: str
) -> tuple[int, bytes, str]:
    """Send a request to the load balancer under its name; the status or 0, the body, and the cookie that is set."""
    connection = HTTPSConnection(NAME, timeout=30)
    try:
        stream = socket.create_connection((HOST, HTTPS_PORT), 30, (source, 0))
        connection.sock = ssl.create_default_context(cafile=str(certificate)).wrap_socket(stream, server_hostname=NAME)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.getheader("Set-Cookie", "").partition(";")[0]
    except OSError:
        return 0, b"", ""
    finally:
        connection.close()


def through(
    certificate: Path, path: str, method: str = "GET", body: str | None = None, token: str = ""
) -> tuple[int, bytes]:
    """Send a request to the load balancer with a token."""
    headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"} if token else {}
    return exchange(certificate, method, path, body, **headers)[:2]


def test_two_nodes_are_behind_one_name(nodes: Nodes, balancer: Path) -> None:
    for _ in range(2):  # one for each node
        assert through(balancer, f"/api/handles/{PREFIX}/first")[0] == 200
    body = json.dumps({"prefix": PREFIX, "values": [{"type": "URL", "data": "https://example.org/balanced"}]})
    for _ in range(2):
        status, answer = through(balancer, "/api/v1/mint", "POST", body, nodes.token)
        assert status == 201, answer  # the node knows that the client uses https
    perseid("create", f"{PREFIX}/a//b", "--url", "https://example.org/", "-d", nodes.directories[0])
    assert through(balancer, f"/api/handles/{PREFIX}/a//b")[0] == 200
    with NativeClient((HOST, NATIVE_PORT), Via.TCP) as client:
        for _ in range(2):
            assert client.resolve(f"{PREFIX}/first").code is ResponseCode.SUCCESS
    for server in nodes.servers:
        with NativeClient(server.native, Via.UDP) as client:
            assert client.resolve(f"{PREFIX}/first").code is ResponseCode.SUCCESS


def basic(nodes: Nodes) -> str:
    """The secret of the administrator, for HTTP."""
    return "Basic " + b64encode(f"{quote(ADMINISTRATOR, safe='')}:{nodes.secret}".encode()).decode()


def begin_session(nodes: Nodes, balancer: Path, source: str = CLIENT) -> str:
    """Begin a session of the compatible API; its credentials."""
    status, answer, _ = exchange(balancer, "POST", "/api/sessions", source=source, Authorization=basic(nodes))
    assert status == 201, answer
    return 'Handle sessionId="{}"'.format(json.loads(answer)["sessionId"])


def sign_in(nodes: Nodes, balancer: Path) -> str:
    """Sign in to the console; the cookie."""
    form = urlencode({"method": "secret", "next": "/console", "identity": ADMINISTRATOR, "secret": nodes.secret})
    headers = {"Content_Type": "application/x-www-form-urlencoded", "Origin": f"https://{NAME}"}
    status, page, cookie = exchange(balancer, "POST", "/console/sign-in", form, **headers)
    assert (status, bool(cookie)) == (303, True), page
    return cookie


def use_native_challenges(nodes: Nodes, _: Path, name: str) -> None:
    with NativeClient((HOST, NATIVE_PORT), Via.TCP) as client:  # a connection for each message
        client.act_as(ADMINISTRATOR, nodes.secret)
        codes = [client.create(f"{PREFIX}/{name}-{number}", (URL,)).code for number in range(6)]
    assert codes == [ResponseCode.SUCCESS] * 6


def use_native_session(nodes: Nodes, _: Path, name: str) -> None:
    with NativeClient((HOST, NATIVE_PORT), Via.TCP) as client:
        client.act_as(ADMINISTRATOR, nodes.secret)
        client.begin_session()
        codes = [client.create(f"{PREFIX}/{name}-{number}", (URL,)).code for number in range(6)]
    assert codes == [ResponseCode.SUCCESS] * 6


def use_python_client(nodes: Nodes, _: Path, name: str) -> None:
    handles = [f"{PREFIX}/{name}-{number}" for number in range(60)]
    with PythonClient(HOST, NATIVE_PORT, identity=ADMINISTRATOR, key=nodes.secret) as client:
        assert list(client.do_many(operations.create(handle, [URL]) for handle in handles)) == handles


def use_session(nodes: Nodes, balancer: Path, _: str) -> None:
    session = begin_session(nodes, balancer)
    answers = [exchange(balancer, "GET", "/api/sessions/this", Authorization=session) for _ in range(6)]
    assert [status for status, *_ in answers] == [200] * 6, answers


def use_console(nodes: Nodes, balancer: Path, _: str) -> None:
    cookie = sign_in(nodes, balancer)
    pages = [exchange(balancer, "GET", "/console", Cookie=cookie) for _ in range(6)]
    assert [status for status, *_ in pages] == [200] * 6, pages


def use_import(nodes: Nodes, balancer: Path, name: str) -> None:
    send = partial(exchange, balancer, Authorization=basic(nodes))
    rows = f"handle,URL\n{PREFIX}/{name},https://example.org/\n"
    path = f"/api/v1/imports?prefix={PREFIX}&format=csv"
    status, answer, _ = send("POST", path, rows, Content_Type="text/csv")
    assert status == 202, answer
    found = "/api/v1/imports/{}".format(json.loads(answer)["id"])
    assert [send("GET", found)[0] for _ in range(6)] == [200] * 6
    wait_until(lambda: json.loads(send("GET", found)[1])["state"] == "ready", "the file is checked")
    status, answer, _ = send("POST", f"{found}/apply", "{}", Content_Type="application/json")
    assert status in (200, 201, 202), answer
    wait_until(lambda: through(balancer, f"/api/handles/{PREFIX}/{name}")[0] == 200, "the import")


USES = [use_native_challenges, use_native_session, use_python_client, use_session, use_console, use_import]


@pytest.mark.parametrize("use", USES)
def test_what_one_node_knows_is_used_behind_one_name(
    nodes: Nodes, balancer: Path, use: Callable[[Nodes, Path, str], None]
) -> None:
    use(nodes, balancer, use.__name__)


def find_node(nodes: Nodes, session: str) -> int:
    """The node that knows a session."""
    headers = {"Authorization": session, "X-Forwarded-For": CLIENT, "X-Forwarded-Proto": "https"}
    known = []
    for server in nodes.servers:
        connection = HTTPConnection(*server.http, timeout=30, source_address=(HOST, 0))
        connection.request("GET", "/api/sessions/this", headers=headers)
        known.append(connection.getresponse().status == 200)
        connection.close()
    assert sum(known) == 1
    return known.index(True)


def test_a_lost_node_ends_what_only_it_knew(nodes: Nodes, balancer: Path) -> None:
    sessions = [begin_session(nodes, balancer, f"127.0.0.{number}") for number in range(1, 17)]
    assert {find_node(nodes, each) for each in sessions} == {0, 1}  # both nodes work
    lost = find_node(nodes, sessions[0])
    cookie = sign_in(nodes, balancer)
    with PythonClient(HOST, NATIVE_PORT, identity=ADMINISTRATOR, key=nodes.secret) as client:
        client.create(f"{PREFIX}/before-loss", [URL])
        nodes.stop(lost)
        assert exchange(balancer, "GET", "/api/sessions/this", Authorization=sessions[0])[0] == 403
        assert exchange(balancer, "GET", "/console", Cookie=cookie)[0] == 303  # to the page to sign in
        client.create(f"{PREFIX}/after-loss", [URL])
    for use in USES:
        use(nodes, balancer, f"{use.__name__}-after-loss")
    nodes.start(lost)
    wait_until(lambda: find_node(nodes, begin_session(nodes, balancer)) == lost, "the node is back")
    for use in USES:
        use(nodes, balancer, f"{use.__name__}-again")


def test_two_nodes_can_be_two_sites(nodes: Nodes) -> None:
    *change, add = commands("Two sites")
    for number, (shell, directory, server) in enumerate(
        zip(nodes.shells, nodes.directories, nodes.servers, strict=True), 1
    ):
        site = json.loads((directory / "siteinfo.json").read_text())
        assert site["attributes"] == [{"name": "domain", "value": "hdl.example.org"}]
        site |= {"attributes": [], "serialNumber": 2}
        site["servers"][0]["address"] = f"192.0.2.1{number}"
        (directory / "siteinfo.json").write_text(json.dumps(site))
        follow(shell, change)
        assert "signs as server 1 of siteinfo.json (serial number 2)" in shell.run(change[-1][0])
        server.process.send_signal(signal.SIGHUP)
        with NativeClient(server.native) as client:
            wait_until(partial(has_serial, client, 2), "the new site information")
    shutil.copy(nodes.directories[1] / "siteinfo.json", nodes.directories[0].parent / "second.json")
    follow(nodes.shells[0], [add])
    shown = perseid("resolve", f"0.NA/{PREFIX}", "--type", "HS_SITE", "-d", nodes.directories[1])
    assert [f"192.0.2.1{number}" in shown for number in (1, 2)] == [True, True]


def test_read_only_mode_holds_at_all_nodes_and_interfaces(nodes: Nodes) -> None:
    first, second = nodes.servers
    assert nodes.mint(1)[0] == 201
    assert "Changes are accepted" in perseid("read-only", "-d", nodes.directories[0])
    on, off = commands("Maintenance")
    follow(nodes.shells[0], [on])
    for number in (0, 1):
        status, answer = nodes.mint(number)
        problem = json.loads(answer)
        assert (status, problem["type"].rpartition("#")[2]) == (503, "read-only")
        assert problem["detail"] == "The service is read-only for maintenance: until 14:00 UTC; nothing was changed"
        assert nodes.resolve(number, "first") == 200
        wait_until(partial(nodes.refuses_changes, number), "the state")
    with NativeClient(second.native) as client:
        client.act_as(ADMINISTRATOR, nodes.secret)
        refused = client.create(f"{PREFIX}/native", (Value.text(1, "URL", "https://example.org/"),))
        assert refused.code is ResponseCode.SERVER_BACKUP
        assert client.resolve(f"{PREFIX}/first").code is ResponseCode.SUCCESS
    for directory in nodes.directories:  # beside a server
        done = call("create", f"{PREFIX}/local", "--url", "https://example.org/", "-d", str(directory))
        assert (done.code, "To accept changes again: perseid read-only off" in done.err) == (1, True), done
    done = call("check", "--quick", "-d", str(nodes.directories[1]))
    assert "read-only for maintenance: until 14:00 UTC" in " ".join(done.out.split())
    follow(nodes.shells[1], [off])
    assert (nodes.mint(0)[0], nodes.mint(1)[0]) == (201, 201)
    wait_until(lambda: nodes.state(0) == "ready\n", "the state")
    assert "changes are refused; public resolution continues: the service is read-only" in first.errors
    wait_until(lambda: "changes are accepted again" in first.errors, "the log")


@contextmanager
def newer_program(folder: Path, version: str, oldest: str) -> Iterator[None]:
    """Be a program with one more migration; `oldest` is the oldest program that can use its tables."""
    scripts = folder / version
    shutil.copytree(Path(str(migrations.__file__)).parent, scripts)
    last = TABLES_VERSION
    while last < version:
        new = f"{int(last) + 1:04d}"
        (scripts / "versions" / f"v{new}.py").write_text(MIGRATION.format(new=new, old=last))
        last = new
    with pytest.MonkeyPatch.context() as patch:
        for module in (store, installation, commit):
            patch.setattr(module, "TABLES_VERSION", version)
        patch.setattr(store, "OLDEST_PROGRAM", oldest)
        set_option = alembic.config.Config.set_main_option
        patch.setattr(
            alembic.config.Config, "set_main_option", lambda config, name, _: set_option(config, name, str(scripts))
        )
        yield


def test_nodes_are_upgraded_one_by_one(nodes: Nodes, balancer: Path, tmp_path: Path) -> None:
    old, new = nodes.directories
    nodes.servers[1].stop()
    for _ in range(10):  # nobody notices, even before the load balancer does
        assert through(balancer, f"/api/handles/{PREFIX}/first")[0] == 200
    following, later = (f"{int(TABLES_VERSION) + number:04d}" for number in (1, 2))
    with newer_program(tmp_path, following, TABLES_VERSION):
        assert "were upgraded" in perseid("upgrade", "-d", new)
        perseid("create", f"{PREFIX}/newer", "--url", "https://example.org/", "-d", new)
    # The older program goes on, can be started again, and does not upgrade by mistake.
    assert nodes.mint(0)[0] == 201
    wait_until(lambda: nodes.resolve(0, "newer") == 200, "the change of the newer program")
    perseid("create", f"{PREFIX}/older", "--url", "https://example.org/", "-d", old)
    with pytest.raises(errors.NewerFormat, match="upgrade Perseid"):
        installation.upgrade(new)
    # Tables that it cannot use: it refuses changes, resolves, and is not started again.
    with newer_program(tmp_path, later, later):
        assert installation.upgrade(new)
        assert not installation.upgrade(new)
        perseid("create", f"{PREFIX}/newest", "--url", "https://example.org/", "-d", new)
    status, answer = nodes.mint(0)
    assert (status, "This node is read-only until it is upgraded" in answer) == (503, True), answer
    wait_until(partial(nodes.refuses_changes, 0), "the state")
    wait_until(lambda: nodes.resolve(0, "newest") == 200, "the change of the newest program")
    logged = r"upgraded by a newer version of Perseid .* Upgrade Perseid on this machine"
    wait_until(lambda: re.search(logged, nodes.servers[0].errors), "the log")
    with pytest.raises(errors.NewerFormat, match=rf"\(tables {later}\); upgrade Perseid"):
        installation.Installation.open(old)

"""The examples of proxies in the guide: nginx and Caddy pass paths unchanged, and who asked, over what."""

import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.registry.installation.certificates import create_self_signed
from tests.cli.installation import site
from tests.server.live_servers import PATIENCE, eventually
from tests.server.running import Address, serving

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "guides" / "serving.md"
NAME = "id.example.org"
UPSTREAM = "127.0.0.1:8000"
HOST = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
"""An address of this machine that no other test process uses, because proxies have no free ports to ask for."""
PORT = 8443
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


@dataclass(frozen=True)
class Certificate:
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A server behind proxies, with the settings of the guide."""
    here = site(tmp_path_factory.mktemp("proxies"), "--prefix", "12345")
    for suffix in ("a/b", "a//b"):
        here.ok(f"create 12345/{suffix} --url https://example.org/{suffix.count('/')}")
    settings = {
        "HOST": "127.0.0.1",
        "LISTEN": "http",
        "PUBLIC_URL": f"https://{NAME}",
        "TRUSTED_PROXIES": "127.0.0.0/8",
    }
    with serving(here.directory, **{f"PERSEID_HTTP_{name}": value for name, value in settings.items()}) as running:
        yield running.http


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "pem").write_bytes(create_self_signed(key, [NAME]).public_bytes(Encoding.PEM))
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Certificate(folder / "pem", folder / "key")


def example(start: str, upstream: Address) -> str:
    """The example in the guide, for a server at another port."""
    blocks: list[str] = re.findall(r"```text\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if block.startswith(start)]
    assert text.count(UPSTREAM) == 1
    return text.replace(UPSTREAM, f"{upstream[0]}:{upstream[1]}")


def replace(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@contextmanager
def running(work: Path, *command: str) -> Iterator[None]:
    with (work / "log").open("wb") as log:
        environ = os.environ | {"HOME": str(work), "XDG_DATA_HOME": str(work), "XDG_CONFIG_HOME": str(work)}
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        eventually(lambda: process.poll() is not None or is_listening(), f"{command[0]} listens")
        assert process.poll() is None, (work / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def is_listening() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, PORT)) == 0


@contextmanager
def nginx(work: Path, upstream: Address, certificate: Certificate) -> Iterator[None]:
    program = shutil.which("nginx", path=PATH)
    assert program is not None, "nginx is not installed: make test installs it"
    text = replace(
        example("server {", upstream),
        ("listen 443 ssl", f"listen {HOST}:{PORT} ssl"),
        ("/etc/ssl/id.example.org.pem", str(certificate.certificate)),
        ("/etc/ssl/id.example.org.key", str(certificate.key)),
    )
    folders = "".join(
        f"{name}_temp_path {work}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (work / "conf").write_text(
        f"daemon off; {user} pid {work}/pid; events {{}}\nhttp {{ access_log off; {folders}\n{text} }}\n"
    )
    with running(work, program, "-e", f"{work}/log", "-c", f"{work}/conf", "-p", str(work)):
        yield


@contextmanager
def caddy(work: Path, upstream: Address, certificate: Certificate) -> Iterator[None]:
    program = shutil.which("caddy", path=PATH)
    assert program is not None, "caddy is not installed: make test installs it"
    own = f"https://{NAME}:{PORT} {{\n    bind {HOST}\n    tls {certificate.certificate} {certificate.key}"
    text = replace(example(f"{NAME} {{", upstream), (f"{NAME} {{", own))
    (work / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https disable_redirects\n}}\n{text}")
    with running(work, program, "run", "--config", str(work / "Caddyfile"), "--adapter", "caddyfile"):
        yield


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    server: Address,
    certificate: Certificate,
) -> Iterator[Certificate]:
    with request.param(tmp_path_factory.mktemp("proxy"), server, certificate):
        yield certificate


def get(proxy: Certificate, path: str, **headers: str) -> tuple[int, str | None]:
    """Ask the proxy for a path, as it is."""
    context = ssl.create_default_context(cafile=str(proxy.certificate))
    with (
        socket.create_connection((HOST, PORT), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as link,
    ):
        lines = [f"GET {path} HTTP/1.1", f"Host: {NAME}", *(f"{name}: {value}" for name, value in headers.items())]
        link.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        response = http.client.HTTPResponse(link)
        response.begin()
        response.read()
        return response.status, response.getheader("Location")


@pytest.mark.parametrize(
    ("path", "slashes"), [("12345/a/b", 1), ("12345/a%2Fb", 1), ("12345/a//b", 2), ("12345%2Fa%2F%2Fb", 2)]
)
def test_paths_reach_the_server_unchanged(proxy: Certificate, path: str, slashes: int) -> None:
    assert get(proxy, f"/{path}") == (302, f"https://example.org/{slashes}")


@pytest.mark.parametrize("forged", [{}, {"X-Forwarded-Proto": "http", "X-Forwarded-For": "192.0.2.1"}])
def test_credentials_are_accepted_because_clients_use_https(proxy: Certificate, forged: dict[str, str]) -> None:
    """A wrong token is refused as wrong, not because others could read it; headers of clients do not count."""
    path = "/api/v1/handles/12345%2Fa%2Fb"
    assert get(proxy, path, **forged)[0] == 200
    assert get(proxy, path, Authorization="Bearer wrong", **forged)[0] == 401


def test_credentials_are_refused_if_the_proxy_does_not_tell_the_scheme(server: Address) -> None:
    connection = http.client.HTTPConnection(*server, timeout=PATIENCE)
    connection.request("GET", "/api/v1/handles/12345%2Fa%2Fb", headers={"Authorization": "Bearer wrong"})
    assert connection.getresponse().status == 403
    connection.close()

"""Saved remotes: files that only the user can read, and certificates that no authority has signed."""

import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.client import remotes
from perseid.client.errors import Unreachable
from perseid.client.remotes import InvalidRemote, Remote
from perseid.registry.installation.certificates import create_self_signed


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}


def test_remote_is_saved_in_a_private_file_replaced_and_removed(environ: dict[str, str]) -> None:
    remote = Remote("https://id.example.org", token="secret-token")
    path = remotes.save_remote("work", remote, environ)
    assert path == Path(environ["XDG_CONFIG_HOME"]) / "perseid" / "remotes" / "work.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert remotes.load_remote("work", environ) == remote
    other = Remote("https://other.example.org", "300:0.NA/12345", secret="s")
    remotes.save_remote("work", other, environ)
    assert remotes.load_remote("work", environ) == other
    assert remotes.list_remotes(environ) == ["work"]
    remotes.remove_remote("work", environ)
    assert list(path.parent.iterdir()) == []
    with pytest.raises(InvalidRemote, match="There is no remote work; saved remotes: none"):
        remotes.load_remote("work", environ)


def test_secrets_are_not_in_the_representation() -> None:
    assert "secret" not in repr(Remote("https://id.example.org", "300:1/a", token="secret1", secret="secret2"))


def test_folder_is_in_the_home_directory_by_default(tmp_path: Path) -> None:
    assert remotes.remotes_folder({"HOME": str(tmp_path)}) == tmp_path / ".config" / "perseid" / "remotes"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65, "a b"])
def test_name_that_could_be_another_file_is_refused(name: str, environ: dict[str, str]) -> None:
    with pytest.raises(InvalidRemote, match="not a name of a remote"):
        remotes.save_remote(name, Remote("https://id.example.org"), environ)


def test_file_that_others_can_read_or_that_is_invalid_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    path = remotes.save_remote("work", Remote("https://id.example.org"), environ)
    path.chmod(0o640)
    with pytest.raises(InvalidRemote, match="chmod 600"):
        remotes.load_remote("work", environ)
    path.chmod(0o600)
    path.write_bytes(b"{}")
    with pytest.raises(InvalidRemote, match="not a saved remote"):
        remotes.load_remote("work", environ)
    token = tmp_path / "token"
    for content, problem in (
        (b"", "The file .*token is empty"),
        (b"\xff", "not UTF-8"),
        (b"The secret is\n\nabc\n", "token has 3 lines; it must contain only the secret"),
        (b"x" * 65_537, "more than 65,536"),
    ):
        token.write_bytes(content)
        token.chmod(0o600)
        with pytest.raises(InvalidRemote, match=problem):
            remotes.read_secret(token)
    token.write_bytes(b"token\n")
    assert remotes.read_secret(token) == "token"
    with pytest.raises(InvalidRemote, match="Cannot read"):
        remotes.read_secret(tmp_path / "none")


def test_remote_connects_with_its_credentials() -> None:
    url = "https://id.example.org"
    assert Remote(url, token="t").connect().options.credentials.headers() == {"Authorization": "Bearer t"}
    basic = Remote(url, "300:1/a", secret="s").connect().options.credentials.headers() or {}
    assert basic["Authorization"].startswith("Basic ")
    pinned = Remote(url, fingerprint="AB:" * 31 + "AB").connect().options
    assert (pinned.fingerprint, pinned.credentials.headers()) == ("ab" * 32, {})
    with pytest.raises(ValueError, match="not sent over plain HTTP"):
        Remote("http://id.example.org", token="t").connect()


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[tuple[int, Path, str]]:
    """A TLS server with a self-signed certificate: its port, the certificate, and the hash of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = create_self_signed(key, ("127.0.0.1",))
    path = tmp_path / "server.pem"
    pem = certificate.public_bytes(Encoding.PEM)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(pem)
    yield listener.getsockname()[1], ca_file, hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(30)


def test_certificate_that_is_not_trusted_has_a_fingerprint_and_a_reason(self_signed: tuple[int, Path, str]) -> None:
    port, ca_file, fingerprint = self_signed
    assert remotes.find_untrusted("127.0.0.1", port, None) == (fingerprint, "self-signed certificate")
    assert remotes.find_untrusted("127.0.0.1", port, ca_file) is None
    found = remotes.find_untrusted("localhost", port, ca_file)
    assert found is not None
    assert found.fingerprint == fingerprint
    assert "mismatch" in found.reason, "another server has this certificate"
    assert remotes.format_fingerprint(fingerprint).replace(":", "").lower() == fingerprint


def test_server_that_cannot_be_reached_has_no_certificate() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match="cannot be reached"):
        remotes.find_untrusted("127.0.0.1", port, None)

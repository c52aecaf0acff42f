"""An unmodified client of deployed servers works: pyhandle, over TLS, with a password and with a certificate."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyhandle import handleexceptions as problems
from pyhandle.client.resthandleclient import RESTHandleClient
from pyhandle.clientcredentials import PIDClientCredentials

from perseid.registry.installation.certificates import CERTIFICATE_NAME
from perseid.registry.installation.installation import KEYS_NAME
from tests.server.http.client_certificates import UID, certificate, library_key
from tests.server.http.replays import SETTINGS
from tests.server.native.live_vectors import make_installation
from tests.server.native.native_servers import ADMIN, PREFIX
from tests.server.running import serving
from tests.wire.key_material import RSA_KEY, SECRET

URL = "https://example.org/thing"
STD = f"{PREFIX}/vec-std"


@dataclass(frozen=True)
class RunningServer:
    """A running server in the recorded state, and what a client needs to know of it."""

    url: str
    verify: str
    """The certificate of the server, so that it is verified as usual."""
    key: Path
    certificate: Path

    def client(self, way: str) -> Any:
        if way == "password":
            return RESTHandleClient.instantiate_with_username_and_password(
                self.url, f"301:{ADMIN}", SECRET.decode(), HTTPS_verify=self.verify
            )
        credentials = PIDClientCredentials(
            client="rest",
            handle_server_url=self.url,
            private_key=str(self.key),
            certificate_only=str(self.certificate),
            prefix=PREFIX,
            handleowner=f"200:{ADMIN}",
            HTTPS_verify=self.verify,
        )
        return RESTHandleClient.instantiate_with_credentials(credentials, HTTPS_verify=self.verify)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("pyhandle")
    installation = make_installation(folder, "tcp")
    key, made = folder / "key.pem", folder / "certificate.pem"
    key.write_bytes(library_key(RSA_KEY).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    der = certificate((UID, f"300:{ADMIN}"))
    made.write_bytes(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM))
    with serving(installation, **SETTINGS) as server:
        host, port = server.http
        yield RunningServer(f"https://{host}:{port}", str(installation / KEYS_NAME / CERTIFICATE_NAME), key, made)


BOTH = pytest.mark.parametrize("way", ["password", "certificate"])


@BOTH
def test_handle_is_created_read_modified_and_deleted(running: RunningServer, way: str) -> None:
    client, name = running.client(way), f"{PREFIX}/py-{way}-1"
    assert client.register_handle(name, URL, checksum="abc", FOO="foo") == name
    assert client.get_value_from_handle(name, "URL") == URL
    assert client.get_value_from_handle(name, "NONE") is None
    assert client.retrieve_handle_record(name).keys() == {"URL", "CHECKSUM", "FOO", "HS_ADMIN"}
    client.modify_handle_value(name, FOO="changed", BAR="added")
    assert client.get_value_from_handle(name, "FOO") == "changed"
    assert client.get_value_from_handle(name, "BAR") == "added"
    assert client.get_value_from_handle(name, "CHECKSUM") == "abc"
    client.delete_handle_value(name, ["FOO", "BAR"])
    assert client.retrieve_handle_record(name).keys() == {"URL", "CHECKSUM", "HS_ADMIN"}
    client.delete_handle(name)
    assert client.retrieve_handle_record_json(name) is None


@BOTH
def test_handle_is_created_once_and_again_after_deletion(running: RunningServer, way: str) -> None:
    client, name = running.client(way), f"{PREFIX}/py-{way}-2"
    client.register_handle(name, URL)
    with pytest.raises(problems.HandleAlreadyExistsException):
        client.register_handle(name, URL)
    client.register_handle(name, f"{URL}/2", overwrite=True)
    assert client.get_value_from_handle(name, "URL") == f"{URL}/2"
    client.delete_handle(name)
    client.register_handle(name, URL)
    client.delete_handle(name)


@BOTH
def test_handle_is_generated(running: RunningServer, way: str) -> None:
    client = running.client(way)
    name = client.generate_and_register_handle(PREFIX, URL)
    assert client.get_value_from_handle(name, "URL") == URL


@BOTH
def test_refusals_are_what_client_expects(running: RunningServer, way: str) -> None:
    client = running.client(way)
    for change in (client.delete_handle, lambda name: client.modify_handle_value(name, FOO="x")):
        with pytest.raises(problems.HandleNotFoundException):
            change(f"{PREFIX}/none")
    with pytest.raises(problems.GenericHandleError):
        client.register_handle("20.500.77777/x", URL)


def test_values_are_sorted_by_index(running: RunningServer) -> None:
    client = RESTHandleClient.instantiate_for_read_access(running.url, HTTPS_verify=running.verify)
    found = [value["index"] for value in client.retrieve_handle_record_json(STD)["values"]]
    assert found == sorted(found)


def test_wrong_password_is_refused_on_change(running: RunningServer) -> None:
    client = RESTHandleClient.instantiate_with_username_and_password(
        running.url, f"301:{ADMIN}", "wrong", HTTPS_verify=running.verify
    )
    with pytest.raises(problems.HandleAuthenticationError):
        client.register_handle(f"{PREFIX}/py-wrong", URL)
    assert client.retrieve_handle_record_json(f"{PREFIX}/py-wrong") is None


def test_unknown_user_is_refused_at_once(running: RunningServer) -> None:
    with pytest.raises(problems.HandleNotFoundException):
        RESTHandleClient.instantiate_with_username_and_password(
            running.url, f"301:{PREFIX}/nobody", "x", HTTPS_verify=running.verify
        )


def test_handles_are_found_by_url(running: RunningServer) -> None:
    client = RESTHandleClient.instantiate_for_read_and_search(
        running.url, f"301:{ADMIN}", SECRET.decode(), HTTPS_verify=running.verify
    )
    assert client.search_handle(URL="*us.example.org*") == []
    assert client.search_handle(URL="https://example.org/a") == [STD]
    assert client.search_handle(URL="*example.org/a", prefix=PREFIX) == [STD]

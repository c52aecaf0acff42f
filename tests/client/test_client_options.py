"""Mistakes in options are errors, and nothing is sent."""

import subprocess
import sys
from pathlib import Path

import pytest

import perseid
from perseid.client import Client, NativeClient
from perseid.client.options import parse_identity, read_key
from perseid.records.record import ValueRef
from perseid.schema.namespaces import Scope
from tests.server.installations import ADMINISTRATOR


def test_unknown_option_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'certifed' is not an option; did you mean certified"):
        perseid.resolve("12345/a", root=tmp_path, certifed=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'tokn' is not an option; did you mean token"):
        perseid.connect("http://127.0.0.1:1", tokn="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'foo' is not an option; use token, "):
        perseid.connect("http://127.0.0.1:1", foo="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("identity", ["foo", "12345/ann", "300:ann", "", "99999999999:12345/ann"])
def test_identity_has_index_and_handle(identity: str) -> None:
    with pytest.raises(ValueError, match="The identity"):
        parse_identity(identity)
    with pytest.raises(ValueError, match="The identity"):
        perseid.connect("http://127.0.0.1:1", identity=identity, secret="x")
    with pytest.raises(ValueError, match="The identity"):
        NativeClient("127.0.0.1", 1, identity=identity, key="x")


@pytest.mark.parametrize("token", ["SECRET\n", "SECRET token", "SECRET\u00e9"])
def test_token_with_other_characters_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ValueError, match="Remove them") as caught:
        perseid.connect("http://127.0.0.1:1", token=token)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://user:SECRET@h", "user:SECRET@h", "https://user:SECRET@h"])
def test_url_with_credentials_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match="must not contain credentials") as caught:
        perseid.connect(url)
    assert "SECRET" not in str(caught.value)


def test_single_name_is_not_a_list_of_letters() -> None:
    one = (Client.resolve.request(None, "12345/a", types=types).query for types in ("URL", ["URL"], ("URL",)))
    assert len({str(query) for query in one}) == 1
    alone = Client.create_token.request(None, "mint", namespaces="12345").body
    assert alone == Client.create_token.request(None, [Scope.MINT], namespaces=["12345"]).body
    assert alone == Client.create_token.request(None, Scope.MINT, namespaces=["12345"]).body  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'minting' is not a Scope; use read, find, mint,"):
        Client.create_token.request(None, ["minting"])
    role = Client.grant.request(None, "300:12345/ann", "editor", "12345").body
    assert role == Client.grant.request(None, "300:12345/ann", ["editor"], "12345").body


def test_identity_and_key_file_are_read(tmp_path: Path) -> None:
    assert parse_identity(ADMINISTRATOR) == ValueRef.parse(ADMINISTRATOR)
    file = tmp_path / "ann.key"
    command = Path(sys.executable).with_name("perseid")
    subprocess.run([command, "key", "generate", str(file)], check=True, capture_output=True)
    key = read_key(file)
    assert read_key(key) is key
    perseid.connect("http://127.0.0.1:1", identity=ADMINISTRATOR, key=str(file)).close()
    NativeClient("127.0.0.1", 1, identity=ADMINISTRATOR, key=file).close()

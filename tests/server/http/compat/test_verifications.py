"""`/api/verifications`: verification of signatures for other servers."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.encoding import to_base64
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from perseid.server.http.context import ProofResult
from perseid.server.native.work import WorkKind
from tests.registry.registries import OPERATOR
from tests.server.http.auth_servers import basic_header, fields_of, handle_header, secret_at
from tests.server.http.contexts import Harness, json_of, recorded_harness
from tests.server.native.native_servers import ADMIN, PREFIX
from tests.wire.key_material import SECRET

NONCE, CNONCE = b"n" * 16, b"c" * 16
SEC = f"301:{ADMIN}"
USER = f"{PREFIX}/user"


@pytest.fixture
def server() -> Iterator[Harness]:
    with recorded_harness() as made:
        yield made


def asked(secret: bytes = SECRET, **other: str) -> dict[str, str]:
    signature = hashlib.sha256(secret + NONCE + CNONCE + secret).digest()
    usual = {"alg": "SHA256", "signature": to_base64(signature)}
    return {"nonce": to_base64(NONCE), "cnonce": to_base64(CNONCE)} | usual | other


def path(identity: str = SEC, fields: dict[str, Any] | None = None) -> str:
    query = urlencode(fields if fields is not None else asked(), doseq=True)
    return f"/api/verifications/{quote(identity, safe='/:')}?{query}"


def is_valid(server: Harness, identity: str = SEC, fields: dict[str, str] | None = None) -> bool:
    answer = server.get(path(identity, fields))
    assert answer.status == 200
    plain = json_of(answer)
    assert list(plain) == ["responseCode", "isValid", "handle"]
    assert plain["responseCode"] == 1
    assert isinstance(plain["isValid"], bool)
    return plain["isValid"]


def test_valid_signature_is_valid(server: Harness) -> None:
    assert is_valid(server)
    assert not is_valid(server, fields=asked(b"wrong"))
    assert server.verdicts == [ProofResult(right, ADMIN.encode(), own=False) for right in (True, False)]
    assert server.kinds == [WorkKind.READ, WorkKind.VERIFY] * 2


def test_plain_http_and_post_are_accepted(server: Harness) -> None:
    target = f"/api/verifications/{SEC}"
    body, json_type = json.dumps(asked()), {"Content-Type": "application/json"}
    assert json_of(server.post(target, body, headers=json_type, secure=False))["isValid"] is True
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert json_of(server.post(target, urlencode(asked()), headers=form))["isValid"] is True
    assert server.head(path()).status == 200
    script = server.get(path() + "&callback=f").body
    assert script.startswith(b"f({")


@pytest.mark.parametrize(
    "identity", [ADMIN, f"0:{ADMIN}", f"301:{ADMIN.lower()}", SEC.replace("/", "%2F").replace("%2F", "/")]
)
def test_key_has_several_spellings(server: Harness, identity: str) -> None:
    answer = server.get(path(identity))
    assert json_of(answer)["isValid"] is True
    assert json_of(answer)["handle"] == identity.rpartition(":")[2]


def test_index_may_be_one_parameter(server: Harness) -> None:
    assert is_valid(server, ADMIN, asked(index="301"))
    assert not is_valid(server, ADMIN, asked(index="302"))
    assert is_valid(server, ADMIN, asked(index="0"))
    for target in (path(SEC, asked(index="301")), path(ADMIN, {**asked(), "index": ["301", "301"]})):
        answer = server.get(target)
        assert answer.status == 400
        assert json_of(answer)["responseCode"] == 4
        assert "handle" not in json_of(answer)


def test_prefix_alone_means_prefix_handle(server: Harness) -> None:
    answer = server.get(path(f"301:{PREFIX}"))
    assert json_of(answer) == {"responseCode": 1, "isValid": True, "handle": PREFIX}


@pytest.mark.parametrize("identity", [f"301:{PREFIX}/nobody", f"300:{ADMIN}", f"399:{ADMIN}", f"301:{PREFIX}/vec-std"])
def test_other_values_are_not_valid(server: Harness, identity: str) -> None:
    assert not is_valid(server, identity)
    assert server.kinds == [WorkKind.READ, WorkKind.VERIFY], "and it takes as long"


def test_all_algorithms_are_supported(server: Harness) -> None:
    secret = "sä:cret".encode()
    server.registry.do(Create(Handle.parse(USER), (secret_at(300, secret),)), OPERATOR, "cli")
    signed = NONCE + CNONCE
    derivation = {"salt": to_base64(b"salt"), "iterations": "10", "length": "160"}
    ways = {
        "MD5": hashlib.md5(secret + signed + secret).digest(),
        "SHA1": hashlib.sha1(secret + signed + secret).digest(),
        "HMAC-SHA1": hmac.digest(secret, signed, "sha1"),
        "HMAC-SHA256": hmac.digest(secret, signed, "sha256"),
    }
    for password in (secret, secret.decode("latin-1").encode()):
        derived = hashlib.pbkdf2_hmac("sha1", password, b"salt", 10, 20)
        ways["PBKDF2-HMAC-SHA1"] = hmac.digest(derived, signed, "sha1")
        for alg, signature in ways.items():
            fields = asked(alg=alg, signature=to_base64(signature)) | derivation
            assert is_valid(server, f"300:{USER}", fields), alg


def test_empty_secrets_are_not_valid(server: Harness) -> None:
    server.registry.do(Create(Handle.parse(USER), (Value(300, "HS_SECKEY", b""),)), OPERATOR, "cli")
    assert not is_valid(server, f"300:{USER}", asked(b""))


def test_other_prefixes_are_refused(server: Harness) -> None:
    answer = server.get(path("300:99999/x"))
    assert answer.status == 400
    plain = json_of(answer)
    assert (plain["responseCode"], plain["handle"]) == (301, "99999/x")
    assert server.verdicts == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        *[{name: value for name, value in asked().items() if name != missing} for missing in asked()],
        asked(alg="SHA-512"),
        asked(nonce="?"),
        asked(signature="?"),
        asked(alg="PBKDF2-HMAC-SHA1"),
        asked(alg="PBKDF2-HMAC-SHA1", salt="AAAA", iterations="1000001", length="160"),
        asked(alg="PBKDF2-HMAC-SHA1", salt="AAAA", iterations="10", length="64"),
        asked(index="x"),
    ],
)
def test_invalid_request_is_refused(server: Harness, fields: dict[str, str]) -> None:
    answer = server.get(path(ADMIN, fields))
    assert answer.status == 400
    plain = json_of(answer)
    assert list(plain) == ["responseCode", "message"]
    assert plain["responseCode"] == 4
    assert server.kinds == []


@pytest.mark.parametrize(
    "target", ["/api/verifications/", "/api/verifications/301:", "/api/verifications/99999999999:a/b"]
)
def test_invalid_key_is_refused(server: Harness, target: str) -> None:
    answer = server.get(f"{target}?{urlencode(asked())}")
    assert answer.status == 400
    assert json_of(answer)["responseCode"] == 4


def test_weak_digests_are_configurable(server: Harness) -> None:
    server.configure(weak_digests=False)
    assert server.get(path(fields=asked(alg="SHA1"))).status == 400
    assert is_valid(server)


def test_caller_may_authenticate_but_not_wrongly(server: Harness) -> None:
    wrong = server.get(path(), headers={"Authorization": basic_header(SEC, b"wrong")})
    assert wrong.status == 401
    assert json_of(wrong)["responseCode"] == 403
    right = server.get(path(), headers={"Authorization": handle_header(cnonce=CNONCE)})
    assert right.status == 200
    (line,) = right.values("WWW-Authenticate")
    assert "serversignature" in fields_of(line)


@given(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from((*asked(), "index", "salt", "iterations", "length")), st.text(max_size=20)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_is_at_most_refused(server: Harness, identity: str, fields: dict[str, str]) -> None:
    assert server.get(path(identity, asked() | fields)).status in (200, 400)

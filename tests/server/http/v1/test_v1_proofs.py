"""Proofs, checkpoints and signing keys."""

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perseid.ledger import ledger as ledgers
from perseid.ledger.log import signing
from perseid.names.handle import Handle
from perseid.proof.document import VerifiedProof, verify_proof
from perseid.proof.verifier import InvalidProof, LogKey, check_consistency, open_checkpoint
from perseid.records.record import Permission, Value
from perseid.registry.commands.lifecycle import Unpublish
from perseid.registry.commands.records import Add, Create
from perseid.registry.installation.installation import Installation
from perseid.registry.queries import prove
from perseid.registry.queries.prove import NotCheckpointed
from perseid.schema.queries import ProofDocument
from perseid.server.http.v1.routes import history
from tests.cli.installation import call
from tests.server.http.contexts import Harness, basic, harness, header_of
from tests.server.http.v1.apis import JSON, got, problem, send
from tests.server.http.v1.callers import at, with_token
from tests.server.installations import OPERATOR, SECRET, copy_to
from tests.server.running import serving

PRIVATE = Value(2, "NOTE", b"for us alone", permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)


def key_of(server: Harness) -> LogKey:
    return LogKey.parse(got(send(server, "GET", "/ledger/key"))["key"])


def proof(server: Harness, name: str, query: str = "", **how: Any) -> bytes:
    """A proof, which has the form that is described."""
    answer = send(server, "GET", at(name, f"/proof{query}"), **how)
    assert (answer.status, header_of(answer, "Content-Type")) == (200, JSON), answer
    plain = json.loads(answer.body)
    assert msgspec.to_builtins(msgspec.convert(plain, ProofDocument, strict=True)) == plain
    return answer.body


def verified(server: Harness, document: bytes, name: str) -> VerifiedProof:
    return verify_proof(document, key_of(server), handle=name)


@pytest.fixture(scope="module", autouse=True)
def _short_interval() -> Iterator[None]:
    """Servers in this process sign a checkpoint every tenth of a second, not every second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "RETRY_DELAY", 0.1)
        patch.setattr(signing, "INTERVAL", signing.INTERVAL // 10)
        yield


@pytest.fixture(scope="module")
def filled() -> Iterator[Harness]:
    """A server with a name that has a past and a private value."""
    with harness() as server:
        handle = Handle.parse("12345/map")
        server.registry.do(Create(handle, (Value.text(1, "URL", "https://example.org/1"), PRIVATE)), OPERATOR, "cli")
        server.registry.do(
            Add(handle, (Value.text(1, "URL", "https://example.org/2"),), overwrite=True), OPERATOR, "cli", "moved"
        )
        yield server


def test_proof_is_valid_and_public(filled: Harness) -> None:
    document = proof(filled, "12345/map")
    found = verified(filled, document, "12345/map")
    assert [value.content[4:].count(b"https://example.org/2") for value in found.values if value.index == 1] == [1]
    assert 2 not in [value.index for value in found.values]
    assert found.undisclosed >= 1
    assert (found.actor, found.note) == (None, None)
    assert base64.b64encode(b"for us alone") not in document


def test_proof_discloses_private_data_to_administrators(filled: Harness) -> None:
    mine = verified(filled, proof(filled, "12345/map", "?everything", headers=basic()), "12345/map")
    assert (mine.note, 2 in [value.index for value in mine.values]) == ("moved", True)
    for headers in ({}, with_token(filled, "mint")):
        theirs = verified(filled, proof(filled, "12345/map", "?everything", headers=headers), "12345/map")
        assert (theirs.note, 2 in [value.index for value in theirs.values]) == (None, False)
    reader = with_token(filled, "read")
    assert verified(filled, proof(filled, "12345/map", "?everything", headers=reader), "12345/map").note == "moved"


def test_earlier_version_can_be_proved(filled: Harness) -> None:
    versions = got(send(filled, "GET", at("12345/map", "/history")))["versions"]
    found = verified(filled, proof(filled, "12345/map", f"?at={versions[1]['seq']}"), "12345/map")
    assert found.seq == versions[1]["seq"]
    assert b"https://example.org/1" in found.values[0].content


def test_proof_waits_for_a_checkpoint(server: Harness) -> None:
    made = server.registry.do(
        Create(Handle.parse("12345/now"), (Value.text(1, "URL", "https://example.org/"),)), OPERATOR, "cli"
    )
    assert verified(server, proof(server, "12345/now"), "12345/now").seq == made.seq


def test_proof_waits_at_most_ten_seconds(filled: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def fail(*_: object, **__: object) -> None:
        nonlocal attempts
        attempts += 1
        raise NotCheckpointed(seq=2, covered=1)

    interval = history.POLL_SECONDS
    monkeypatch.setattr(prove, "prove", fail)
    monkeypatch.setattr(history, "POLL_SECONDS", 0)
    answer = send(filled, "GET", at("12345/map", "/proof"))
    assert (problem(answer, "busy")["status"], header_of(answer, "Retry-After")) == (503, "1")
    assert attempts * interval == 10


def test_altered_proof_or_wrong_key_is_invalid(filled: Harness) -> None:
    document = proof(filled, "12345/map")
    with pytest.raises(InvalidProof):
        verify_proof(document, LogKey("other", bytes(32)))
    with pytest.raises(InvalidProof):
        verified(filled, document, "12345/other")
    plain = json.loads(document)
    plain["values"][0]["content"] = base64.b64encode(b"\0" * 40).decode()
    with pytest.raises(InvalidProof):
        verified(filled, json.dumps(plain).encode(), "12345/map")


def test_hidden_data_cannot_be_proved(server: Harness) -> None:
    handle = Handle.parse("12345/n1")
    server.registry.do(Unpublish(handle), OPERATOR, "cli")
    problem(send(server, "GET", at("12345/n1", "/proof")), "not-found")
    problem(send(server, "GET", at("12345/none", "/proof")), "not-found")
    problem(send(server, "GET", at("12345/n1", "/proof"), headers=basic()), "not-found")
    assert verified(server, proof(server, "12345/n1", "?everything", headers=basic()), "12345/n1").seq


def test_latest_checkpoint_is_a_signed_note(filled: Harness) -> None:
    answer = send(filled, "GET", "/ledger/checkpoint")
    assert header_of(answer, "Content-Type") == "text/plain;charset=utf-8"
    checkpoint = open_checkpoint(answer.body.decode(), key_of(filled))
    assert checkpoint.size > 50
    assert checkpoint.origin == got(send(filled, "GET", "/ledger/key"))["origin"]


def test_any_two_sizes_have_a_consistency_proof(filled: Harness) -> None:
    note = send(filled, "GET", "/ledger/checkpoint").body.decode()
    latest = open_checkpoint(note, key_of(filled))
    sizes = [0, 1, 2, 3, 7, 8, 31, 32, latest.size - 1, latest.size]
    for old in sizes:
        for new in (size for size in sizes if size >= old):
            found = got(send(filled, "GET", f"/ledger/consistency?old={old}&new={new}"))
            roots = [base64.b64decode(found[name]) for name in ("old_root", "new_root")]
            path = [base64.b64decode(each) for each in found["path"]]
            check_consistency(old, roots[0], new, roots[1], path)
            if new == latest.size:
                assert roots[1] == latest.root
            if old not in (0, new) and path:
                with pytest.raises(InvalidProof):
                    check_consistency(old, roots[0], new, roots[1], path[:-1])
    whole = got(send(filled, "GET", "/ledger/consistency?old=5"))
    assert whole["new"] >= latest.size


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("old=5&new=4", "invalid-query"),
        ("old=1&new=999999", "invalid-query"),
        ("old=-1", "invalid-request"),
        ("old=9223372036854775808", "invalid-request"),
        ("new=3", "invalid-request"),
        ("old=x", "invalid-request"),
    ],
)
def test_invalid_sizes_are_refused(filled: Harness, query: str, slug: str) -> None:
    problem(send(filled, "GET", f"/ledger/consistency?{query}"), slug)


def test_earlier_signing_keys_are_listed(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    place = {"PERSEID_DIR": str(directory)}
    assert call("key", "rotate", "checkpoint", environ=place).code == 0
    known = [json.loads(line) for line in call("key", "list", "--json", environ=place).out.splitlines()]
    ledger = [each for each in known if each["purpose"] == "checkpoint"]
    with serving(directory) as running:
        found = fetched(running.http, "/ledger/key")
        document = fetched_octets(running.http, at("12345/n0", "/proof"))
    told = json.loads(found)
    assert [each["key"] for each in told["keys"]] == [each["key"] for each in ledger]
    assert told["key"] == ledger[-1]["key"]
    assert (told["keys"][0]["until"], told["keys"][1]["since"]) == (ledger[0]["until"], ledger[1]["since"])
    for each in ledger:
        verify_proof(document, LogKey.parse(each["key"]), handle="12345/n0")


# A server that runs


def fetched_octets(address: tuple[str, int], path: str, headers: dict[str, str] | None = None) -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", f"/api/v1{path}", headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    connection.close()
    return body


def fetched(address: tuple[str, int], path: str) -> str:
    return fetched_octets(address, path).decode()


def test_proof_is_valid_without_the_server(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    with Installation.open(directory, environ={}) as installation, installation.log.open_reader() as reader:
        key = reader.signer
    with serving(directory) as running:
        names = ("12345/n0", "12345/private", "0.NA/12345")
        proofs = {name: fetched_octets(running.http, at(name, "/proof")) for name in names}
        whole = fetched_octets(running.http, at("12345/private", "/proof?everything=true"), basic())
        first = fetched(running.http, "/ledger/checkpoint")
        told = json.loads(fetched(running.http, "/ledger/key"))["key"]
    directory.rename(tmp_path / "gone")
    assert told == key
    assert open_checkpoint(first, LogKey.parse(key)).size > 50
    file = tmp_path / "a.proof.json"
    for name, document in proofs.items():
        assert SECRET.encode() not in document
        file.write_bytes(document)
        done = call("verify", str(file), "--key", key, "--handle", name, "--json")
        assert (done.code, done.json["handle"].lower()) == (0, name.lower()), done
        assert "for administrators" not in done.out
        other = call("verify", str(file), "--key", key, "--handle", "12345/other")
        assert other.code == 1
    file.write_bytes(whole)
    assert "for administrators" in call("verify", str(file), "--key", key, "--json").out

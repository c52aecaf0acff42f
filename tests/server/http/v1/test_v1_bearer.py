"""Authentication with bearer tokens."""

import secrets
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import get_ident

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.ledger.log.reader import LogReader
from perseid.ledger.store import idempotency
from perseid.ledger.store.jobs import EndJob
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.site import Transport
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken, RevokeToken
from perseid.registry.commands.records import Delete, Modify
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.http import context
from perseid.server.http.context import ProofResult
from perseid.server.http.messages import Client
from perseid.server.native.work import Work
from perseid.server.processes.pools import Pools
from tests.registry.registries import authenticated
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.installations import OPERATOR

ANN = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
URL = {"index": 1, "type": "URL", "data": "https://example.org/"}
MINT = {"prefix": "12345", "values": [{"type": "URL", "data": "https://example.org/"}]}
TYPE = {"handle": "12345/SCALE", "description": "A map's scale"}


def make(registry: Registry, *words: str, where: tuple[str, ...] | None = ("12345",)) -> Secret:
    secret = Secret.new(secrets.token_bytes)
    registry.do(CreateToken(secret, ScopeSet.of(words, where), "", 1_000), ANN, "cli")
    return secret


def bearer(secret: Secret | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret if isinstance(secret, str) else secret.text()}"}


def test_token_acts_as_its_issuer(server: Harness) -> None:
    token = make(server.registry, "create")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token))
    assert got(answer, 201)["handle"] == "12345/SCALE"
    assert answer.identity == f"token:{token.id} by {ANN}"
    assert server.verdicts[-1].succeeded


def test_keys_are_read_in_the_event_loop_and_nothing_waits_for_the_day_of_use(server: Harness) -> None:
    token, works = make(server.registry, "create"), list[Work]()

    async def do(work: Work, client: Client) -> object:  # noqa: ARG001 - for everyone
        works.append(work)
        return work.call()

    server.service.server = replace(server.context, do=do)
    for headers, short in ((bearer(token), [True]), (bearer(token), [True]), (basic(), [True])):
        works.clear()
        assert send(server, "GET", "/names/rules", headers=headers).status == 200
        assert [work.is_short for work in works] == short


def test_scheme_name_is_case_insensitive(server: Harness) -> None:
    token = make(server.registry, "create")
    headers = {"Authorization": f"bEARER   {token.text()} "}
    got(send(server, "POST", "/types", TYPE, headers=headers), 201)


def test_token_is_limited_to_its_scopes(server: Harness) -> None:
    token = make(server.registry, "read")
    found = problem(send(server, "POST", "/types", TYPE, headers=bearer(token)), "permission-denied")
    assert (found["status"], "create" in found["detail"]) == (403, True)


def test_token_of_another_namespace_is_not_told_about_the_policy(server: Harness) -> None:
    scopes = ("mint", "create", "find")
    token = make(server.registry, *scopes, where=("12345.*",))
    for path, body in (("/mint", {"prefix": "12345"}), ("/types", TYPE), ("/reserve", {"handles": ["12345/a"]})):
        found = problem(send(server, "POST", path, body, headers=bearer(token)), "permission-denied")
        assert found["detail"].endswith(": it is limited to 12345.*")
        assert (found["advice"], found.get("rule")) == (
            "Use a token for namespace 12345, or authenticate with a key",
            None,
        )


def test_token_works_in_the_compatible_api(server: Harness) -> None:
    token = make(server.registry, "create", "update", "delete")
    value = {"index": 1, "type": "URL", "data": "https://example.org/"}
    assert server.put("/api/handles/12345/tokened", [value], headers=bearer(token)).status == 201
    assert server.delete("/api/handles/12345/tokened", headers=bearer(token)).status == 200
    assert server.get("/api/handles/12345/private?index=9", headers=bearer(token)).status == 403
    reader = make(server.registry, "read")
    assert server.get("/api/handles/12345/private?index=9", headers=bearer(reader)).status == 200


def test_token_is_accepted_across_origins(server: Harness) -> None:
    token = make(server.registry, "create")
    headers = {**bearer(token), "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    got(send(server, "POST", "/types", TYPE, headers=headers), 201)


def test_token_over_plain_http_is_refused(server: Harness) -> None:
    token = make(server.registry, "create")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token), secure=False)
    assert problem(answer, "https-required")["status"] == 403
    reason = "Credentials are accepted only over HTTPS or from the server's own machine; "
    for trusted, protocol, why in (
        (False, None, "repeat the request with https"),
        (False, "https", "X-Forwarded-Proto was ignored, because its sender is not in http.trusted_proxies"),
        (True, None, "the proxy sent no X-Forwarded-Proto, and must send https"),
        (True, "http", "the proxy sent X-Forwarded-Proto: 'http', and must send https"),
    ):
        forwarded = bearer(token) | ({} if protocol is None else {"X-Forwarded-Proto": protocol})
        answer = send(server, "POST", "/types", TYPE, headers=forwarded, secure=False, trusted=trusted)
        assert problem(answer, "https-required")["advice"] == reason + why
        answer = server.delete("/api/handles/12345/n0", headers=forwarded, secure=False, trusted=trusted)
        assert json_of(answer)["message"].endswith(f"; c{reason[1:]}{why}")
    assert server.verdicts == []
    got(send(server, "POST", "/types", TYPE, headers=bearer(token), secure=False, local=True), 201)


def test_revoked_token_is_refused(server: Harness) -> None:
    token = make(server.registry, "create")
    server.registry.do(RevokeToken(token.id), OPERATOR, "cli")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token))
    refused = problem(answer, "authentication-failed")
    assert "revoked" in refused["detail"]
    assert refused["advice"] == "Use another token, or create one: POST /api/v1/tokens"
    challenges = list(answer.values("WWW-Authenticate"))
    assert challenges[0] == 'Bearer realm="handle", error="invalid_token"'
    assert not any(challenge.startswith("Basic") for challenge in challenges)


def test_token_is_refused_after_the_key_changed(server: Harness) -> None:
    token = make(server.registry, "create")
    key = {"index": 300, "type": "HS_SECKEY", "data": "another", "permissions": "1100"}
    assert server.put("/api/handles/0.NA/12345?index=300&overwrite=true", [key], headers=basic()).status == 200
    assert send(server, "POST", "/types", TYPE, headers=bearer(token)).status == 401
    server.registry.ledger.change(EndJob("no job"))  # committed after what was submitted before
    assert idempotency.last_used_days(server.registry.ledger.log) == {}


def test_token_that_ends_before_the_decision_changes_nothing(server: Harness) -> None:
    token = make(server.registry, "create", "delete")
    shown = authenticated(server.registry, token.text())
    server.registry.do(RevokeToken(token.id), OPERATOR, "cli")
    with pytest.raises(Refused, match="revoked"):
        server.registry.do(Delete(Handle.parse("12345/n0")), shown, "http")


def test_change_by_a_known_key_or_token_reads_nothing(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit checks what is cached, and that the handle is new."""
    readers: list[int] = []
    open_reader = server.registry.ledger.open_reader

    def open_and_note() -> AbstractContextManager[LogReader]:
        readers.append(get_ident())
        return open_reader()

    monkeypatch.setattr(server.registry.ledger, "open_reader", open_and_note)
    for name, headers in (("a", basic()), ("b", bearer(make(server.registry, "create", "mint")))):
        for number in range(2):
            readers.clear()
            assert server.put(f"/api/handles/12345/{name}{number}", [URL], headers=headers).status == 201
            assert (get_ident() in readers) == (number == 0)  # the ledger's own threads read, too
        readers.clear()
        got(send(server, "POST", "/mint", MINT, headers=headers), 201)
        assert get_ident() not in readers


@pytest.mark.parametrize("mints", [False, True], ids=["PUT", "mint"])
def test_key_and_token_that_another_process_changed_prove_nothing(server: Harness, mints: bool) -> None:
    """What this process remembers of them is out of date."""
    token = make(server.registry, "create", "mint")
    other = Registry(server.registry.ledger, server.registry.rules)

    def create(name: str, headers: dict[str, str]) -> int:
        if mints:
            return send(server, "POST", "/mint", MINT, headers=headers).status
        return server.put(f"/api/handles/12345/{name}", [URL], headers=headers).status

    assert (create("a", basic()), create("b", bearer(token))) == (201, 201)
    other.do(RevokeToken(token.id), OPERATOR, "cli")
    assert server.get("/api/handles/0.NA/12345", headers=bearer(token)).status == 401
    key = Value(300, "HS_SECKEY", b"another", permissions=Permission(0x0C))
    assert create("new", bearer(token)) == 401
    other.do(Modify(Handle.parse("0.NA/12345"), (key,)), OPERATOR, "cli")
    with server.registry.snapshot() as snapshot:
        size = snapshot.reader.size
    assert create("new", basic()) == 401
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.size == size
    assert create("new", basic(secret="another")) == 201


def test_wrong_token_counts_as_a_failure_but_a_typo_does_not(server: Harness) -> None:
    token = make(server.registry, "create")
    wrong = Secret(token.id, secrets.token_bytes(32))
    unknown = Secret.new(secrets.token_bytes)
    for text in (wrong, unknown):
        assert send(server, "GET", "/names/rules", headers=bearer(text)).status == 401
    assert [verdict.succeeded for verdict in server.verdicts] == [False, False]
    targets = {verdict.secret_of for verdict in server.verdicts}
    assert len(targets) == 2  # not by the id: nobody is locked out by others who know it
    send(server, "GET", "/names/rules", headers=bearer(token.text()[:-1] + "~"))
    assert len(server.verdicts) == 2
    assert server.verdicts[0] != ProofResult(succeeded=False)


def test_unknown_tokens_get_the_same_response(server: Harness) -> None:
    token = make(server.registry, "create")
    wrong, unknown = Secret(token.id, bytes(32)), Secret.new(secrets.token_bytes)
    answers = [send(server, "GET", "/names/rules", headers=bearer(each)) for each in (wrong, unknown)]
    assert problem(answers[0], "authentication-failed") == problem(answers[1], "authentication-failed")


def test_unknown_token_is_refused_by_the_compatible_api(server: Harness) -> None:
    answer = server.get("/api/handles/12345/n0", headers={"Authorization": "Bearer x"})
    assert answer.status == 401
    assert [value.split()[0] for value in answer.values("WWW-Authenticate")] == ["Handle"]


@given(st.text("".join(map(chr, (*range(0x20, 0x7F), *range(0xA0, 0x100)))), max_size=90))
@example("perseid_")
@example("perseid_" + "a" * 57)
@example("perseid_" + "\xe9" * 57)
def test_random_text_is_not_a_token(shared: Harness, text: str) -> None:
    shared.configure(api_requests_anonymous=0)
    answer = send(shared, "GET", "/names/rules", headers={"Authorization": f"Bearer {text}"})
    assert answer.status == 401
    assert header_of(answer, "Cache-Control") == "no-store"
    assert len(text.strip()) < 10 or text.strip() not in answer.body.decode()


# Guessing has an end


MOST = 5
"""Failures that are let pass."""


def test_guessing_address_is_blocked_alone(server: Harness) -> None:
    pools = Pools(Config.parse(f"[limits]\nfailed_proofs = {MOST}", {}), lambda: 1_000.0)

    async def do(work: Work, client: Client) -> object:
        return await pools.do(work, client.host, Transport.HTTPS)

    server.service.server = replace(server.context, do=do, record_proof=context.make_proof_recorder(pools))
    token = make(server.registry, "create")
    for number in range(MOST):
        wrong = Secret(token.id, bytes([number]) * 32)
        assert send(server, "GET", "/names/rules", headers=bearer(wrong), host="198.51.100.1").status == 401
    answer = send(server, "GET", "/names/rules", headers=bearer(token), host="198.51.100.1")
    assert problem(answer, "too-many-requests")["status"] == 429, "not even the right one"
    assert send(server, "GET", "/names/rules", host="198.51.100.1").status == 200
    for host in ("192.0.2.1", "203.0.113.1"):  # also one that never came before
        assert send(server, "GET", "/names/rules", headers=bearer(token), host=host).status == 200
    pools.close()

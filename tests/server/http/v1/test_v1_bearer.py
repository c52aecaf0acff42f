"""Bearer tokens over HTTP: who shows one acts as its maker, within its scope, for as long as it counts."""

import secrets
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.names.handle import Handle
from perseid.records.site import Transport
from perseid.records.value import ValueRef
from perseid.registry.access.scopes import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken, RevokeToken
from perseid.registry.commands.records import Delete
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.server.http import context
from perseid.server.http.context import ProofResult
from perseid.server.http.messages import Client
from perseid.server.native.steps import Work
from perseid.server.processes.pools import Pools
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.installations import OPERATOR

ANN = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
TYPE = {"handle": "12345/SCALE", "description": "A map's scale"}


def make(registry: Registry, *words: str, where: tuple[str, ...] | None = ("12345",)) -> Secret:
    secret = Secret.new(secrets.token_bytes)
    registry.do(CreateToken(secret, ScopeSet.of(words, where), "", 1_000), ANN, "cli")
    return secret


def bearer(secret: Secret | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret if isinstance(secret, str) else secret.text()}"}


def test_a_token_acts_as_its_maker(server: Harness) -> None:
    token = make(server.registry, "create")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token))
    assert got(answer, 201)["handle"] == "12345/SCALE"
    assert answer.identity == f"token:{token.id} by {ANN}"
    assert server.verdicts[-1].succeeded


def test_the_name_of_the_scheme_has_no_case(server: Harness) -> None:
    token = make(server.registry, "create")
    headers = {"Authorization": f"bEARER   {token.text()} "}
    got(send(server, "POST", "/types", TYPE, headers=headers), 201)


def test_a_token_does_no_more_than_its_scope(server: Harness) -> None:
    token = make(server.registry, "read")
    found = problem(send(server, "POST", "/types", TYPE, headers=bearer(token)), "permission-denied")
    assert (found["status"], "create" in found["detail"]) == (403, True)


def test_a_token_works_in_the_compatible_api_too(server: Harness) -> None:
    token = make(server.registry, "create", "update", "delete")
    value = {"index": 1, "type": "URL", "data": "https://example.org/"}
    assert server.put("/api/handles/12345/tokened", [value], headers=bearer(token)).status == 201
    assert server.delete("/api/handles/12345/tokened", headers=bearer(token)).status == 200
    assert server.get("/api/handles/12345/private?index=9", headers=bearer(token)).status == 403
    reader = make(server.registry, "read")
    assert server.get("/api/handles/12345/private?index=9", headers=bearer(reader)).status == 200


def test_no_page_of_another_site_can_send_one_so_it_always_counts(server: Harness) -> None:
    token = make(server.registry, "create")
    headers = {**bearer(token), "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    got(send(server, "POST", "/types", TYPE, headers=headers), 201)


def test_a_token_is_not_looked_at_where_others_can_read_along(server: Harness) -> None:
    token = make(server.registry, "create")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token), secure=False)
    assert problem(answer, "https-required")["status"] == 403
    assert server.verdicts == []
    got(send(server, "POST", "/types", TYPE, headers=bearer(token), secure=False, local=True), 201)


def test_a_token_that_was_revoked_ends_at_once(server: Harness) -> None:
    token = make(server.registry, "create")
    server.registry.do(RevokeToken(token.id), OPERATOR, "cli")
    answer = send(server, "POST", "/types", TYPE, headers=bearer(token))
    assert "revoked" in problem(answer, "authentication-failed")["detail"]
    challenges = list(answer.values("WWW-Authenticate"))
    assert challenges[0] == 'Bearer realm="handle", error="invalid_token"'
    assert not any(challenge.startswith("Basic") for challenge in challenges)


def test_a_token_ends_with_the_key_of_its_maker(server: Harness) -> None:
    token = make(server.registry, "create")
    key = {"index": 300, "type": "HS_SECKEY", "data": "another", "permissions": "1100"}
    assert server.put("/api/handles/0.NA/12345?index=300&overwrite=true", [key], headers=basic()).status == 200
    assert send(server, "POST", "/types", TYPE, headers=bearer(token)).status == 401


def test_a_token_that_ends_between_the_door_and_the_decision_does_nothing(server: Harness) -> None:
    token = make(server.registry, "create", "delete")
    authenticate = server.place.api.tokens(server.registry).authenticate
    shown = authenticate(token.text())
    server.registry.do(RevokeToken(token.id), OPERATOR, "cli")
    with pytest.raises(Refused, match="revoked"):
        server.registry.do(Delete(Handle.parse("12345/n0")), shown, "http")


def test_a_wrong_token_counts_as_a_failed_proof_and_a_mistyped_one_does_not(server: Harness) -> None:
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


def test_what_is_told_of_an_unknown_token_does_not_depend_on_its_id(server: Harness) -> None:
    token = make(server.registry, "create")
    wrong, unknown = Secret(token.id, bytes(32)), Secret.new(secrets.token_bytes)
    answers = [send(server, "GET", "/names/rules", headers=bearer(each)) for each in (wrong, unknown)]
    assert problem(answers[0], "authentication-failed") == problem(answers[1], "authentication-failed")


def test_a_token_of_nobody_is_nothing_to_the_compatible_api(server: Harness) -> None:
    answer = server.get("/api/handles/12345/n0", headers={"Authorization": "Bearer x"})
    assert answer.status == 401
    assert [value.split()[0] for value in answer.values("WWW-Authenticate")] == ["Handle"]


@given(st.text("".join(map(chr, (*range(0x20, 0x7F), *range(0xA0, 0x100)))), max_size=90))
@example("perseid_")
@example("perseid_" + "a" * 57)
@example("perseid_" + "\xe9" * 57)
def test_no_text_is_a_token_by_accident(shared: Harness, text: str) -> None:
    shared.configure(api_requests_anonymous=0)
    answer = send(shared, "GET", "/names/rules", headers={"Authorization": f"Bearer {text}"})
    assert answer.status == 401
    assert header_of(answer, "Cache-Control") == "no-store"
    assert len(text.strip()) < 10 or text.strip() not in answer.body.decode()


# Guessing has an end


MOST = 5
"""Failures that are let pass."""


def test_an_address_that_guesses_is_not_looked_at_and_nobody_else_is_touched(server: Harness) -> None:
    pools = Pools(Config.parse(f"[limits]\nfailed_proofs = {MOST}", {}), lambda: 1_000.0)

    async def do(work: Work, client: Client) -> object:
        return await pools.do(work, client.host, Transport.HTTPS)

    server.service.place = replace(server.place, do=do, record_proof=context.make_proof_recorder(pools))
    token = make(server.registry, "create")
    for number in range(MOST):
        wrong = Secret(token.id, bytes([number]) * 32)
        assert send(server, "GET", "/names/rules", headers=bearer(wrong), host="198.51.100.1").status == 401
    answer = send(server, "GET", "/names/rules", headers=bearer(token), host="198.51.100.1")
    assert problem(answer, "busy")["status"] == 503, "not even the right one"
    assert send(server, "GET", "/names/rules", host="198.51.100.1").status == 200
    for host in ("192.0.2.1", "203.0.113.1"):  # also one that never came before
        assert send(server, "GET", "/names/rules", headers=bearer(token), host=host).status == 200
    pools.close()

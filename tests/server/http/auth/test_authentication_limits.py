"""Limits on guessing: addresses with many failures are locked out, and secrets with many guesses are checked slowly."""

import hashlib
from asyncio import gather, run, sleep
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote, urlencode

import pytest

from perseid.names.handle import Handle
from perseid.records.encoding import to_base64
from perseid.records.record import Value
from perseid.records.site import Transport
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create, Remove
from perseid.registry.identity import Proof
from perseid.registry.installation.settings import Config
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.server.http import context
from perseid.server.http.messages import Client, Request, Response
from perseid.server.limits.guesses import MAX_TURNS, KnownClients
from perseid.server.native.authentication import prove_identity
from perseid.server.native.work import SecretGuess, Work, WorkKind, own_secret_id
from perseid.server.processes.pools import Pools
from perseid.wire.sessions import Identity
from tests.registry.registries import OPERATOR
from tests.server.http.auth_servers import basic_header, handle_header, secret_at
from tests.server.http.client_certificates import named
from tests.server.http.contexts import Harness, header_of, recorded_harness
from tests.server.native.native_servers import ADMIN, PREFIX
from tests.wire.key_material import RSA_KEYS, SECRET

SEC = f"301:{ADMIN}"
USER = f"{PREFIX}/user"
HIDDEN = f"/api/handles/{PREFIX}/vec-std?index=50"
PUBLIC = f"/api/handles/{PREFIX}/vec-std?index=1"
MOST = 5
"""Failures that are let pass."""
TURN = 60 / MOST

HOME, ATTACKER, ELSEWHERE = "192.0.2.1", "198.51.100.1", "203.0.113.1"


class Limited:
    """A server with real pools and a clock that the test controls."""

    def __init__(self, server: Harness) -> None:
        self.now = 1_000.0
        self.config = Config.parse(f"[limits]\nfailed_proofs = {MOST}", {})
        self.known = KnownClients(b"key")
        self.server = server
        self.start()

    def start(self) -> None:
        """Start, or restart."""
        self.pools = Pools(self.config, lambda: self.now, known=self.known, sleep=self.sleep)

        async def do(work: Work, client: Client) -> object:
            return await self.pools.do(work, client.host, Transport.HTTPS)

        server = self.server
        server.service.server = replace(server.context, do=do, record_proof=context.make_proof_recorder(self.pools))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await sleep(0)

    def guess(self, rounds: int) -> None:
        """Guess wrong from many addresses, as often as that is possible without waiting."""
        for number in range(rounds):
            assert self.basic(b"guess", host=f"198.51.100.{number}").status == 401

    def basic(self, secret: bytes = SECRET, identity: str = SEC, host: str = ATTACKER) -> Response:
        return self.server.get(HIDDEN, headers={"Authorization": basic_header(identity, secret)}, host=host)

    def verification(self, secret: bytes, host: str = ATTACKER, identity: str = SEC) -> Response:
        signature = to_base64(hashlib.sha1(secret + b"nn" + secret).digest())
        fields = {"nonce": to_base64(b"n"), "cnonce": to_base64(b"n"), "alg": "SHA1", "signature": signature}
        return self.server.get(f"/api/verifications/{quote(identity, safe='/:')}?{urlencode(fields)}", host=host)


@pytest.fixture
def limited() -> Iterator[Limited]:
    with recorded_harness() as server:
        made = Limited(server)
        yield made
        made.pools.close()


def test_guessing_address_is_locked_out(limited: Limited) -> None:
    for _ in range(MOST):
        assert limited.basic(b"guess", f"301:{PREFIX}/a").status == 401
    answer = limited.basic(SECRET)
    assert answer.status == 429, "not even the right one"
    assert header_of(answer, "Retry-After") == "12"
    assert limited.server.get(PUBLIC, host=ATTACKER).status == 200
    assert limited.basic(SECRET, host=HOME).status == 200
    limited.now += 60
    assert limited.basic(SECRET).status == 200


@pytest.mark.parametrize("identity", [SEC, ADMIN, SEC.lower()], ids=["index", "any index", "lowercase"])
def test_right_secret_gets_through_slowly_while_others_guess(limited: Limited, identity: str) -> None:
    limited.guess(MOST)
    before = limited.now
    assert limited.basic(identity=identity, host=ELSEWHERE).status == 200
    assert limited.now - before == pytest.approx(TURN, abs=0.2), "one turn"
    before = limited.now
    assert limited.basic(identity=identity, host=ELSEWHERE).status == 200
    assert limited.now == before, "nobody waits where the identity was proved"


def test_many_addresses_share_one_limit_per_secret(limited: Limited) -> None:
    """Guesses for each identity: `failed_proofs` at once, and as many in each minute, however many addresses."""
    before = limited.now
    limited.guess(5 * MOST)
    assert limited.now - before >= 4 * 60 - 1


def test_guesses_at_the_same_time_are_refused_beyond_the_queue(limited: Limited) -> None:
    async def ask(host: str, secret: bytes) -> Response:
        headers = [("authorization", basic_header(SEC, secret))]
        return await limited.server.answer(Request("GET", HIDDEN.encode(), headers, client=Client(host, secure=True)))

    async def all_at_once() -> list[Response]:
        return await gather(*[ask(f"198.51.100.{number}", b"guess") for number in range(MOST)], ask(HOME, SECRET))

    limited.guess(MOST)
    limited.now += 0.1
    *guesses, home = run(all_at_once())
    assert home.status == 200, "the address that never failed comes first"
    refused = [response for response in guesses if response.status == 429]
    assert len(refused) == MOST + 1 - MAX_TURNS
    assert {header_of(response, "Retry-After") for response in refused} <= {str(seconds) for seconds in range(1, 61)}


def test_proved_address_does_not_wait_after_a_restart(limited: Limited) -> None:
    assert limited.basic(host=HOME).status == 200
    data = limited.known.dump()
    limited.pools.close()
    limited.known = KnownClients(b"key")
    limited.known.load(data)
    limited.start()
    limited.guess(MOST)
    before = limited.now
    assert limited.basic(host=HOME).status == 200
    assert limited.now == before


def test_other_users_are_not_affected(limited: Limited) -> None:
    limited.server.registry.do(Create(Handle.parse(USER), (secret_at(300),)), OPERATOR, "cli")
    for number in range(MOST):
        limited.basic(b"guess", host=f"198.51.100.{number}")
    assert limited.basic(b"a secret", f"300:{USER}", host=ELSEWHERE).status == 403, "known, and not allowed"


def test_missing_secrets_are_limited_alike(limited: Limited) -> None:
    for number in range(MOST):
        limited.basic(b"guess", f"300:{PREFIX}/nobody", host=f"198.51.100.{number}")
    before = limited.now
    assert limited.basic(b"guess", f"300:{PREFIX}/nobody", host=ELSEWHERE).status == 401
    assert limited.now > before


def test_signatures_by_secrets_are_limited(limited: Limited) -> None:
    for number in range(MOST):
        host = f"198.51.100.{number}"
        session = limited.server.context.sessions.begin(host, limited.server.context.time())
        header = handle_header(
            sessionId=session.id, id=SEC, type="HS_SECKEY", cnonce=bytes(8), alg="SHA256", signature=bytes(32)
        )
        assert limited.server.get(PUBLIC, headers={"Authorization": header}, host=host).status == 401
    before = limited.now
    assert limited.basic(host=ELSEWHERE).status == 200
    assert limited.now > before


@pytest.mark.parametrize("own", [True, False])
def test_all_spellings_of_a_cordra_handle_share_one_limit(limited: Limited, own: bool) -> None:
    """Its record is the same with any query and fragment."""
    name = "2000.1/5E5A7C6B0F1D4C3E9A8B7C6D5E4F3A2B"
    limited.server.registry.do(AddNamespace("2000.1", PROFILES["cordra"]), OPERATOR, "cli")
    limited.server.registry.do(Create(Handle.parse(name), (secret_at(300),)), OPERATOR, "cli")

    def attempt(spelling: str, secret: bytes, host: str) -> Response:
        identity = f"300:{spelling}"
        return limited.basic(secret, identity, host) if own else limited.verification(secret, host, identity)

    spellings = [name, f"{name}?a=1", f"{name}#x2", f"{name.lower()}?a=1#x2"]
    statuses = {attempt(each, b"a secret", "192.0.2.100").status for each in spellings}
    assert statuses == {403 if own else 200}, "each is the handle"
    for number in range(MOST):
        attempt(spellings[number % len(spellings)], b"guess", f"198.51.100.{number}")
    for number, each in enumerate(spellings):
        before = limited.now
        attempt(each, b"guess", f"203.0.113.{number}")
        assert limited.now > before, each
    before = limited.now
    attempt(f"{name}?b", b"a secret", "192.0.2.100")
    assert limited.now == before, "proved there, by whatever spelling"


def test_wrong_public_key_signatures_count_for_address_only(limited: Limited) -> None:
    session = limited.server.context.sessions.begin(ATTACKER, limited.server.context.time())
    signature = RSA_KEYS[0].sign("SHA-256", session.nonce + bytes(8))
    header = handle_header(
        sessionId=session.id, id=f"300:{ADMIN}", type="HS_PUBKEY", cnonce=bytes(8), alg="SHA256", signature=signature
    )
    asked = {"headers": {"Authorization": header}, "host": ATTACKER}
    for _ in range(MOST):
        assert limited.server.get(PUBLIC, **asked).status == 401
    assert limited.server.get(PUBLIC, **asked).status == 429
    assert limited.server.get(PUBLIC, headers={"Authorization": header}, host=HOME).status == 401


def test_unknown_sessions_count_as_failures(limited: Limited) -> None:
    for _ in range(MOST):
        header = {"Authorization": handle_header(sessionId="nope")}
        assert limited.server.get(PUBLIC, headers=header, host=ATTACKER).status == 401
    assert limited.basic().status == 429


def test_certificates_do_not_count_as_failures(limited: Limited) -> None:
    for _ in range(MOST + 1):
        answer = limited.server.get(PUBLIC, host=ATTACKER, certificate=named(f"300:{ADMIN}", RSA_KEYS[0]))
        assert answer.status == 401
    assert limited.basic().status == 200


def test_verifications_share_limit_with_native_protocol(limited: Limited) -> None:
    assert limited.verification(SECRET, HOME).status == 200
    for number in range(MOST - 1):
        assert limited.verification(b"guess", f"198.51.100.{number}").status == 200
    native = Work(WorkKind.READ, lambda: None, secret_of=ADMIN.encode())
    run(limited.pools.do(native, "198.51.100.99", Transport.TCP))
    limited.pools.record_guess(SecretGuess(ADMIN.encode(), right=False), "198.51.100.99", Transport.TCP)
    before = limited.now
    assert limited.verification(SECRET, HOME).status == 200, "a server that had a right answer verified"
    assert limited.basic(host=ELSEWHERE).status == 200, "and nobody waits for it who comes here"
    assert limited.now == before
    assert limited.verification(SECRET, ELSEWHERE).status == 200
    assert limited.now > before


def test_failed_verifications_lock_out_address(limited: Limited) -> None:
    for _ in range(MOST):
        limited.verification(b"guess")
    assert limited.basic().status == 429


def test_authenticated_address_is_known(limited: Limited) -> None:
    budgets = limited.pools._budgets

    def is_known(host: str) -> bool:
        return budgets.is_known(budgets.source_for(host), udp=False)

    limited.basic(b"guess")
    limited.verification(SECRET)
    assert not is_known(ATTACKER)
    limited.basic(host=HOME)
    assert is_known(HOME)
    assert not is_known(ELSEWHERE)
    limited.server.get(PUBLIC, host=ELSEWHERE, certificate=named(f"300:{ADMIN}"))
    assert is_known(ELSEWHERE)
    assert not budgets.is_known(budgets.source_for(HOME), udp=True)


@pytest.mark.parametrize("kind", ["secret", "session"])
@pytest.mark.parametrize("body", [{"values": []}, "not values"], ids=["decided", "invalid"])
def test_removed_secret_makes_no_address_known(limited: Limited, kind: str, body: object) -> None:
    """It is verified with the cached key, or was in the session; only the decision finds out."""
    budgets, registry, target = limited.pools._budgets, limited.server.registry, f"/api/handles/{PREFIX}/x"
    home, elsewhere = (budgets.source_for(host) for host in (HOME, ELSEWHERE))
    headers = {"Authorization": basic_header(SEC, SECRET)}
    assert limited.server.put(target, {"values": []}, headers=headers, host=HOME).status == 201
    assert budgets.is_known(home, udp=False)
    assert budgets.is_proved(own_secret_id(ADMIN), home, udp=False)
    if kind == "session":
        sessions = limited.server.context.sessions
        session = sessions.begin(ELSEWHERE, limited.server.context.time())
        key = Value(301, "HS_SECKEY", SECRET)
        proved = prove_identity(Identity(ADMIN.encode(), 301), Proof.SECRET_KEY, key)
        sessions.prove(session, proved, SEC)
        headers = {"Authorization": handle_header(sessionId=session.id)}
    Registry(registry.ledger, registry.rules).do(Remove(Handle.parse(ADMIN), (301,)), OPERATOR, "cli")
    status = limited.server.put(target, body, headers=headers, host=ELSEWHERE).status
    assert status == (401 if isinstance(body, dict) else 400)
    assert not budgets.is_known(elsewhere, udp=False)
    assert not budgets.is_proved(own_secret_id(ADMIN), elsewhere, udp=False)
    wrong = kind == "secret" and status == 401
    assert budgets.failed_guesses(own_secret_id(ADMIN), elsewhere, udp=False) == (int(wrong),)


def test_expensive_work_is_charged_before_it_starts(limited: Limited) -> None:
    """Secrets may be derived in many rounds. Of many such requests only one is served, and others do not wait."""
    fields = {"nonce": "AAAA", "cnonce": "AAAA", "signature": "AAAA", "salt": "AAAA", "length": "160"}

    async def many(rounds: int, host: str) -> list[int]:
        query = urlencode({**fields, "alg": "PBKDF2-HMAC-SHA1", "iterations": str(rounds)})
        request = Request("GET", f"/api/verifications/{SEC}?{query}".encode(), client=Client(host, secure=True))
        return sorted([each.status for each in await gather(*[limited.server.answer(request) for _ in range(4)])])

    assert run(many(400_000, ATTACKER)) == [200, 503, 503, 503]
    assert run(many(10, HOME)) == [200] * 4, "for little work there is room for all"

"""The page that creates identifiers: permissions, results, explanations, and protection against forgery."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perseid.ledger.log.entry import State
from perseid.names import pilin
from perseid.names.handle import Handle
from perseid.records.admin import Admin
from perseid.records.record import Value, ValueRef
from perseid.records.site import PrimaryMask
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.minting import RetryLater
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Remove
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.policy.policy import PROFILES, Audience
from perseid.registry.queries.namespaces import PILIN_EXPLANATION, MintMode
from perseid.server.http.messages import Response
from perseid.server.http.pages import generator
from perseid.server.http.pages.generator import LIFETIME, MAX_FIELD, MAX_NAMES, PURPOSE, FormTokens, InvalidFormToken
from perseid.server.http.pages.pages import POLICY
from tests.server.http.client_certificates import named
from tests.server.http.contexts import Harness, basic, harness, header_of
from tests.server.http.resolver.resolver_records import create, page_of
from tests.server.installations import ADMINISTRATOR, OPERATOR
from tests.wire.key_material import RSA_KEY

FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
PILIN: Final = "102.100.272"
CORDRA: Final = "3000.01"
ADDRESS: Final = "https://thing.example/"
OTHER: Final = "300:12345/other"


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        admin = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
        for prefix, profile in ((PILIN, "pilin"), (CORDRA, "cordra")):
            policy = replace(PROFILES[profile], default_creator="12345/n0")
            made.registry.do(AddNamespace(prefix, policy, (admin,)), OPERATOR, "cli")
        only_server = replace(PROFILES["free"], who_may_mint=Audience.SERVER)
        made.registry.do(AddNamespace("777", only_server, (admin,)), OPERATOR, "cli")
        create(made, "12345/other", Value(300, "HS_SECKEY", b"other-secret"))
        yield made


def form_of(server: Harness, **how: Any) -> str:
    """The token of a new form."""
    answer = server.get("/generate", headers=basic(), **how)
    assert answer.status == 200
    return token_of(answer)


def token_of(answer: Response) -> str:
    (found,) = re.findall(rb'name="token" value="([A-Za-z0-9_-]+)"', answer.body)
    return str(found.decode())


def send(server: Harness, headers: dict[str, str] | None = None, /, **fields: str) -> Response:
    """Send the form like a browser; a new token is used unless one is given."""
    if "token" not in fields:
        fields["token"] = form_of(server)
    given = {"prefix": "12345", "mode": "reserve", "count": "1", **fields}
    return server.post("/generate", urlencode(given), headers={**FORM, **basic(), **(headers or {})})


def made(answer: Response) -> list[str]:
    """The handles on a result page."""
    assert answer.status == 200, page_of(answer).text
    return [name.decode() for name in re.findall(rb'<li>(?:<a [^>]*>)?<bdi class="name">([^<]+)</bdi>', answer.body)]


def entry_of(server: Harness, name: str) -> State | None:
    with server.registry.snapshot() as snapshot:
        entry = snapshot.stored(Handle.parse(name)).entry
        return None if entry is None else entry.state


# Access


def test_explanation_of_suffixes_is_public(server: Harness) -> None:
    answer = server.get("/generate")
    page = page_of(answer)
    assert answer.status == 200
    assert PILIN_EXPLANATION in page.text
    assert [attributes.get("name") for tag, attributes in page.elements if tag == "input"] == []
    assert header_of(answer, "Cache-Control") == "no-store"
    assert header_of(answer, "Content-Security-Policy") == POLICY
    assert server.head("/generate").status == 200


def test_use_requires_authentication(server: Harness) -> None:
    answer = server.post("/generate", headers=FORM)
    assert answer.status == 401
    assert any(value.startswith("Basic ") for value in answer.values("WWW-Authenticate"))
    assert page_of(answer).title == "Create identifiers"
    assert server.post("/generate", "", headers={**FORM, **basic()}).status == 200
    wrong = server.get("/generate", headers=basic(secret="wrong"))
    assert wrong.status == 401
    assert b'name="token"' not in wrong.body


def test_insecure_connection_is_refused(server: Harness) -> None:
    page = page_of(server.get("/generate", headers=basic(), secure=False))
    assert "only over HTTPS" in page.text
    assert b"token" not in server.get("/generate", headers=basic(), secure=False).body
    fields = {"prefix": "12345", "mode": "reserve", "count": "1", "token": form_of(server)}
    refused = server.post("/generate", urlencode(fields), headers={**FORM, **basic()}, secure=False)
    assert refused.status == 403
    assert header_of(refused, "WWW-Authenticate") is None
    local = server.get("/generate", headers=basic(), secure=False, local=True, host="127.0.0.1")
    assert token_of(local)


def test_certificate_is_accepted(server: Harness) -> None:
    create(server, "12345/holder", Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes()))
    certificate = named("300:12345/holder")
    answer = server.get("/generate", certificate=certificate)
    assert "300:12345/holder" in page_of(answer).text
    fields = {"prefix": "12345", "mode": "reserve", "count": "1", "token": token_of(answer)}
    refused = server.post("/generate", urlencode(fields), headers=FORM, certificate=certificate)
    assert refused.status == 403
    assert "cannot create handles under 12345" in page_of(refused).text


# Results


def test_form_lists_permitted_prefixes(server: Harness) -> None:
    page = page_of(server.get("/generate", headers=basic()))
    offered = [attributes["value"] for tag, attributes in page.elements if tag == "option"]
    assert {"12345", PILIN, CORDRA, "777"} <= set(offered), "a server administrator may everywhere"
    assert f"You are signed in as {ADMINISTRATOR}" in page.text
    theirs = page_of(server.get("/generate", headers=basic(OTHER, "other-secret")))
    assert [attributes for tag, attributes in theirs.elements if tag == "option"] == []
    labels = {attributes.get("for") for tag, attributes in page.elements if tag == "label"}
    for tag, attributes in page.elements:
        if tag == "input" and attributes["type"] == "text":
            assert attributes["id"] in labels


def test_minted_handles_resolve_to_url(server: Harness) -> None:
    answer = send(server, prefix=PILIN, mode="mint", url=ADDRESS, count="2")
    names = made(answer)
    assert len(names) == 2
    for name in names:
        assert server.get(f"/{name}").status == 302
        assert header_of(server.get(f"/{name}"), "Location") == ADDRESS
    assert {f"/{name}" for name in names} <= set(page_of(answer).links)
    assert (answer.code, answer.name, answer.identity) == (1, names[0], ADMINISTRATOR)


def test_handles_are_reserved(server: Harness) -> None:
    (name,) = made(send(server, prefix=PILIN, mode="reserve"))
    assert entry_of(server, name) is State.RESERVED
    assert server.get(f"/{name}").status == 404


def test_handles_are_generated_without_record(server: Harness) -> None:
    names = made(send(server, prefix=PILIN, mode="generate", count="3"))
    assert len(set(names)) == 3
    assert all(entry_of(server, name) is None for name in names)
    assert set(names).isdisjoint(made(send(server, prefix=PILIN, mode="generate", count="100"))), "never again (P6)"


def test_characters_of_suffix_are_explained(server: Harness) -> None:
    (name,) = made(answer := send(server, prefix=PILIN, mode="generate"))
    page = page_of(answer)
    suffix = name.partition("/")[2]
    cells = re.findall(r'class="data character">(.)</td>', answer.body.decode())
    assert "".join(cells) == suffix
    assert len(cells) == pilin.LENGTH == 9
    assert pilin.format_time(pilin.decode(suffix)) in page.text
    numbers = [
        int(cell.replace(",", ""))
        for cell in re.findall(r'data-label="Milliseconds"[^>]*>([0-9,]+)<', answer.body.decode())
    ]
    assert sum(numbers) == pilin.decode(suffix)


def test_details_of_other_schemes(server: Harness) -> None:
    (cordra,) = made(answer := send(server, prefix=CORDRA, mode="mint", url=ADDRESS))
    assert re.fullmatch(rf"{re.escape(CORDRA)}/[0-9A-F]{{32}}", cordra)
    assert "UUID" in page_of(answer).text
    assert b"data character" not in answer.body
    (free,) = made(send(server, prefix="12345/report-", mode="reserve"))
    assert free.startswith("12345/report-")


def test_creator_is_required_by_namespace(server: Harness) -> None:
    admin = Value(100, "HS_ADMIN", Admin(ValueRef.parse(ADMINISTRATOR)).to_bytes())
    server.registry.do(AddNamespace("102.100.273", PROFILES["pilin"], (admin,)), OPERATOR, "cli")
    refused = send(server, prefix="102.100.273", mode="mint", url=ADDRESS)
    assert refused.status == 400
    assert "has no creator" in page_of(refused).text
    (name,) = made(send(server, prefix="102.100.273", mode="mint", url=ADDRESS, creator="12345/n0"))
    assert "12345/n0" in page_of(server.get(f"/{name}?noredirect")).text


# Refusals


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"prefix": ""}, 400, "The prefix is missing"),
        ({"prefix": "999"}, 400, "Check the prefix"),
        ({"prefix": "a b/c"}, 400, ""),
        ({"prefix": f"{PILIN}/abc"}, 400, "The suffix cannot begin with abc"),
        ({"count": "0"}, 400, "1 to 100"),
        ({"count": "101"}, 400, "1 to 100"),
        ({"count": "many"}, 400, "1 to 100"),
        ({"count": "٣"}, 400, "1 to 100"),
        ({"mode": "everything"}, 400, "Choose"),
        ({"mode": "mint", "url": ""}, 400, "reserve the identifiers"),
        ({"mode": "mint", "url": "javascript:alert(1)"}, 400, "scheme"),
    ],
)
def test_refusals_are_explained(server: Harness, fields: dict[str, str], status: int, words: str) -> None:
    answer = send(server, **fields)
    assert answer.status == status
    page = page_of(answer)
    assert words in page.text
    filled = {attributes.get("name"): attributes.get("value") for tag, attributes in page.elements if tag == "input"}
    for name in ("prefix", "url", "count"):
        if fields.get(name):
            assert filled[name] == fields[name], "what was written stays there"
    assert token_of(answer), "and it can be sent again"


def test_missing_permission_is_explained(server: Harness) -> None:
    mine = basic(OTHER, "other-secret")
    token = token_of(server.get("/generate", headers=mine))
    fields = {"prefix": "12345", "mode": "reserve", "count": "1", "token": token}
    answer = server.post("/generate", urlencode(fields), headers={**FORM, **mine})
    assert answer.status == 403
    assert "who_may_mint" in page_of(answer).text


def test_clock_wait_sends_retry_after(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object) -> object:
        raise RetryLater(7.0, None, "names have been given out ahead of the clock", "P6")

    monkeypatch.setattr(generator, "execute_with_wait", wait)
    answer = send(server, prefix=PILIN)
    assert (answer.status, header_of(answer, "Retry-After")) == (503, "7")
    assert "Retry in 7 s" in page_of(answer).text


def test_non_primary_server_refuses(server: Harness) -> None:
    context = server.context
    site = replace(context.site, primary=PrimaryMask(0))
    try:
        server.service.server = replace(context, site=site)
        assert send(server).status == 400
    finally:
        server.service.server = context


# Forgery


def test_form_without_token_is_refused(server: Harness) -> None:
    with server.registry.snapshot() as snapshot:
        before = snapshot.reader.size
    theirs = token_of(server.get("/generate", headers=basic(OTHER, "other-secret")))
    good = form_of(server)
    for token in ("", "x", "A" * 75, theirs, good[:-1], good + "A", good.swapcase(), "é", "A" * 10_000):
        answer = send(server, token=token)
        assert answer.status == 403
        assert "use the new form below" in page_of(answer).text
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.size == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_cross_site_form_is_refused(server: Harness, headers: dict[str, str]) -> None:
    answer = send(server, headers)
    assert answer.status == 403
    assert "another site" in page_of(answer).text


def test_own_form_is_accepted(server: Harness) -> None:
    headers = {"Origin": "https://hdl.example.org", "Sec-Fetch-Site": "same-origin", "Host": "hdl.example.org"}
    assert len(made(send(server, headers))) == 1


def test_get_changes_nothing(server: Harness) -> None:
    fields = urlencode({"prefix": "12345", "mode": "reserve", "count": "1", "token": form_of(server)})
    with server.registry.snapshot() as snapshot:
        before = snapshot.reader.size
    assert made(server.get(f"/generate?{fields}", headers=basic())) == []
    as_json = server.post("/generate", fields, headers={"Content-Type": "text/plain", **basic()})
    assert made(as_json) == []
    with server.registry.snapshot() as snapshot:
        assert snapshot.reader.size == before


def test_form_sent_twice_is_executed_once(server: Harness) -> None:
    token = form_of(server)
    first = made(send(server, token=token, count="3", prefix=PILIN))
    assert made(send(server, token=token, count="3", prefix=PILIN)) == first
    other = send(server, token=token, count="4", prefix=PILIN)
    assert other.status == 422
    assert "different fields" in page_of(other).text
    refused = form_of(server)
    assert send(server, token=refused, prefix="999").status == 400
    assert len(made(send(server, token=refused))) == 1, "what was refused has used nothing up"


def test_form_in_progress_is_not_executed_again(server: Harness) -> None:
    token, registry = form_of(server), server.registry
    with registry.snapshot() as snapshot:
        tokens = FormTokens(snapshot.reader.secret(PURPOSE))
    number = tokens.read(token, ADMINISTRATOR, server.context.time())
    identity = KeyIdentity(ValueRef.parse(ADMINISTRATOR), Proof.SECRET_KEY, verified_index=300)
    with server.context.api.keys(registry).claim(identity, number, bytes(32)):
        answer = send(server, token=token)
    assert answer.status == 409
    assert "in a moment" in page_of(answer).text
    assert len(made(send(server, token=token))) == 1


def test_result_is_not_repeated_after_redaction(server: Harness) -> None:
    token = form_of(server)
    made(send(server, token=token))
    create(server, "12345/erased", Value.text(1, "DESC", "what must go"))
    with server.registry.snapshot() as snapshot:
        seq = snapshot.reader.size
    server.registry.do(Remove(Handle.parse("12345/erased"), (1,)), OPERATOR, "cli")
    server.registry.do(Redact(Handle.parse("12345/erased"), 1, seq, "by order"), OPERATOR, "cli")
    answer = send(server, token=token)
    assert answer.status == 410
    assert "already processed" in page_of(answer).text


def test_form_expires(server: Harness) -> None:
    token = form_of(server)
    context = server.context
    try:
        server.service.server = replace(context, time=lambda: context.time() + LIFETIME + 1)
        answer = send(server, token=token)
        assert answer.status == 403
        assert "2 hours" in page_of(answer).text
    finally:
        server.service.server = context


@given(identity=st.text(min_size=1, max_size=20), other=st.text(min_size=1, max_size=20), now=st.integers(0, 2**33))
def test_tokens_are_bound_to_identity_and_time(identity: str, other: str, now: int) -> None:
    tokens = FormTokens(b"a secret")
    token = tokens.make(identity, now, lambda count: bytes(range(count)))
    assert tokens.read(token, identity, now) == bytes(range(16))
    assert tokens.read(token, identity, now + LIFETIME - 1) == bytes(range(16))
    for reader, moment, holder in ((tokens, now + LIFETIME, identity), (FormTokens(b"another"), now, identity)):
        with pytest.raises(InvalidFormToken):
            reader.read(token, holder, moment)
    if other != identity:
        with pytest.raises(InvalidFormToken):
            tokens.read(token, other, now)


@given(token=st.text(max_size=120))
def test_other_texts_are_not_tokens(token: str) -> None:
    with pytest.raises(InvalidFormToken):
        FormTokens(b"a secret").read(token, "somebody", 0)


# Hostile input


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    prefix=st.text(max_size=30),
    url=st.text(max_size=30),
    mode=st.sampled_from([each.value for each in MintMode]),
    count=st.text(max_size=4),
)
def test_any_form_gets_a_page(server: Harness, prefix: str, url: str, mode: str, count: str) -> None:
    answer = send(server, prefix=prefix, url=url, mode=mode, count=count)
    assert answer.status in (200, 400, 403)
    page = page_of(answer)
    assert all(tag != "script" for tag, _ in page.elements)


def test_input_stays_text(server: Harness) -> None:
    attack = '"><script>alert(1)</script>'
    answer = send(server, prefix=attack, url=attack, count=attack, mode="mint", creator=attack)
    page = page_of(answer)
    assert ("script", ()) not in page.shape
    values = [attributes.get("value") for tag, attributes in page.elements if tag == "input"]
    assert values.count(attack) == 4


@pytest.mark.parametrize(("field", "called"), [("prefix", "prefix"), ("url", "target URL"), ("creator", "creator")])
def test_long_fields_are_refused_not_truncated(server: Harness, field: str, called: str) -> None:
    """Long text is shown truncated, and refused: half of a URL has a different meaning."""
    whole = {"prefix": "12345", "mode": "mint", "url": ADDRESS}
    given = f"{whole.get(field, '')}{'x' * (MAX_FIELD + 1)}"
    answer = send(server, **whole | {field: given})
    assert answer.status == 400
    page = page_of(answer)
    assert f"The {called} has {len(given):,} characters; the maximum is {MAX_FIELD:,}." in page.text
    filled = {attributes.get("name"): attributes.get("value") for tag, attributes in page.elements if tag == "input"}
    assert filled[field] == given[:MAX_FIELD]


@pytest.mark.parametrize("field", ["prefix", "url", "creator"])
def test_invalid_utf_8_is_refused(server: Harness, field: str) -> None:
    fields = {"prefix": "12345/", "mode": "mint", "count": "1", "url": ADDRESS, "creator": ""}
    body = "&".join([f"{name}={text}{'%ED%A0%80' if name == field else ''}" for name, text in fields.items()])
    answer = server.post("/generate", f"token={form_of(server)}&{body}", headers={**FORM, **basic()})
    assert answer.status == 400
    assert "is not valid UTF-8 text" in page_of(answer).text


def test_long_input_is_truncated_on_page(server: Harness) -> None:
    answer = send(server, prefix="x" * 5_000)
    assert answer.status == 400
    large = server.post("/generate", b"prefix=" + b"x" * 20_000, headers={**FORM, **basic()})
    assert large.status == 413
    assert MAX_NAMES * 40 < 1 << 16, "so that every answer can be kept for a form that is sent again"

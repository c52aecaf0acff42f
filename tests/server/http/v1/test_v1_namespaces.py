"""Namespaces, policies, types and authority metadata."""

import pytest

from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.policy.policy import PROFILES
from perseid.schema.namespaces import MAX_TEXT_BYTES
from perseid.server.native.work import WorkKind
from tests.server.http.contexts import Harness, basic, header_of
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import clear_responses, keyed, with_token
from tests.server.http.v1.openapi_document import document
from tests.server.installations import ADMINISTRATOR, OPERATOR


def add(server: Harness, **more: object) -> dict[str, object]:
    made: dict[str, object] = got(send(server, "POST", "/namespaces", more, headers=basic()), 201)
    return made


# Namespaces


def test_namespace_is_created_and_shown(server: Harness) -> None:
    made = add(server, prefix="99", profile="pilin", purpose="Maps", note="as agreed")
    assert (made["prefix"], made["profile"]) == ("99", "pilin")
    found = got(send(server, "GET", "/namespaces/99"))
    assert found["purpose"] == "Maps"
    assert found["creator"] == made["creator"]
    assert found["administrators"] == ["200:0.NA/99"]
    assert found["who_may_mint"] == "administrators"
    creator = str(made["creator"]).replace("/", "%2F")
    authority = got(send(server, "GET", f"/handles/{creator}/authority"))
    assert authority["creator"] == {"uri": f"hdl:{made['creator']}", "verified": True}
    assert authority["required"]


# All of it, or nothing


SPACE = {"prefix": "99", "profile": "pilin", "administrators": [ADMINISTRATOR]}


def size(server: Harness) -> int:
    with server.registry.ledger.open_reader() as reader:
        return reader.size


def test_token_without_mint_scope_creates_no_namespace(server: Harness) -> None:
    lacks = {**with_token(server, "namespaces", where=None), "Idempotency-Key": "k"}
    before = size(server)
    for _ in range(2):
        found = problem(send(server, "POST", "/namespaces", SPACE, headers=lacks), "permission-denied")
        assert "do not include mint" in found["detail"]
        assert "Name an existing creator" in found["advice"]
    assert size(server) == before
    problem(send(server, "GET", "/namespaces/99"), "prefix-not-hosted")
    both = with_token(server, "namespaces", "mint", where=None)
    made = got(send(server, "POST", "/namespaces", SPACE, headers=both), 201)
    named = {**SPACE, "prefix": "98", "creator": made["creator"]}
    assert got(send(server, "POST", "/namespaces", named, headers=lacks), 201)["creator"] == made["creator"]


def test_repeated_namespace_request_gets_its_response(server: Harness) -> None:
    before = size(server)
    first = send(server, "POST", "/namespaces", SPACE, headers=keyed("k"))
    made = got(first, 201)
    assert (made["seq"], header_of(first, "Location")) == (before + 1, "/api/v1/namespaces/99")
    with server.registry.snapshot() as snapshot:
        moments = {snapshot.reader.entry(seq).at for seq in range(before + 1, snapshot.reader.size + 1)}
    assert len(moments) == 1
    after = size(server)
    again = send(server, "POST", "/namespaces", SPACE, headers=keyed("k"))
    assert (got(again, 201), header_of(again, "Idempotency-Replayed")) == (made, "true")
    clear_responses(server)
    late = send(server, "POST", "/namespaces", SPACE, headers=keyed("k"))
    assert (got(late, 201), header_of(late, "Location")) == (made, "/api/v1/namespaces/99")
    assert header_of(late, "Idempotency-Replayed") == "true"
    assert size(server) == after + 3, "nothing but what was erased"


def test_custom_policy_is_accepted(server: Harness) -> None:
    add(server, prefix="98", policy='profile = "free"\nwho_may_list = "public"\n', administrators=[ADMINISTRATOR])
    assert got(send(server, "GET", "/namespaces/98"))["who_may_list"] == "public"
    add(server, prefix="97", case="sensitive", creator="12345/n0")
    assert got(send(server, "GET", "/namespaces/97"))["case"] == "sensitive"


@pytest.mark.parametrize(
    "creator", ["12345/n0", "hdl:12345/n0", "https://hdl.handle.net/12345%2Fn0", "https://hdl.example.org/12345/n0"]
)
def test_creator_is_accepted_in_any_form(server: Harness, creator: str) -> None:
    assert add(server, prefix="97", creator=creator)["creator"] == "12345/n0"


@pytest.mark.parametrize(
    ("creator", "slug"),
    [
        ("me", "invalid-name"),
        ("hdl:12345", "invalid-name"),
        ("hdl:12345/x?q", "invalid-request"),
        ("12345/" + "x" * 2_043, "invalid-name"),
    ],
)
def test_error_about_the_creator_says_where(shared: Harness, creator: str, slug: str) -> None:
    new = {"prefix": "96", "creator": creator}
    assert problem(send(shared, "POST", "/namespaces", new, headers=basic()), slug)["where"] == "$.creator"


@pytest.mark.parametrize(
    ("more", "slug"),
    [
        ({"prefix": "12345"}, "already-exists"),
        ({"prefix": "1/2"}, "invalid-name"),
        ({"prefix": "0.NA"}, "invalid-name"),
        ({"prefix": "96", "profile": "rigid"}, "invalid-request"),
        ({"prefix": "96", "profile": "free", "policy": 'profile = "free"'}, "invalid-request"),
        ({"prefix": "96", "policy": "what = 1"}, "invalid-value"),
        ({"prefix": "96", "administrators": ["me"]}, "invalid-request"),
        ({"prefix": "96", "case": "loud"}, "invalid-request"),
    ],
)
def test_invalid_namespaces_are_refused(shared: Harness, more: dict[str, object], slug: str) -> None:
    problem(send(shared, "POST", "/namespaces", more, headers=basic()), slug)


def test_removing_a_namespace_with_handles_is_a_conflict(shared: Harness) -> None:
    found = problem(send(shared, "DELETE", "/namespaces/12345", headers=basic()), "state-conflict")
    assert found["status"] == 409
    assert "DELETE /api/v1/namespaces/12345?retire" in found["advice"]


def test_creating_namespaces_requires_permission(shared: Harness) -> None:
    problem(send(shared, "POST", "/namespaces", {"prefix": "96"}), "authentication-required")


DOTTED = "a." * 8_000 + "a=1"
"""A text that takes a second to parse."""


def test_policy_is_parsed_in_a_pool_for_authenticated_callers(server: Harness) -> None:
    for policy in (DOTTED, "what = 1", "=="):
        problem(send(server, "POST", "/namespaces", {"prefix": "96", "policy": policy}), "authentication-required")
    server.kinds.clear()
    problem(send(server, "POST", "/namespaces", {}, headers=basic()), "invalid-request")
    identifying = list(server.kinds)
    server.kinds.clear()
    problem(send(server, "POST", "/namespaces", {"prefix": "96", "policy": "=="}, headers=basic()), "invalid-value")
    assert server.kinds == [*identifying, WorkKind.READ]


def test_policy_size_is_checked_before_parsing(shared: Harness) -> None:
    for method, path in (("POST", "/namespaces"), ("PUT", "/namespaces/12345/policy")):
        plain = {"policy": DOTTED} if method == "PUT" else {"prefix": "96", "policy": DOTTED}
        found = problem(send(shared, method, path, plain, headers=basic()), "invalid-value")
        assert "8,000 dots" in found["detail"]


def test_policy_size_limit_is_documented(shared: Harness) -> None:
    said = document()["components"]["schemas"]["NewPolicy"]["properties"]["policy"]
    assert said["maxLength"] == MAX_TEXT_BYTES
    for length, slug in ((MAX_TEXT_BYTES, "invalid-value"), (MAX_TEXT_BYTES + 1, "invalid-request")):
        plain = {"policy": "=" * length}
        problem(send(shared, "PUT", "/namespaces/12345/policy", plain, headers=basic()), slug)


def test_namespaces_are_paged(server: Harness) -> None:
    for number in range(5):
        policy = PROFILES["free"]
        server.registry.do(AddNamespace(f"77.{number}", policy), OPERATOR, "cli")
    seen, path = [], "/namespaces?limit=2"
    while path:
        answer = send(server, "GET", path, headers=basic())
        page = got(answer)
        assert len(page["namespaces"]) <= 2
        seen += [each["prefix"] for each in page["namespaces"]]
        link = header_of(answer, "Link")
        assert (link is None) == (page.get("next") is None)
        path = ""
        if link is not None:
            address, _, relation = link.partition("; ")
            assert relation == 'rel="next"'
            path = address.strip("<>").removeprefix("https://hdl.example.org/api/v1")
            assert page["next"] in path
    assert seen == ["12345", *[f"77.{number}" for number in range(5)]]


def test_only_server_administrators_list_namespaces(shared: Harness) -> None:
    problem(send(shared, "GET", "/namespaces"), "authentication-required")


def test_cursor_belongs_to_its_reader(server: Harness) -> None:
    for number in range(3):
        server.registry.do(AddNamespace(f"77.{number}", PROFILES["free"]), OPERATOR, "cli")
    cursor = got(send(server, "GET", "/namespaces?limit=1", headers=basic()))["next"]
    assert send(server, "GET", f"/namespaces?cursor={cursor}", headers=basic()).status == 200
    for path in (f"/namespaces?cursor={cursor}x", f"/types?cursor={cursor}"):
        assert problem(send(server, "GET", path, headers=basic()), "invalid-cursor")["status"] == 400
    problem(send(server, "GET", f"/namespaces?cursor={cursor}"), "invalid-cursor")


@pytest.mark.parametrize("path", ["/namespaces/54321", "/namespaces/54321/policy", "/namespaces/a%2Fb"])
def test_unknown_namespaces_are_not_found(shared: Harness, path: str) -> None:
    assert problem(send(shared, "GET", path), "prefix-not-hosted")["status"] == 404


# Policies


def test_policy_is_shown_and_changed(server: Harness) -> None:
    before = got(send(server, "GET", "/namespaces/12345/policy"))
    assert before["rules"]["who_may_list"] == "administrators"
    change = {"policy": 'who_may_list = "public"\npurpose = "Maps"\n', "note": "opened"}
    done = got(send(server, "PUT", "/namespaces/12345/policy", change, headers=basic()))
    assert sorted(done["changed"]) == ["purpose", "who_may_list"]
    after = got(send(server, "GET", "/namespaces/12345/policy"))
    assert 'who_may_list = "public"' in after["policy"]
    assert after["rules"] == {**before["rules"], "who_may_list": "public", "purpose": "Maps"}
    again = got(send(server, "PUT", "/namespaces/12345/policy", change, headers=basic()))
    assert (again["seq"], again["changed"]) == (done["seq"], [])


@pytest.mark.parametrize(
    ("prefix", "plain", "slug"),
    [
        ("12345", {"policy": "who_may_list = 7"}, "invalid-value"),
        ("12345", {"policy": "=="}, "invalid-value"),
        ("12345", {"policy": 'case = "sensitive"'}, "invalid-value"),
        ("54321", {"policy": 'purpose = "x"'}, "prefix-not-hosted"),
        ("12345", {}, "invalid-request"),
    ],
)
def test_invalid_policies_are_refused(shared: Harness, prefix: str, plain: object, slug: str) -> None:
    problem(send(shared, "PUT", f"/namespaces/{prefix}/policy", plain, headers=basic()), slug)


def test_anonymous_callers_cannot_change_policies(shared: Harness) -> None:
    """The policy is not even parsed."""
    for policy in ('purpose = "x"', "==", DOTTED):
        plain = {"policy": policy}
        problem(send(shared, "PUT", "/namespaces/12345/policy", plain), "authentication-required")
        no_rights = with_token(shared, "mint")
        problem(send(shared, "PUT", "/namespaces/12345/policy", plain, headers=no_rights), "permission-denied")


# Types


def test_type_is_registered_shown_and_listed(server: Harness) -> None:
    scale = {"handle": "12345/SCALE", "description": "A scale", "pattern": "1:[1-9][0-9]*", "example": "1:25000"}
    sheet = {"handle": "12345/SHEET", "description": "A sheet", "name": "Sheet", "schema": {"type": "object"}}
    for each in (scale, sheet):
        got(send(server, "POST", "/types", each, headers=basic()), 201)
    found = got(send(server, "GET", "/types/12345%2Fscale"))
    assert {**scale, "name": "SCALE", "seq": found["seq"]} == found
    assert got(send(server, "GET", "/types/12345%2FSHEET"))["schema"] == {"type": "object"}
    listed = got(send(server, "GET", "/types?prefix=12345", headers=basic()))
    assert {each["handle"] for each in listed["types"]} == {"12345/SCALE", "12345/SHEET"}
    first = got(send(server, "GET", "/types?limit=1", headers=basic()))
    second = got(send(server, "GET", f"/types?limit=1&cursor={first['next']}", headers=basic()))
    assert {first["types"][0]["handle"], second["types"][0]["handle"]} == {"12345/SCALE", "12345/SHEET"}


@pytest.mark.parametrize(
    ("more", "slug"),
    [
        ({"pattern": "("}, "invalid-value"),
        ({"pattern": "x", "schema": {}}, "invalid-request"),
        ({"schema": {"type": "thing"}}, "invalid-value"),
        ({"pattern": "a+", "example": "b"}, "invalid-value"),
        ({"handle": "SCALE"}, "invalid-name"),
        ({"handle": "12345/n0"}, "already-exists"),
        ({"description": ""}, "invalid-request"),
    ],
)
def test_invalid_types_are_refused(shared: Harness, more: dict[str, object], slug: str) -> None:
    plain = {"handle": "12345/T", "description": "x", **more}
    problem(send(shared, "POST", "/types", plain, headers=basic()), slug)


def test_record_without_definition_is_not_a_type(shared: Harness) -> None:
    problem(send(shared, "GET", "/types/12345%2Fnothing"), "not-found")
    problem(send(shared, "GET", "/types/12345%2Flong"), "not-found")
    problem(send(shared, "GET", "/types?prefix=12345"), "authentication-required")


# What a name says about itself


def test_authority_is_empty_if_not_required(shared: Harness) -> None:
    assert got(send(shared, "GET", "/handles/12345%2Fn0/authority")) == {
        "handle": "12345/n0",
        "required": False,
        "created": None,
        "updated": None,
        "creator": None,
        "owners": [],
    }
    problem(send(shared, "GET", "/handles/12345%2Fnothing/authority"), "not-found")

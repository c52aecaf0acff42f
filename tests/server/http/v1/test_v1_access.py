"""Users and rights: routes, secrets that are shown once, and what ends with a key."""

import base64
import json
from typing import Any

from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, problem, send
from tests.server.http.v1.callers import create, keyed, with_token
from tests.server.installations import ADMINISTRATOR
from tests.wire.key_material import RSA_KEY

ZOE = {"prefix": "12345", "name": "zoe"}
GRANT = {"identity": "12345/zoe", "rights": ["minter"], "on": "12345"}


def post(server: Harness, path: str, body: object, status: int = 200, **headers: str) -> Any:
    return got(send(server, "POST", path, body, headers=headers or basic()), status)


def test_user_acts_within_rights_until_disabled(server: Harness) -> None:
    made = post(server, "/users", {**ZOE, "email": "zoe@example.org"}, 201)
    zoe = basic(made["identity"], made["secret"])
    problem(send(server, "POST", "/mint", {"prefix": "12345"}, headers=zoe), "permission-denied")
    assert post(server, "/grants", GRANT)["changed"]
    assert not post(server, "/grants", GRANT)["changed"]
    assert not post(server, "/grants", {**GRANT, "identity": "zoe"})["changed"], "the bare name"
    post(server, "/mint", {"prefix": "12345"}, 201, **zoe)
    problem(send(server, "POST", "/grants", {**GRANT, "rights": ["owner"]}, headers=zoe), "permission-denied")
    started = json.loads(server.ask("POST", "/api/sessions", headers=zoe).body)
    in_session = {"Authorization": f'Handle sessionId="{started["sessionId"]}"'}
    got(send(server, "GET", "/users", headers=in_session))
    reset = post(server, "/users/12345%2Fzoe/reset", {})
    assert send(server, "GET", "/users", headers=zoe).status == 401
    found = problem(send(server, "GET", "/users", headers=in_session), "authentication-failed")
    assert "session has ended" in found["detail"]
    zoe = basic(reset["identity"], reset["secret"])
    assert [each["handle"] for each in got(send(server, "GET", "/users?prefix=12345", headers=zoe))["users"]] == [
        "12345/zoe"
    ]
    disabled = post(server, "/users/12345%2Fzoe/disable", {"note": "left"})
    assert disabled == {
        "handle": "12345/zoe",
        "changed": True,
        "keys": ["300:12345/zoe"],
        "tokens": 0,
        "seq": disabled["seq"],
    }
    assert send(server, "POST", "/mint", {"prefix": "12345"}, headers=zoe).status == 401
    entries = got(send(server, "GET", "/access?on=12345", headers=basic()))["entries"]
    assert {"identity": "300:12345/zoe", "role": "minter", "state": "disabled"}.items() <= entries[-1].items()


def test_secret_is_in_the_first_response_only(server: Harness) -> None:
    first = got(send(server, "POST", "/users", ZOE, headers=keyed("k")), 201)
    again = got(send(server, "POST", "/users", ZOE, headers=keyed("k")), 201)
    assert len(first["secret"]) > 40
    assert "advice" not in first
    assert "secret" not in again
    assert "reset" in again["advice"]
    assert (again["identity"], again["seq"]) == (first["identity"], first["seq"])
    for path in ("/log", "/users", "/access?on=12345/zoe"):
        assert first["secret"] not in send(server, "GET", path, headers=basic()).body.decode()
    post(server, "/users/12345%2Fzoe/reset", {})
    for path in ("/handles/12345%2Fzoe?private", "/handles/12345%2Fzoe/history"):
        assert first["secret"] not in send(server, "GET", path, headers=basic()).body.decode(), "redacted"


def test_public_keys_are_read_in_every_form(server: Harness) -> None:
    public = RSA_KEY.public
    pem = base64.encodebytes(public.to_x509()).decode()
    forms = [public.to_text(), f"-----BEGIN PUBLIC KEY-----\n{pem}-----END PUBLIC KEY-----\n"]
    forms.append("base64:" + base64.b64encode(public.to_bytes()).decode())
    for number, form in enumerate(forms):
        made = post(server, "/users", {"prefix": "12345", "name": f"u{number}", "public_key": form}, 201)
        assert "secret" not in made
        (key,) = [
            each
            for each in got(send(server, "GET", f"/handles/12345%2Fu{number}"))["values"]
            if each["type"] == "HS_PUBKEY"
        ]
        assert key["data"]["value"]["kty"] == "RSA"
    for wrong in ("x", RSA_KEY.to_text(), "base64:!"):
        found = problem(
            send(server, "POST", "/users", {**ZOE, "public_key": wrong}, headers=basic()), "invalid-request"
        )
        assert found["where"] == "$.public_key"


def test_grants_show_records_without_the_group_and_dry_runs_change_nothing(server: Harness) -> None:
    post(server, "/users", ZOE, 201)
    editor = {**GRANT, "rights": ["editor"]}
    tried = post(server, "/grants", {**editor, "dry_run": True})
    assert (tried["changed"], tried["seq"], tried["policy"]) == (True, 0, True)
    changed = post(server, "/grants", editor)
    assert changed["handles"] == ["0.NA/12345"]
    (without,) = changed["records"]
    assert (without["role"], without["group"], without["complete"]) == ("editor", "201:0.NA/12345", True)
    create(server, "12345/later")
    assert got(send(server, "GET", "/access?on=12345", headers=basic()))["records"][0]["count"] == without["count"]
    job = post(server, "/namespaces/12345/access", {"roles": ["editor"], "note": "as agreed"}, 202)
    assert (job["kind"], job["state"], job["done"], job["parameters"]) == (
        "grant",
        "done",
        without["count"],
        {"prefix": "12345", "roles": ["editor"]},
    )
    assert "records" not in got(send(server, "GET", "/access?on=12345", headers=basic()))
    revoked = post(server, "/revocations", {"identity": "12345/zoe", "on": "12345"})
    assert revoked["remaining"] == []
    assert "records" not in got(send(server, "GET", "/access?on=12345"))


def test_refusals_have_advice_of_this_interface(server: Harness) -> None:
    problem(send(server, "POST", "/users", {**ZOE, "name": " z"}, headers=basic()), "invalid-name")
    found = problem(send(server, "POST", "/grants", {**GRANT, "rights": ["boss"]}, headers=basic()), "invalid-value")
    assert "editor" in found["advice"]
    many = {**GRANT, "rights": ["editor"] * 21}
    assert "At most 20" in problem(send(server, "POST", "/grants", many, headers=basic()), "invalid-value")["detail"]
    assert problem(send(server, "POST", "/users/12345%2Fn0/reset", {}, headers=basic()), "state-conflict")[
        "advice"
    ] == ("List the users: GET /api/v1/users")
    problem(send(server, "POST", "/grants", GRANT), "authentication-required")
    problem(send(server, "GET", "/users"), "authentication-required")


def test_token_needs_its_scopes(server: Harness) -> None:
    post(server, "/users", ZOE, 201)
    few = with_token(server, "create", "update")
    problem(send(server, "POST", "/users", {**ZOE, "name": "y"}, headers=few), "permission-denied")
    problem(send(server, "POST", "/grants", GRANT, headers=few), "permission-denied")
    enough = with_token(server, "create", "transfer", "namespaces")
    post(server, "/users", {**ZOE, "name": "y"}, 201, **enough)
    post(server, "/grants", GRANT, 200, **enough)
    assert got(send(server, "GET", "/access?on=12345/y"))["entries"][0]["identity"] == ADMINISTRATOR


def test_token_without_the_scopes_is_refused_a_list_of_users(server: Harness) -> None:
    post(server, "/users", ZOE, 201)
    for scope, missing in (("find", "read"), ("read", "find")):
        found = problem(send(server, "GET", "/users", headers=with_token(server, "mint", scope)), "permission-denied")
        assert f"cannot list users: its scopes do not include {missing}" in found["detail"]
    token = with_token(server, "read", "find")
    for path in ("/users", "/users?prefix=12345"):
        assert "12345/zoe" in {each["handle"] for each in got(send(server, "GET", path, headers=token))["users"]}
    found = problem(send(server, "GET", "/users?prefix=0.NA", headers=token), "permission-denied")
    assert "it is limited to 12345" in found["detail"]

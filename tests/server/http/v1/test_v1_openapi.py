"""The OpenAPI document and the documentation pages."""

import inspect
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, Final

import msgspec
import pytest
from jsonschema import Draft202012Validator

from perseid.schema.namespaces import SCOPES
from perseid.schema.problems import Problem
from perseid.server.http.pages import docs_pages
from perseid.server.http.pages.pages import SCRIPT_POLICY
from perseid.server.http.v1.application import get_api
from perseid.server.http.v1.routing import BASE, NO_TOKEN, OWN_TOKEN, Route
from tests.server.http.contexts import PUBLIC_URL, Harness, basic, header_of
from tests.server.http.v1.apis import JSON, got, problem, send
from tests.server.http.v1.callers import with_token

ROUTES: Final = get_api().routes
PAGES: Final = ["/docs", "/docs/problems", "/docs/schemas"] + [
    f"/docs/{docs_pages.slugify(part.tag)}" for part in get_api().sections
]
NAME: Final = re.compile("[A-Za-z][A-Za-z0-9]*")


@pytest.fixture(scope="module")
def document(shared: Harness) -> Any:
    answer = shared.get("/openapi.json")
    assert (answer.status, header_of(answer, "Content-Type")) == (200, JSON)
    return json.loads(answer.body)


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            yield method.upper(), path, said


def test_document_has_exactly_the_routes(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": f"{PUBLIC_URL}{BASE}", "description": "This server"}]
    described = {(method, path, said["operationId"]) for method, path, said in operations(document)}
    assert described == {(route.method, route.path, route.operation) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_routes_have_summaries_and_descriptions(route: Route) -> None:
    assert route.summary
    assert not route.summary.endswith(".")
    assert len(inspect.getdoc(route.handler) or "") > 20
    assert re.fullmatch("[a-z][A-Za-z0-9]*", route.operation)
    assert route.scope in ("", NO_TOKEN, OWN_TOKEN, *SCOPES)
    named = set(re.findall(r"{(\w+)}", route.path))
    assert named <= set(route.parameters)
    assert all(route.parameters.values())
    assert route.method in ("GET", "POST", "PUT", "DELETE")
    assert (route.body is None) or route.method in ("POST", "PUT")


def test_scopes_and_security_are_documented(document: Any) -> None:
    ways: list[dict[str, list[str]]] = [{"basic": []}, {"handle": []}, {"certificate": []}]
    said = {each["operationId"]: each for _, _, each in operations(document)}
    assert (said["createToken"]["x-scope"], said["createToken"]["security"]) == ("none", ways)
    assert "Tokens cannot do this" in said["createToken"]["description"]
    for name in ("listTokens", "showToken", "revokeToken"):
        assert (said[name]["x-scope"], said[name]["security"]) == ("itself", [{"token": []}, *ways])
        assert "can access only itself" in said[name]["description"]
    assert said["createRecord"]["x-scope"] == "create"
    assert "A token needs the scope `create`" in said["createRecord"]["description"]
    assert all("x-scope" in each or {} in each["security"] for each in said.values())


@pytest.mark.parametrize("words", [(), ("read", "find", "mint", "namespaces", "admin")])
def test_documented_token_limits_hold(server: Harness, words: tuple[str, ...]) -> None:
    """The documented limits of tokens hold for any scopes."""
    token = with_token(server, *(words or ("create",)), where=None)
    order = {"scopes": ["read"], "namespaces": ["12345"]}
    assert problem(send(server, "POST", "/tokens", order, headers=token), "permission-denied")["status"] == 403
    other = got(send(server, "POST", "/tokens", order, headers=basic()), 201)["id"]
    (itself,) = got(send(server, "GET", "/tokens", headers=token))["tokens"]
    problem(send(server, "GET", f"/tokens/{other}", headers=token), "not-found")
    problem(send(server, "DELETE", f"/tokens/{other}", headers=token), "not-found")
    assert got(send(server, "GET", f"/tokens/{itself['id']}", headers=token))["id"] == itself["id"] != other
    assert got(send(server, "DELETE", f"/tokens/{itself['id']}", headers=token))["state"] == "revoked"


def test_every_parameter_is_described(document: Any) -> None:
    for method, path, said in operations(document):
        for parameter in said["parameters"]:
            assert len(parameter["description"]) > 5, (method, path, parameter)
            assert parameter["schema"]
        names = [(each["in"], each["name"]) for each in said["parameters"]]
        assert len(names) == len(set(names))
        wanted = set(re.findall(r"\{(\w+)\}", path))
        assert {name for where, name in names if where == "path"} == wanted


def test_every_schema_and_field_is_described(document: Any) -> None:
    for name, said in document["components"]["schemas"].items():
        assert NAME.fullmatch(name), f"two structures share the name {name}"
        assert len(said.get("description", "")) > 5, name
        for member, schema in said.get("properties", {}).items():
            assert len(schema.get("description", "")) > 3, f"{name}.{member}"


def test_tag_fields_are_described(document: Any) -> None:
    said = document["components"]["schemas"]["ToCreate"]["properties"]["command"]
    assert (said["type"], said["enum"]) == ("string", ["create"])
    assert "`create`" in said["description"]


def test_schemas_have_their_own_descriptions(document: Any) -> None:
    texts = [said["description"] for said in document["components"]["schemas"].values()]
    assert len(texts) == len(set(texts))


def test_every_reference_resolves(document: Any) -> None:
    for found in references(document):
        at = document
        for step in found.removeprefix("#/").split("/"):
            at = at[step]
        assert at


def references(plain: Any) -> Iterator[str]:
    if isinstance(plain, dict):
        for key, value in plain.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from references(value)


def test_schemas_are_valid_and_match_their_examples(document: Any) -> None:
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        for member, said in schema.get("properties", {}).items():
            check = Draft202012Validator({**said, "components": document["components"]})
            for each in said.get("examples", ()):
                assert check.is_valid(each), (name, member, each)
    for _, path, said in operations(document):
        for parameter in said["parameters"]:
            schema = parameter["schema"]
            Draft202012Validator.check_schema(schema)
            for each in schema.get("examples", ()):
                assert Draft202012Validator(schema).is_valid(each), (path, parameter["name"], each)


def test_every_route_documents_its_problems(document: Any) -> None:
    for _, _, said in operations(document):
        statuses = {int(status) for status in said["responses"]}
        assert {400, 401, 403, 404, 429, 500, 503} <= statuses
        assert min(statuses) < 300
        if "requestBody" in said:
            assert 415 in statuses
    assert document["components"]["schemas"]["Problem"]["required"] == ["type", "title", "status", "detail"]
    assert set(document["components"]["securitySchemes"]) == {"token", "basic", "handle", "certificate"}
    assert Problem.__doc__


def test_document_is_cached(shared: Harness) -> None:
    first = shared.get("/openapi.json")
    tag = header_of(first, "ETag")
    assert tag is not None
    assert shared.get("/openapi.json", headers={"If-None-Match": tag}).status == 304


def test_requests_and_responses_have_separate_bases() -> None:
    """Requests refuse unknown fields, so only the data of values has a common type."""
    for route in ROUTES:
        for type_ in (route.body, route.query):
            for each in getattr(type_, "__args__", (type_,)):
                if isinstance(each, type) and issubclass(each, msgspec.Struct):
                    assert each.__struct_config__.forbid_unknown_fields, each


# Pages


class Links(HTMLParser):
    """Everything that a page refers to, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag != "script" or dict(attrs).keys() == {"type", "src"}, "a script is a file"
        for name, value in attrs:
            if name in ("href", "src", "action"):
                self.links.append(value or "")
            elif name == "id":
                assert value not in self.places, value
                self.places.add(value or "")
            assert not name.startswith("on")
            assert name != "style"


def parsed(server: Harness, path: str) -> Links:
    answer = server.get(path)
    assert answer.status == 200, path
    assert header_of(answer, "Content-Security-Policy") == SCRIPT_POLICY
    found = Links()
    found.feed(answer.body.decode())
    return found


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_self_contained_and_links_resolve(shared: Harness, path: str) -> None:
    found = parsed(shared, path)
    assert not found.tags & {"iframe", "object", "embed", "style"}
    for link in set(found.links):
        target, _, place = link.partition("#")
        assert link.startswith(("/", "#")), link
        if target.startswith("/docs"):
            assert place == "" or place in parsed(shared, target).places, link
        elif target:
            answer = shared.get(target)
            assert answer.status == 200 or (header_of(answer, "Location") or "").startswith("/"), link


def test_every_route_and_schema_has_an_anchor(shared: Harness, document: Any) -> None:
    for part in get_api().sections:
        places = parsed(shared, f"/docs/{docs_pages.slugify(part.tag)}").places
        assert {route.operation for route in part.routes} <= places
    assert set(document["components"]["schemas"]) <= parsed(shared, "/docs/schemas").places


def test_unknown_page_is_not_found(shared: Harness) -> None:
    for path in ("/docs/nothing", "/docs/names/x", "/docs//handles", "/docsx"):
        assert shared.get(path).status == 404, path


def test_missing_pages_are_not_cached(shared: Harness) -> None:
    settings = shared.context.settings
    before = [docs_pages.render(path[1:], settings, "") for path in PAGES]
    for number in range(docs_pages.MAX_CACHED_PAGES + 1):
        assert docs_pages.render(f"docs/nothing-{number}", settings, "") is None
        assert docs_pages.render(f"nothing-{number}", settings, "") is None
    after = [docs_pages.render(path[1:], settings, "") for path in PAGES]
    assert [id(each) for each in before] == [id(each) for each in after], "none is made again"


def test_page_paths_take_precedence_over_prefixes(shared: Harness) -> None:
    assert shared.get("/openapi.json").status == 200
    assert shared.get("/hdl/docs/x").name == "docs/x"
    assert "docs" in json.loads(shared.get("/resolver.json").body)["ownPaths"]

"""Signposting over HTTP: links in headers, other forms by `Accept` or URL, and embedded data."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from perseid.records.record import Value
from perseid.registry.queries.links import MAX_HEADER_BYTES
from perseid.registry.queries.signposting import BIBLIOGRAPHY, BIBTEX, CSL_JSON, FORMATTERS, JSON_LD
from perseid.server.http.messages import Response
from perseid.server.http.pages.pages import SCRIPT_POLICY
from perseid.server.http.resolver.paths import FORMS as ACTIONS
from perseid.server.http.resolver.paths import MAX_SIGNPOSTED_NAME
from perseid.server.http.resolver.signposting import MAX_EMBEDDED
from tests.server.http.contexts import Harness, header_of, json_of
from tests.server.http.resolver.resolver_records import PRIVATE, create, location_of, page_of, resolver, text
from tests.server.http.resolver.time_travel_records import links_of

HOME: Final = "https://hdl.example.org"
NAME: Final = "12345/map"
THING: Final = (
    text(1, "URL", "https://example.org/map", 60),
    text(2, "TITLE", "A Map of </script> Places"),
    text(3, "AUTHOR", "Ann Author"),
    text(4, "DATE", "1850"),
    text(5, "LICENSE", "https://licence.example/by"),
    text(6, "TYPE", "https://schema.org/Map"),
    Value(7, "PUBLISHER", b"nobody may read this", permissions=PRIVATE),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with resolver() as made:
        create(made, NAME, *THING)
        yield made


def targets(answer: Response, relation: str) -> list[str]:
    return [link.target for link in links_of(answer).get(relation, [])]


# Links


def test_redirect_links_history_and_linkset(server: Harness) -> None:
    answer = server.get(f"/{NAME}")
    assert location_of(answer) == "https://example.org/map"
    assert len(list(answer.values("Link"))) == 1, "in one line, for that is asked for most"
    assert targets(answer, "linkset") == [f"{HOME}/{NAME}?action=linkset-json"]
    assert targets(answer, "timemap") == [f"{HOME}/timemap/link/{NAME}"]
    listed = server.get(targets(answer, "linkset")[0].removeprefix(HOME))
    assert header_of(listed, "Content-Type") == "application/linkset+json"
    (context,) = [each for each in json.loads(listed.body)["linkset"] if each["anchor"] == f"{HOME}/{NAME}"]
    assert context["item"] == [{"href": "https://example.org/map"}]
    assert context["cite-as"] == [{"href": f"{HOME}/{NAME}"}]
    (linked_data,) = [each for each in context["describedby"] if each["type"] == JSON_LD]
    assert linked_data["profile"] == ["https://schema.org/"]
    back = {each["anchor"]: each for each in json.loads(listed.body)["linkset"]}
    assert back["https://example.org/map"]["collection"] == [{"href": f"{HOME}/{NAME}"}]
    assert back[f"{HOME}/{NAME}?noredirect"]["type"] == [{"href": "https://schema.org/AboutPage"}]
    for each in context["describedby"]:
        assert back[each["href"]]["describes"] == [{"href": f"{HOME}/{NAME}"}]


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_record_has_signposting_links(server: Harness, accept: str) -> None:
    answer = server.get(f"/{NAME}?noredirect", headers={"Accept": accept})
    assert targets(answer, "cite-as") == [f"{HOME}/{NAME}"]
    assert targets(answer, "license") == ["https://licence.example/by"]
    page = ["https://schema.org/AboutPage"] if accept == "text/html" else []
    assert targets(answer, "type") == ["https://schema.org/Map", *page], "what the thing is, and then what the page is"
    assert targets(answer, "item") == ["https://example.org/map"]
    described = {link.one("type"): link.target for link in links_of(answer)["describedby"]}
    assert described[BIBTEX] == f"{HOME}/{NAME}?action=bibtex"
    assert described["application/json"] == f"{HOME}/api/handles/{NAME}"
    for relation in ("describedby", "linkset", "timemap", "timegate"):
        for target in targets(answer, relation):
            assert server.get(target.removeprefix(HOME)).status in (200, 302), target


def test_link_headers_are_limited(server: Harness) -> None:
    values = [text(number, "URL", f"https://example.org/{'x' * 60}/{number}") for number in range(1, 200)]
    create(server, "12345/many-places", *values)
    create(server, f"12345/{'long' * 200}", text(1, "URL", "https://example.org/"))
    for name in ("12345/many-places", f"12345/{'long' * 200}"):
        for query in ("?noredirect", "", "?action=json-ld"):
            answer = server.get(f"/{name}{query}")
            used = sum(len(value) + len("Link: \r\n") for value in answer.values("Link"))
            assert used <= MAX_HEADER_BYTES
    assert len(server.get("/12345/many-places?action=linkset").body) > MAX_HEADER_BYTES, "there all of them are"
    assert 3 * MAX_SIGNPOSTED_NAME + 300 < MAX_HEADER_BYTES
    assert set(links_of(server.get(f"/12345/{'long' * 200}"))) == {"original", "timegate"}, "RFC 7089 demands it"


def test_no_links_without_public_url(server: Harness) -> None:
    context = server.context
    try:
        server.configure(public_url="")
        for query in ("", "?noredirect", "?action=json-ld"):
            assert links_of(server.get(f"/{NAME}{query}")) == {}
        assert page_of(server.get(f"/{NAME}?noredirect")).data == []
        assert json.loads(server.get(f"/{NAME}?action=json-ld").body)["@id"] == f"hdl:{NAME}"
        assert f"url = {{hdl:{NAME}}}" in server.get(f"/{NAME}", headers={"Accept": BIBTEX}).body.decode()
        assert f"hdl:{NAME}" in page_of(server.get(f"/{NAME}?noredirect")).text
    finally:
        server.service.server = context


# Other forms


def test_every_form_has_its_own_url() -> None:
    assert set(ACTIONS.values()) == set(FORMATTERS)


@pytest.mark.parametrize(("action", "form"), [(action.value, form) for action, form in ACTIONS.items()])
def test_forms_by_url_and_by_accept(server: Harness, action: str, form: str) -> None:
    by_address = server.get(f"/{NAME}?action={action}", headers={"Accept": "text/html"})
    by_name = server.get(f"/{NAME}", headers={"Accept": form})
    assert by_address.status == by_name.status == 200
    assert by_address.body == by_name.body
    assert (header_of(by_name, "Content-Type") or "").partition(";")[0] == form
    assert header_of(by_name, "Content-Location") == f"{HOME}/{NAME}?action={action}"
    assert header_of(by_address, "Content-Location") is None
    assert targets(by_name, "describes") == targets(by_name, "cite-as") == [f"{HOME}/{NAME}"]
    assert "item" not in links_of(by_name), "that is a link of the thing and not of its description"
    assert header_of(by_name, "Vary") == "Accept, Accept-Datetime"
    assert header_of(by_name, "Cache-Control") == "public, max-age=60"
    assert b"nobody may read this" not in by_name.body
    again = server.get(f"/{NAME}", headers={"Accept": form, "If-None-Match": header_of(by_name, "ETag") or ""})
    assert again.status == 304
    assert server.head(f"/{NAME}", headers={"Accept": form}).headers == by_name.headers


def test_content_of_forms(server: Harness) -> None:
    plain = json.loads(server.get(f"/{NAME}", headers={"Accept": JSON_LD}).body)
    assert (plain["@type"], plain["name"], plain["datePublished"]) == ("Map", "A Map of </script> Places", "1850")
    assert plain["author"] == "Ann Author"
    assert json.loads(server.get(f"/{NAME}", headers={"Accept": CSL_JSON}).body)["title"] == plain["name"]
    cited = server.get(f"/{NAME}", headers={"Accept": BIBLIOGRAPHY}).body.decode()
    assert cited == f"Ann Author (1850). A Map of </script> Places. hdl:{NAME}, {HOME}/{NAME}\n"
    assert header_of(server.get(f"/{NAME}?action=citation"), "Content-Type") == f"{BIBLIOGRAPHY};charset=utf-8"
    assert "year = {1850}" in server.get(f"/{NAME}?action=bibtex").body.decode()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "redirection"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", "redirection"),
        ("application/ld+json, */*", "redirection"),
        ("application/ld+json;q=0.5, text/html;q=0.4", JSON_LD),
        ("application/x-bibtex, application/ld+json;q=0.9", BIBTEX),
        ("application/vnd.citationstyles.csl+json, application/json;q=0.9, */*;q=0.1", CSL_JSON),
        ("text/x-bibliography; style=apa; locale=en-US", BIBLIOGRAPHY),
        ("text/turtle", "redirection"),
    ],
)
def test_weights_and_browsers(server: Harness, accept: str, expected: str) -> None:
    answer = server.get(f"/{NAME}", headers={"Accept": accept})
    if expected == "redirection":
        assert location_of(answer) == "https://example.org/map"
    else:
        assert (header_of(answer, "Content-Type") or "").partition(";")[0] == expected


def test_explicit_redirect_is_honored(server: Harness) -> None:
    assert server.get(f"/{NAME}?action=redirect", headers={"Accept": BIBTEX}).status == 302
    assert page_of(server.get("/12345/nothing", headers={"Accept": "text/turtle"})).title


def test_location_for_a_form_precedes_ours(server: Harness) -> None:
    places = (
        '<l><location href="https://page.example/" weight="1"/>'
        '<location href="https://data.example/" weight="0" media-type="application/ld+json"/></l>'
    )
    create(server, "12345/own-data", text(1, "10320/loc", places))
    assert location_of(server.get("/12345/own-data", headers={"Accept": JSON_LD})) == "https://data.example/"
    assert server.get("/12345/own-data", headers={"Accept": BIBTEX}).status == 200


def test_tombstone_in_every_form(server: Harness) -> None:
    for form in FORMATTERS:
        answer = server.get("/12345/gone", headers={"Accept": form})
        assert answer.status == 410
        assert header_of(answer, "Location") is None
    assert "gone: It was <wrong>." in server.get("/12345/gone?action=citation").body.decode()
    assert json.loads(server.get("/12345/gone", headers={"Accept": JSON_LD}).body)["creativeWorkStatus"].startswith(
        "gone"
    )


def test_errors_are_json_for_json_clients(server: Harness) -> None:
    for accept in (JSON_LD, CSL_JSON):
        assert json_of(server.get("/12345/absent", headers={"Accept": accept}))["responseCode"] == 100
    assert page_of(server.get("/12345/absent", headers={"Accept": BIBTEX})).title == "Not found"


def test_forms_of_alias_are_those_of_target(server: Harness) -> None:
    create(server, "12345/alias-of-map", text(1, "HS_ALIAS", NAME))
    answer = server.get("/12345/alias-of-map?action=bibtex")
    assert answer.status == 200
    assert f"url = {{{HOME}/{NAME}}}" in answer.body.decode()


# Embedded data


def test_page_embeds_json_ld(server: Harness) -> None:
    answer = server.get(f"/{NAME}?noredirect")
    page = page_of(answer)
    (data,) = page.data
    assert json.loads(data) == json.loads(server.get(f"/{NAME}?action=json-ld").body)
    assert "<" not in data
    scripts = [attributes for tag, attributes in page.elements if tag == "script" and "src" not in attributes]
    assert scripts == [{"type": "application/ld+json"}]
    assert header_of(answer, "Content-Security-Policy") == SCRIPT_POLICY
    assert {f"/{NAME}?action={action}" for action in ("citation", "bibtex", "csl-json", "json-ld")} <= set(page.links)


def test_long_json_ld_is_not_embedded(server: Harness) -> None:
    create(server, "12345/wordy", text(1, "TITLE", "x" * (MAX_EMBEDDED + 1)))
    assert page_of(server.get("/12345/wordy?noredirect")).data == []
    assert len(server.get("/12345/wordy?action=json-ld").body) > MAX_EMBEDDED

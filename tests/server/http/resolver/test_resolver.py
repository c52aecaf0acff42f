"""The web resolver: redirects, pages without a target, and parameters."""

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote

import pytest

from perseid.records.record import Value
from perseid.registry.policy.resolution import MAX_ALIASES
from perseid.server.native.work import WorkKind
from tests.server.http.contexts import Harness, basic, header_of, json_of
from tests.server.http.resolver.resolver_records import (
    CORDRA_NAME,
    add_namespace,
    create,
    location_of,
    page_of,
    resolver,
    text,
)

JSON: Final = {"Accept": "application/json"}
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Harness]:
    """A server whose records no test changes."""
    with resolver() as server:
        yield server


@pytest.fixture
def server(shared: Harness) -> Iterator[Harness]:
    """The same with default settings."""
    context = shared.context
    yield shared
    shared.service.server = context


# Redirects


def test_handle_redirects_to_url(server: Harness) -> None:
    answer = server.get("/12345/url")
    assert answer.status == 302
    assert location_of(answer) == "https://example.org/a"
    assert answer.body == (
        b"<html><head><title>Handle Redirect</title></head>\n"
        b'<body><a href="https://example.org/a">https://example.org/a</a></body></html>'
    )
    assert (answer.code, answer.name) == (1, "12345/url")
    assert server.kinds == []  # read from the view, in the event loop


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("12345/multi", "https://example.org/two"),  # the lowest index of the plain type
        ("12345/subtypes", "https://a.example/"),
        ("12345/typed", "https://typed.example/"),
        ("12345/partly", "https://seen.example/"),
        ("12345/second", "https://second.example/"),  # the first that anybody may be sent to
        ("12345/URL", "https://example.org/a"),  # letters of either case
        ("12345%2Furl", "https://example.org/a"),
        ("hdl:12345/url", "https://example.org/a"),
        ("hdl/12345/url", "https://example.org/a"),
        ("hdl/hdl:12345/url", "https://example.org/a"),
        ("12345/slash%2F..%2F%3F%23%25%20%C3%BC%2F", "https://odd.example/"),
        ("12345/slash/../%3F%23%25%20ü/", "https://odd.example/"),
        ("12345%2F..", "https://dots.example/"),
    ],
)
def test_choice_of_url(server: Harness, name: str, expected: str) -> None:
    assert location_of(server.get(f"/{name}")) == expected


@pytest.mark.parametrize("prefix", ["hdl", "api", "robots.txt", "hdl:77"])
def test_every_name_can_be_reached_under_hdl(server: Harness, prefix: str) -> None:
    assert location_of(server.get(f"/hdl/{prefix}/x")) == f"https://{prefix.partition(':')[0]}.example/"


def test_declared_segment_precedes_prefix(server: Harness) -> None:
    answer = server.get("/hdl/x")  # which is the prefix x, and not the name x of the prefix hdl
    assert (answer.status, answer.name) == (404, "x")


def test_own_paths_precede_prefix(server: Harness) -> None:
    answer = server.get("//api/x")
    assert answer.status == 404
    assert "/hdl/api/x" in page_of(answer).links
    assert server.get("/robots.txt").status == 200


def test_undeclared_form_is_not_found_with_hint(server: Harness) -> None:
    server.configure(bare=False)
    answer = server.get("/12345/url")
    assert answer.status == 404
    assert page_of(answer).links.count("/hdl/12345/url") == 1
    assert location_of(server.get("/hdl/12345/url")) == "https://example.org/a"


def test_other_segments_can_be_declared(server: Harness) -> None:
    server.configure(segments=("id", "hdl"))
    assert location_of(server.get("/id/12345/url")) == "https://example.org/a"
    assert location_of(server.get("/id/12345/alias?x")) == "https://hdl.example.org/id/12345/url?x"


def test_redirect_status_is_configurable(server: Harness) -> None:
    server.configure(redirect_status=303)
    assert server.get("/12345/url").status == 303
    assert server.get("/12345/url", version="1.0").status == 302
    server.configure(redirect_status=301)
    assert server.get("/12345/url", version="1.0").status == 301


def test_schemes_are_configurable(server: Harness) -> None:
    server.configure(schemes=frozenset(("javascript",)))
    assert location_of(server.get("/12345/script")) == "javascript:alert(1)"
    assert server.get("/12345/url").status == 200


def test_credentials_are_ignored(server: Harness) -> None:
    for headers in (basic(), {"Authorization": "nonsense"}, {"Cookie": "x=y"}):
        assert server.get("/12345/url", headers=headers).status == 302
        hidden = server.get("/12345/hidden?action=api", headers={**headers, **JSON})
        assert b"hidden.example" not in hidden.body
    assert WorkKind.VERIFY not in server.kinds


def test_host_header_is_ignored(server: Harness) -> None:
    answer = server.get("/12345/alias", headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example"})
    assert location_of(answer) == "https://hdl.example.org/12345/url"
    server.configure(public_url="")
    answer = server.get("/12345/alias", headers={"Host": "evil.example"})
    assert location_of(answer) == "/12345/url"


# Parameters


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("type=URL.x", "https://example.org/x"),
        ("type=url.", "https://example.org/two"),
        ("index=3", "https://example.org/three"),
        ("index=3;index=1", "https://example.org/three"),
        ("index=nonsense", "https://example.org/two"),
        ("index=1&type=NONE", "https://example.org/x"),
        ("action=redirect&noredirect", "https://example.org/two"),
        ("action=metadata", "https://example.org/two"),
        ("urlappend=/a%20b%3Fc=d", "https://example.org/two/a%20b?c=d"),
        ("urlappend=%C3%BC+", "https://example.org/two%C3%BC+"),
        ("x=y&auth&cert", "https://example.org/two"),
    ],
)
def test_parameters_select_values(server: Harness, query: str, expected: str) -> None:
    assert location_of(server.get(f"/12345/multi?{query}")) == expected


@pytest.mark.parametrize("url", ["javascript:alert(1)", "notaurl"])
def test_record_is_shown_if_its_url_leads_nowhere(server: Harness, url: str) -> None:
    name = f"12345/nowhere-{len(url)}"
    create(server, name, text(1, "URL", url))
    for query in ("", "?action=redirect"):
        answer = server.get(f"/{name}{query}")
        assert (answer.status, header_of(answer, "Location")) == (200, None)
    assert not [link for link in page_of(server.get(f"/{name}")).links if link.startswith(url)]


@pytest.mark.parametrize("query", ["noredirect", "noredirect=false", "action=showvalues", "x;noredirect"])
def test_noredirect_shows_record(server: Harness, query: str) -> None:
    answer = server.get(f"/12345/url?{query}")
    assert answer.status == 200
    assert header_of(answer, "Location") is None
    assert page_of(answer).title.startswith("12345/url")


@pytest.mark.parametrize("query", ["urlappend=%0D%0AX:%20y", "urlappend=.evil.example/&index=9"])
def test_invalid_urlappend_is_refused(server: Harness, query: str) -> None:
    create_once(server, "12345/host", text(9, "URL", "https://example.org"))
    answer = server.get(f"/12345/host?{query}")
    assert answer.status == 400
    assert "urlappend" in page_of(answer).text.lower()
    assert header_of(answer, "Location") is None


def test_redirection_headers_parameter(server: Harness) -> None:
    answer = server.get("/12345/url?redirectionHeaders")
    assert answer.status == 200
    assert header_of(answer, "Location") == "https://example.org/a"
    assert header_of(answer, "Expires") is not None


def test_action_api(server: Harness) -> None:
    answer = server.get("/12345/multi?action=api;type=URL.x;pretty")
    plain = json_of(answer)
    assert (answer.status, plain["responseCode"], plain["handle"]) == (200, 1, "12345/multi")
    assert [value["index"] for value in plain["values"]] == [1]
    assert b"\n  " in answer.body
    assert json_of(server.get("/12345/absent?action=api"))["responseCode"] == 100
    assert json_of(server.get("/12345?action=api"))["handle"] == "12345"
    assert server.get("/12345/url?action=api&callback=f").body.startswith(b"f(")
    assert json_of(server.get("/12345/alias?action=api"))["handle"] == "12345/alias"  # which follows no aliases


def test_head_equals_get_without_body(server: Harness) -> None:
    for path in ("/12345/url", "/12345/url?noredirect", "/12345/absent", "/", "/12345/alias"):
        got, headed = server.get(path), server.head(path)
        assert (headed.status, headed.headers) == (got.status, got.headers)


# Content negotiation


def test_json_is_returned_if_named(server: Harness) -> None:
    answer = server.get("/12345/url", headers=JSON)
    assert answer.status == 200
    assert json_of(answer)["values"][0]["data"]["value"] == "https://example.org/a"
    assert header_of(answer, "Vary") == "Accept, Accept-Datetime"
    assert header_of(answer, "Cache-Control") == "public, max-age=60"
    assert json_of(server.get("/12345/url?type=NONE", headers=JSON))["responseCode"] == 200


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/json, */*", "text/turtle", "application/json;q=0"])
def test_other_accept_headers_are_redirected(server: Harness, accept: str) -> None:
    assert server.get("/12345/url", headers={"Accept": accept}).status == 302


@pytest.mark.parametrize("query", ["action=redirect", "locatt=id:1", "urlappend=x", "redirectionHeaders"])
def test_explicit_redirect_ignores_accept(server: Harness, query: str) -> None:
    assert header_of(server.get(f"/12345/url?{query}", headers=JSON), "Location") is not None


def test_record_without_target_is_shown_in_preferred_form(server: Harness) -> None:
    assert page_of(server.get("/12345/nothing")).text.count("nowhere to go") == 3, "title, data and citation"
    assert page_of(server.get("/12345/nothing", headers={"Accept": "text/turtle"})).title
    liked = {"Accept": "text/html;q=0.5, application/json"}
    assert json_of(server.get("/12345/nothing", headers=liked))["responseCode"] == 1
    assert json_of(server.get("/12345/url?noredirect", headers=JSON))["responseCode"] == 1


# Aliases


def test_alias_redirects_with_301_and_query(server: Harness) -> None:
    answer = server.get("/12345/alias?x=1;y=%20&urlappend=/z")
    assert answer.status == 301
    assert location_of(answer) == "https://hdl.example.org/12345/url?x=1;y=%20&urlappend=/z"
    assert answer.body == b""
    assert header_of(answer, "Cache-Control") == "public, max-age=60"  # of the values at the end
    assert location_of(server.get("/hdl/12345/alias")) == "https://hdl.example.org/hdl/12345/url"
    odd = server.get("/12345/alias-odd")
    assert location_of(odd) == "https://hdl.example.org/12345/slash%2F..%2F%3F%23%25%20%C3%BC%2F"


def test_alias_is_followed_directly_otherwise(server: Harness) -> None:
    assert location_of(server.post("/12345/alias")) == "https://example.org/a"
    shown = page_of(server.get("/12345/alias?noredirect"))
    assert "which is an alias of this handle" in shown.text
    assert shown.title.startswith("12345/url")
    assert b"example.org/a" in server.get("/12345/alias?action=showurls").body


@pytest.mark.parametrize("query", ["ignore_aliases", "ignore_aliases=no", "type=URL", "index=2"])
def test_ignore_aliases(server: Harness, query: str) -> None:
    assert location_of(server.get(f"/12345/alias?{query}")) == "https://own.example/"


def test_twenty_aliases_are_followed(server: Harness) -> None:
    first = 22 - MAX_ALIASES
    assert location_of(server.get(f"/12345/chain{first}")).endswith("/12345/chain22")
    answer = server.get(f"/12345/chain{first - 1}")
    assert (answer.status, page_of(answer).title) == (404, "Alias chain too long")


@pytest.mark.parametrize("query", ["", "?noredirect", "?action=showurls"])
def test_alias_loop_is_reported(server: Harness, query: str) -> None:
    answer = server.get(f"/12345/loop{query}")
    assert (answer.status, page_of(answer).title) == (404, "Alias chain too long")
    assert json_of(server.get(f"/12345/loop{query}", headers=JSON))["handle"] == "12345/loop"


def test_dangling_alias(server: Harness) -> None:
    lost = server.get("/12345/alias-lost")
    assert (lost.status, page_of(lost).title) == (404, "Not found")
    assert "12345/alias-lost" in page_of(lost).text
    away = server.get("/12345/alias-away")
    assert (away.status, page_of(away).title) == (400, "Resolution Error")
    gone = server.get("/12345/alias-gone")
    assert (gone.status, location_of(gone)) == (301, "https://hdl.example.org/12345/gone")


# Not found


def test_not_found(server: Harness) -> None:
    answer = server.get("/12345/absent/")
    assert answer.status == 404
    page = page_of(answer)
    assert page.title == "Not found"
    assert "The handle you requested, 12345/absent/, cannot be found." in page.text
    assert "Prefix 12345 is hosted here, but this handle does not exist." in page.text
    assert header_of(answer, "Cache-Control") == "no-cache"
    assert (answer.code, answer.name) == (100, "12345/absent/")
    why = "prefix 12345 is hosted here, but this handle does not exist"
    assert json_of(server.get("/12345/absent", headers=JSON)) == {
        "responseCode": 100,
        "message": f"P{why[1:]}.",
        "handle": "12345/absent",
        "suggestions": [],
        "prefix": {"prefix": "12345", "status": "hosted", "why": why},
    }


@pytest.mark.parametrize(
    "name", ["12345/unpublished", "12345/", "999", "12345/" + "x" * 2_100, "12345/%FF", "12345/a%0Ab"]
)
def test_hidden_and_invalid_handles_are_not_found(server: Harness, name: str) -> None:
    assert server.get(f"/{name}").status == 404


@pytest.mark.parametrize("name", ["999/x", "0.SITE/POLICY/12345", "https://hdl.example.org/12345/url"])
def test_prefix_not_hosted(server: Harness, name: str) -> None:
    answer = server.get(f"/{name}")
    assert (answer.status, page_of(answer).title) == (400, "Resolution Error")
    assert json_of(server.get(f"/{name}", headers=JSON))["responseCode"] == 301


def test_handle_without_public_values(server: Harness) -> None:
    answer = server.get("/12345/hidden")
    assert (answer.status, page_of(answer).title) == (200, "No Values Found")
    assert "cannot be found" in page_of(answer).text
    assert b"hidden.example" not in answer.body
    server.configure(no_values_status=404)
    assert server.get("/12345/hidden").status == 404
    assert server.get("/12345/url?type=NONE").status == 404


def test_no_requested_values(server: Harness) -> None:
    answer = server.get("/12345/url?type=NONE")
    page = page_of(answer)
    assert (answer.status, page.title) == (200, "No Values Found")
    assert "/12345/url?noredirect" in page.links


def test_malformed_path(server: Harness) -> None:
    answer = server.get("/12345/%zz")
    assert (answer.status, page_of(answer).title) == (400, "Bad Request")
    assert json_of(server.get("/12345/a%00b", headers=JSON))["responseCode"] == 4


def test_tombstone(server: Harness) -> None:
    answer = server.get("/12345/gone")
    assert answer.status == 410
    page = page_of(answer)
    assert page.title == "12345/gone – gone"
    assert "It was <wrong>." in page.text
    assert "/12345/url" in page.links
    assert header_of(answer, "Cache-Control") == "public, max-age=86400"
    for query in ("type=URL", "index=77", "type=NONE", "action=redirect"):
        assert server.get(f"/12345/gone?{query}").status == 410
    as_json = server.get("/12345/gone", headers=JSON)
    assert (as_json.status, json_of(as_json)["responseCode"]) == (410, 1)
    shown = server.get("/12345/gone?noredirect")
    assert shown.status == 200
    assert "gone" in page_of(shown).text


def test_internal_error(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("secret words")

    monkeypatch.setattr(server.registry, "public_snapshot", fail)
    answer = server.get("/12345/url")
    assert (answer.status, page_of(answer).title) == (500, "System Error")
    assert b"secret" not in answer.body
    assert json_of(server.get("/12345/url", headers=JSON))["responseCode"] == 2


# Namespaces


def test_namespace_contact_and_status(server: Harness) -> None:
    space = "<namespace><contact>ask@example.org</contact></namespace>"
    add_once(server, "77", text(1, "HS_NAMESPACE", space))
    absent = page_of(server.get("/77/absent"))
    assert "mailto:ask@example.org" in absent.links
    closed = "<n><status>inactive</status><statusmsg>Closed &lt;b&gt; since May.</statusmsg></n>"
    add_once(server, "77.1", text(1, "HS_NAMESPACE", closed))
    create_once(server, "77.1/x", text(1, "URL", "https://example.org/"))
    answer = server.get("/77.1/x")
    assert answer.status == 404
    assert "Closed <b> since May." in page_of(answer).text
    assert "mailto:ask@example.org" in page_of(answer).links  # of the prefix above


def test_email_of_prefix_is_contact(server: Harness) -> None:
    add_once(server, "78", text(1, "EMAIL", "prefix@example.org"))
    assert "mailto:prefix@example.org" in page_of(server.get("/78/absent")).links


def test_template_resolves_handles_without_record(server: Harness) -> None:
    template = (
        '<namespace><template delimiter="@"><foreach><if value="type" test="equals" expression="URL">'
        '<value data="${data}?${extension}"/></if></foreach></template></namespace>'
    )
    add_once(server, "79", text(1, "HS_NAMESPACE", template))
    create_once(server, "79/base", text(1, "URL", "https://made.example/"))
    assert location_of(server.get("/79/base@x=y%20z")) == "https://made.example/?x=y%20z"
    assert "template" in page_of(server.get("/79/base@x?noredirect")).text


def test_cordra_handle_has_its_own_query(server: Harness) -> None:
    plain = server.get(f"/{CORDRA_NAME.lower()}")
    assert location_of(plain) == f"https://c.example/{CORDRA_NAME.lower().replace('/', '%2F')}"
    answer = server.get(f"/{CORDRA_NAME}?a=b&auth&c=d")
    assert location_of(answer) == f"https://c.example/{CORDRA_NAME.replace('/', '%2F')}%3Fa%3Db%26c%3Dd"
    shown = page_of(server.get(f"/{CORDRA_NAME}?part=2&noredirect"))
    assert f"{CORDRA_NAME}?part=2" in shown.text
    assert "Querypart=2" in shown.text.replace(" ", "")
    assert (header_of(answer, "handle-query"), header_of(plain, "handle-query")) == ("a=b&c=d", None)
    lower = CORDRA_NAME.lower()
    for target in (f"/{lower}%3Fpart=2%23top", f"/{lower}?part=2%23top"):
        assert header_of(server.get(target), "handle-query") in ("part=2", "part=2%23top")
    for field in (f"hdl:{lower}?part=2#top", f"{lower}?part=2#top", f"https://hdl.handle.net/{lower}?auth&part=2#top"):
        answer = server.post("/", f"hdl={quote(field, safe='')}", headers=FORM)
        assert location_of(answer) == f"https://c.example/{quote(lower + '?part=2#top', safe='')}"
        assert (header_of(answer, "handle-query"), header_of(answer, "handle-fragment")) == ("part=2", "top")
    record = server.get(f"/{lower}?part=2", headers={"Accept": "application/json"})
    assert json_of(record)["handle"] == f"{lower}?part=2"
    broken = server.get(f"/{CORDRA_NAME}?%zz")
    assert location_of(broken).endswith(CORDRA_NAME.replace("/", "%2F"))


def test_query_of_other_handles_is_ignored(server: Harness) -> None:
    assert location_of(server.get("/12345/url?part=2")) == "https://example.org/a"


# Caching


def expires_in(server: Harness, path: str) -> tuple[int, str]:
    answer = server.get(path)
    expires = parsedate_to_datetime(header_of(answer, "Expires") or "").timestamp()
    return round(expires - server.context.time()), header_of(answer, "Cache-Control") or ""


@pytest.mark.parametrize(
    ("name", "seconds"), [("url", 60), ("multi", 86_400), ("until", 86_400), ("past", 0), ("url?noredirect", 60)]
)
def test_response_is_cached_by_ttl(server: Harness, name: str, seconds: int) -> None:
    found, control = expires_in(server, f"/12345/{name}")
    assert abs(found - seconds) <= 2
    assert control == f"public, max-age={seconds}"


def test_cache_time_is_limited_to_two_days(server: Harness) -> None:
    create_once(server, "12345/long-lived", Value(1, "URL", b"https://a.example/", 10**9))
    assert expires_in(server, "/12345/long-lived?index=1")[1] == "public, max-age=172800"


def test_auth_disables_caching(server: Harness) -> None:
    answer = server.get("/12345/url?auth")
    assert header_of(answer, "Cache-Control") == "no-cache"
    assert header_of(answer, "Expires") is None


@pytest.mark.parametrize("path", ["/12345/url?noredirect", "/", "/help.html", "/static/perseid.css", "/resolver.json"])
def test_matching_tag_of_page_gets_304(server: Harness, path: str) -> None:
    first = server.get(path)
    tag = header_of(first, "ETag")
    assert tag is not None
    for shown in (tag, f'"x", W/{tag}', "*"):
        again = server.get(path, headers={"If-None-Match": shown})
        assert (again.status, again.body) == (304, b"")
        assert header_of(again, "ETag") == tag
        assert header_of(again, "Cache-Control") == header_of(first, "Cache-Control")
    assert server.get(path, headers={"If-None-Match": '"other"'}).status == 200
    assert server.post(path, headers={"If-None-Match": tag}).status == 200


def test_conditions_are_ignored_for_redirects_and_errors(server: Harness) -> None:
    for path, status in (("/12345/url", 302), ("/12345/absent", 404), ("/12345/gone", 410)):
        assert server.get(path, headers={"If-None-Match": "*"}).status == status
    assert header_of(server.get("/12345/url"), "ETag") is None


def test_json_has_a_tag(server: Harness) -> None:
    first = server.get("/12345/url", headers=JSON)
    tag = header_of(first, "ETag") or ""
    assert server.get("/12345/url", headers={**JSON, "If-None-Match": tag}).status == 304
    page = header_of(server.get("/12345/url?noredirect"), "ETag")
    assert page != tag


# The form


def test_form_is_posted_to_front_page(server: Harness) -> None:
    answer = server.post("/", "hdl=12345%2Furl", headers=FORM)
    assert location_of(answer) == "https://example.org/a"
    answer = server.post("/", "hdl=+hdl%3A12345%2Furl+&noredirect=yes", headers=FORM)
    assert page_of(answer).title.startswith("12345/url")
    answer = server.post("/", "hdl=https%3A%2F%2Fhdl.example.org%2Fhdl%2F12345%2Furl", headers=FORM)
    assert location_of(answer) == "https://example.org/a"
    assert location_of(server.post("/", "hdl=hdl%2Fx", headers=FORM)) == "https://hdl.example/"
    answer = server.post("/12345/multi", "index=3", headers=FORM)
    assert location_of(answer) == "https://example.org/three"


def test_own_form_gets_redirecting_page(server: Harness) -> None:
    answer = server.post("/", "hdl=12345%2Furl&page=yes", headers=FORM)
    assert answer.status == 200
    page = page_of(answer)
    refresh = [each for tag, each in page.elements if tag == "meta" and each.get("http-equiv") == "refresh"]
    assert [each["content"] for each in refresh] == ["0; url=https://example.org/a"]
    assert "https://example.org/a" in page.links
    assert server.post("/", "hdl=12345%2Fabsent&page=yes", headers=FORM).status == 404
    assert server.post("/", "hdl=12345%2Fgone&page=yes", headers=FORM).status == 410


@pytest.mark.parametrize("body", ["", "hdl=", "hdl=+", "x=y"])
def test_empty_form_gets_front_page(server: Harness, body: str) -> None:
    assert page_of(server.post("/", body, headers=FORM)).title == page_of(server.get("/")).title


def test_other_posts_are_not_forms(server: Harness) -> None:
    for type_ in ("application/json", "application/x-hdl-message", "text/plain"):
        answer = server.post("/", "hdl=12345%2Furl", headers={"Content-Type": type_})
        assert page_of(answer).title == page_of(server.get("/")).title


def test_large_form_is_refused(server: Harness) -> None:
    answer = server.post("/", b"hdl=" + b"x" * 20_000, headers=FORM)
    assert (answer.status, page_of(answer).title) == (413, "Bad Request")


def test_front_page_ignores_query(server: Harness) -> None:
    assert page_of(server.get("/?hdl=12345/url")).title == page_of(server.get("/")).title


@pytest.mark.parametrize(("method", "status"), [("PUT", 405), ("DELETE", 405), ("TRACE", 405), ("PATCH", 501)])
def test_other_methods(server: Harness, method: str, status: int) -> None:
    answer = server.ask(method, "/12345/url")
    assert (answer.status, answer.body) == (status, b"")


# Additional records


def create_once(server: Harness, name: str, *values: Value) -> None:
    if server.get(f"/api/handles/{name}").status == 404:
        create(server, name, *values)


def add_once(server: Harness, prefix: str, *values: Value) -> None:
    if server.get(f"/api/handles/0.NA/{prefix}").status == 404:
        add_namespace(server, prefix, "free", *values)

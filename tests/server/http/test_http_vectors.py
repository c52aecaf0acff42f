"""Compatibility with the deployed server over HTTP: every recorded exchange is replayed and compared.

Status, headers and body are compared field by field. Allowed differences are listed in `DIFFERENCES` with their
exchanges and reasons; `http_vectors` defines what is compared and what varies.
"""

import re
from collections.abc import Callable

import pytest

from tests.server.http.http_vectors import FILE, NAMES, VECTORS
from tests.server.http.replays import hold_in_process, hold_over_network
from tests.server.native.recorded_answers import ABSENT, Difference, Found, Value
from tests.vector_files import Vector, parameters

VECTOR_FILES = (FILE,)


def one_of(*names: str) -> str:
    return "|".join(names)


def all_but(*names: str) -> str:
    return f"(?!(?:{'|'.join(names)})$).*"


def says(text: Value) -> Callable[[Value, Value], bool]:
    return lambda ours, _: ours == text


def adds(text: str) -> Callable[[Value, Value], bool]:
    """Our response has something that the recorded one lacks."""
    return lambda ours, theirs: theirs == ABSENT and re.fullmatch(text, str(ours)) is not None


REDIRECTIONS = one_of(
    "proxy-redirect",
    "proxy-multiple-urls",
    "proxy-location-encoded",
    "proxy-urlappend",
    "proxy-alias",
    "proxy-loc-(weighted|locatt|http10|accept|malformed)",
    "proxy-link-headers",
    "proxy-hdl-colon",
)
PAGES = one_of("proxy-noredirect", "proxy-type", "proxy-showurls")
ERROR_PAGES = one_of("proxy-alias-loop", "proxy-not-found")
READ = one_of(
    "get(-pretty|-type|-type-prefix|-two-types|-index|-case|-utf8|-callback|-auth-cert-flags|-prefix-handle)?",
    "get-(slashless|index-union-type|formats)",
    "head",
    "enc-all-encoded",
    "enc-least",
    "site",
)
READ_BY_SOMEBODY = one_of(
    "get-restricted-basic-https", "auth-handle-token-and-case", "auth-server-signature", "session-use-hidden"
)
NOTHING_FOUND = one_of("get-missing-value", "get-restricted-basic-http", "auth-handle-session-over-http")
BETTER_BASIC = one_of("auth-basic-colon-not-encoded", "auth-basic-index-0")
NOT_BELIEVED = one_of("get-basic-wrong", "auth-handle-unknown-session", "auth-bearer", "session-life-6-use-after")
NO_SUCH_SESSION = one_of("session-post-http", "session-life-5-get-after")

DIFFERENCES = (
    # What every answer has
    Difference(".*", r"header\.x-content-type-options", "no browser is to guess what an answer is", adds("nosniff")),
    Difference(
        all_but(REDIRECTIONS),
        r"header\.(referrer-policy|content-security-policy)",
        "an answer that a browser shows may do nothing there, and tells nobody which name was looked at",
        adds(".+"),
    ),
    Difference(
        ".*", r"header\.access-control-allow-origin", "credentials never go with it, so all may read (3.6)", says("*")
    ),
    Difference("cors-401", r"header\.vary", "the answer is the same for every origin", says(ABSENT)),
    Difference(
        "cors-preflight",
        r"header\.access-control-allow-headers",
        "scripts may also make a change on a condition",
        lambda ours, theirs: str(ours).startswith(f"{theirs},"),
    ),
    Difference(
        all_but("options", "cors-preflight"),
        r"header\.cache-control",
        "caches are told how long what may be kept (4.3)",
        adds(r"no-store|no-cache|public, max-age=(60|300|86400)"),
    ),
    Difference(
        one_of(READ, NOTHING_FOUND),
        r"header\.vary",
        "whoever says who they are may get more, and whoever names a time something else",
        adds("Authorization, Accept-Datetime"),
    ),
    Difference(
        one_of(REDIRECTIONS, PAGES, ERROR_PAGES, "proxy-no-such-type"),
        r"header\.vary",
        "the form of an answer follows from what the client takes and the time it names, and every answer says so",
        lambda ours, _: str(ours).startswith("Accept"),
    ),
    Difference(
        one_of(READ, READ_BY_SOMEBODY, BETTER_BASIC, PAGES, "post-native", "proxy-no-such-type"),
        r"header\.etag",
        "an answer says which state it shows (4.3)",
        adds('"[0-9a-f]+"'),
    ),
    Difference(
        "options", r"header\.allow", "TRACE is served nowhere (2)", says("GET, HEAD, POST, PUT, DELETE, OPTIONS")
    ),
    # The API
    Difference(
        one_of("put-create", "put-index-various", "put-mint", "auth-handle-answer", "put-formats"),
        r"header\.location",
        "who creates something is told where it is (6.2)",
        adds("/api/handles/20.500.99999/vec-.*"),
    ),
    Difference("put-mint", r"body\.warnings.*", "who stores a URL that nobody can follow is told so", adds(".+")),
    Difference(
        "get-formats", r"body\.values\.order", "values come by ascending index (5.1)", says("[1, 2, 3, 4, 5, 6, 100]")
    ),
    Difference(
        one_of(
            READ.replace("|site", ""), READ_BY_SOMEBODY, NOTHING_FOUND, BETTER_BASIC, "auth-basic-utf8-colon-secret"
        ),
        r"header\.link\.<.*",
        "a record says where its past is to be had: at the same address",
        adds(r'<https://hdl\.example\.org/api/handles/.*>; rel="original timegate"'),
    ),
    # Who asks
    Difference(
        NOT_BELIEVED,
        r"header\.content-type|body(\.(responseCode|handle))?",
        "whoever is not believed is told so, and why (4.2)",
    ),
    Difference(NO_SUCH_SESSION, r"header\.content-type|body(\.error)?", "a refusal says why (6.10)"),
    Difference(
        BETTER_BASIC,
        r"status|header\.content-type|challenge\..*|body.*",
        "a name whose colon is not encoded, and one without an index, mean what they can only mean (7.2)",
    ),
    Difference(
        "session-life-3-put-wrong",
        r"status|challenge\..*",
        "a wrong proof is 401, also where somebody is known; they stay known (6.10)",
    ),
    # Resolution
    Difference(
        PAGES, r"header\.expires", "a page that is made of values may be kept as long as they say", says(86_400)
    ),
    Difference("proxy-multiple-urls", r"header\.location|body", "of several URLs the lowest index counts"),
    Difference(
        one_of("proxy-location-encoded", "proxy-urlappend"),
        r"body",
        "the link is the address that the header has, and no other one",
    ),
    Difference(
        "proxy-alias",
        r"header\.location",
        "its own address is the declared one, never what a request names as host",
        says("https://hdl.example.org/20.500.99999/vec-std?x=1"),
    ),
    Difference(
        "proxy-loc-malformed",
        r"status|header\.(location|expires)",
        "locations that cannot be read do not hide the URL beside them",
    ),
    Difference(
        one_of(REDIRECTIONS, PAGES, "proxy-alias-loop", "proxy-no-such-type"),
        r"header\.link\.<.*",
        "a name is linked with its past, its other forms, and what its record says of it",
        adds(r"<.*>; rel=.*"),
    ),
    Difference(
        "post-native",
        r"header\.link\.<.*",
        "the server's own pages have no past that could be asked for",
        adds(r'<http://mementoweb\.org/terms/donotnegotiate>; rel="type"'),
    ),
    Difference("proxy-link-headers", r"header\.x-extra", "a record may add headers of a few names only", says(ABSENT)),
)
"""All differences that are allowed. A test fails if one of them is no longer needed."""


@pytest.fixture(scope="module", params=["in-process", "over-the-network"])
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Found]]:
    """All exchanges, replayed once without sockets, and once with a running server."""
    if request.param == "in-process":
        return hold_in_process()
    return hold_over_network(tmp_path_factory.mktemp("http-vectors"))


@pytest.mark.parametrize("vector", parameters(FILE))
def test_recorded_request_gets_recorded_response(held: dict[str, list[Found]], vector: Vector) -> None:
    name = vector["name"]
    unexplained = [found for found in held[name] if not any(one.covers(name, found) for one in DIFFERENCES)]
    assert not unexplained


def test_every_recorded_exchange_was_replayed(held: dict[str, list[Found]]) -> None:
    assert len(VECTORS) == 120
    assert list(held) == NAMES


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: re.sub(r"[^a-z]+", "-", one.reason)[:40])
def test_every_allowed_difference_occurs(held: dict[str, list[Found]], difference: Difference) -> None:
    concerned = [name for name in NAMES if difference.concerns(name)]
    assert concerned
    unneeded = [name for name in concerned if not any(difference.covers(name, found) for found in held[name])]
    assert not unneeded, f"the answers are as recorded; take them out of the table: {unneeded}"


def test_unlisted_difference_is_detected() -> None:
    for name in NAMES:
        for found in (Found("header.content-length", 1, 2), Found("body.values[0].index", "1", "2")):
            covered = [one.reason for one in DIFFERENCES if one.covers(name, found)]
            assert not covered or re.fullmatch(BETTER_BASIC, name)

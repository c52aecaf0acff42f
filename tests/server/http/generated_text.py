"""Words for generated requests: names, parameter names and values."""

from typing import Final

from hypothesis import strategies as st

from perseid.server.http.resolver.paths import RESOLVER_PARAMETERS
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX

INJECTED: Final = "\r\nX-Injected: yes\r\n\r\n<script>alert(1)</script>"

NASTY = st.sampled_from(
    [
        *(INJECTED, "\n\nX-Injected: 1", "../../etc/passwd", "..", "//evil.example/", "javascript:alert(1)", "\x00"),
        *("<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "%s%n{0}{{7*7}}${7*7}", "'; DROP TABLE x--"),
        *(
            "\ud7ff\ue000\ufffd\uffff",
            "\u202e\u2066",
            "ü" * 300,
            "9" * 400,
            "-1",
            "0",
            "2147483648",
            "1e309",
            "NaN",
            "null",
        ),
        *("true", "[]", "{}", " ", "\t", ";", "&", "=", "?", "#", "a/b/c", "*", "**", "a*b?c", "(((((", "[[[[", "\\"),
    ]
)
TEXTS = NASTY | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KNOWN = [f"{PREFIX}/n{number}" for number in range(0, NAMES, 9)]
KNOWN += [
    f"{PREFIX}/private",
    f"{PREFIX}/long",
    f"{PREFIX}/made-up",
    f"{PREFIX}/",
    PREFIX,
    f"0.NA/{PREFIX}",
    "0.NA/0.NA",
]
KNOWN += ["999/x", "0.TYPE/URL", "0.SITE/status", "URL", "2026-11-01T00:00:00Z", "1", "300", ADMINISTRATOR]


def mostly(usual: st.SearchStrategy[str], other: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Usual values, and sometimes others."""
    return st.integers(0, 5).flatmap(lambda number: usual if number else other)


NEW = st.integers(0, 99).map(lambda number: f"{PREFIX}/new-{number}")
SPOKEN = mostly(st.sampled_from(KNOWN) | NEW, st.builds(lambda suffix: f"{PREFIX}/{suffix}", TEXTS) | TEXTS)

PARAMETERS = st.sampled_from(
    [
        *sorted(RESOLVER_PARAMETERS),
        *(
            "index",
            "type",
            "publicOnly",
            "overwrite",
            "mintNewSuffix",
            "prefix",
            "page",
            "pageSize",
            "pretty",
            "callback",
        ),
        *(
            "after",
            "doNotRefer",
            "nonce",
            "cnonce",
            "alg",
            "signature",
            "salt",
            "iterations",
            "length",
            "sessionId",
            "hdl",
        ),
        *("limit", "cursor", "at", "URL", "q", "format", "style", "size", "host", "from", "until", "count", "handle"),
    ]
)
SAID = st.sampled_from(
    [
        *(
            "",
            "true",
            "false",
            "yes",
            "1",
            "3",
            "-1",
            "0",
            "various",
            "URL",
            "URL.",
            "HS_ADMIN",
            PREFIX,
            f"0.NA/{PREFIX}",
        ),
        *("showvalues", "showurls", "api", "explain", "metadata", "redirect", "alert", "role:metadata", "id:0", "SHA1"),
        *(
            "HMAC-SHA256",
            "PBKDF2-HMAC-SHA1",
            "AAAAAAAAAAAAAAAAAAAAAA==",
            "1000000000",
            "2026-01-01T00:00:00Z",
            "192.0.2.1",
        ),
        *("*example.org*", "https://example.org/1", "bibtex", "csl-json", "apa"),
    ]
)

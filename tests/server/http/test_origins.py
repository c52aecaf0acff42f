"""Detection of cross-site requests."""

import pytest

from perseid.server.http.clients import is_cross_site
from perseid.server.http.messages import Client
from tests.server.http.auth_servers import STRANGER, AuthServer


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"sec_fetch_site": "same-origin"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"sec_fetch_site": "same-site"}, True),
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "Cross-Site", "origin": "https://hdl.example.org"}, True),
        ({"origin": "https://hdl.example.org"}, False),
        ({"origin": "HTTPS://HDL.example.org"}, False),
        ({"origin": "http://hdl.example.org"}, True),
        ({"origin": "https://hdl.example.org:8000"}, True),
        ({"origin": "https://hdl.example.org.evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": ""}, True),
    ],
)
def test_browser_reports_origin(auth_server: AuthServer, headers: dict[str, str], foreign: bool) -> None:
    assert is_cross_site(auth_server.request_context(**headers)) == foreign  # type: ignore[arg-type]


def test_origin_without_public_url(auth_server: AuthServer) -> None:
    auth_server.configure(public_url="")
    assert is_cross_site(auth_server.request_context(origin="https://hdl.example.org"))
    assert not is_cross_site(auth_server.request_context())


def test_path_of_public_url_is_not_part_of_origin(auth_server: AuthServer) -> None:
    auth_server.configure(public_url="https://hdl.example.org/x")
    assert not is_cross_site(auth_server.request_context(origin="https://hdl.example.org"))


@pytest.mark.parametrize(
    ("origin", "secure", "foreign"),
    [
        ("https://192.0.2.7:8000", True, False),
        ("http://192.0.2.7:8000", True, True),
        ("http://192.0.2.7:8000", False, False),
        ("https://192.0.2.7", True, True),
    ],
)
def test_host_of_request_is_own_origin(auth_server: AuthServer, origin: str, secure: bool, foreign: bool) -> None:
    """Elsewhere `Host` is ignored; but a browser sets it, and what it knows of us is sent to no other name."""
    request_context = auth_server.request_context(origin=origin, client=Client(STRANGER, secure=secure))
    request_context.request.headers.append(("host", "192.0.2.7:8000"))
    assert is_cross_site(request_context) == foreign

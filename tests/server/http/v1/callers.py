"""Identities that call the HTTP API in tests, and common requests for records."""

import secrets
from typing import Any
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.record import Value, ValueRef
from perseid.registry.access.permissions import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.records import Create, Remove
from perseid.registry.identity import KeyIdentity, Proof
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, send
from tests.server.installations import OPERATOR

ANN = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
"""The administrator of 12345 and of the server."""

URL = {"type": "URL", "data": "https://example.org/"}


def with_token(server: Harness, *words: str, where: tuple[str, ...] | None = ("12345",)) -> dict[str, str]:
    """Return the header of a token of Ann with scopes."""
    secret = Secret.new(secrets.token_bytes)
    server.registry.do(CreateToken(secret, ScopeSet.of(words, where), "", 1_000), ANN, "cli")
    return {"Authorization": f"Bearer {secret.text()}"}


def keyed(key: str) -> dict[str, str]:
    """Return the headers of Ann with an idempotency key."""
    return {**basic(), "Idempotency-Key": key}


def clear_responses(server: Harness) -> None:
    """Redact a value, after which stored responses are dropped."""
    handle = Handle.parse("12345/erased")
    made = server.registry.do(Create(handle, (Value.text(8, "DESC", "a typo"),)), OPERATOR, "cli")
    server.registry.do(Remove(handle, (8,)), OPERATOR, "cli")
    server.registry.do(Redact(handle, 8, made.seq, "law"), OPERATOR, "cli")


def at(handle: str, more: str = "") -> str:
    """Return the path of a handle, and of what is under it."""
    return f"/handles/{quote(handle, safe='')}{more}"


def create(server: Harness, handle: str, **more: object) -> Any:
    """Create a record as Ann, by default with a URL."""
    return got(send(server, "POST", "/handles", {"handle": handle, "values": [URL], **more}, headers=basic()), 201)


def record(server: Harness, handle: str, query: str = "", **how: Any) -> Any:
    """Read a record."""
    return got(send(server, "GET", at(handle, query), **how))


def change(server: Harness, method: str, path: str, plain: object = None, **headers: str) -> Any:
    """Send a change as Ann."""
    return got(send(server, method, path, plain, headers={**basic(), **headers}))

"""Who asks our own API, and what is asked most: records read and made."""

import secrets
from typing import Any
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.value import Value, ValueRef
from perseid.registry.access.scopes import ScopeSet
from perseid.registry.access.token_records import Secret
from perseid.registry.access.tokens import CreateToken
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.commands.records import Create, Remove
from perseid.registry.identity import KeyIdentity, Proof
from tests.server.http.contexts import Harness, basic
from tests.server.http.v1.apis import got, send
from tests.server.installations import OPERATOR

ANN = KeyIdentity(ValueRef(300, "0.NA/12345"), Proof.SECRET_KEY)
"""Who administers 12345, and the server."""

URL = {"type": "URL", "data": "https://example.org/"}


def with_token(server: Harness, *words: str, where: tuple[str, ...] | None = ("12345",)) -> dict[str, str]:
    """The header of a program that acts for Ann, within a scope."""
    secret = Secret.new(secrets.token_bytes)
    server.registry.do(CreateToken(secret, ScopeSet.of(words, where), "", 1_000), ANN, "cli")
    return {"Authorization": f"Bearer {secret.text()}"}


def keyed(key: str) -> dict[str, str]:
    """The headers of Ann, who wants something done once."""
    return {**basic(), "Idempotency-Key": key}


def clear_responses(server: Harness) -> None:
    """Erase something from the ledger, after which no answer is kept that was given before."""
    handle = Handle.parse("12345/erased")
    made = server.registry.do(Create(handle, (Value.text(8, "DESC", "a slip"),)), OPERATOR, "cli")
    server.registry.do(Remove(handle, (8,)), OPERATOR, "cli")
    server.registry.do(Redact(handle, 8, made.seq, "law"), OPERATOR, "cli")


def at(handle: str, more: str = "") -> str:
    """The path of a name, and of what is below it."""
    return f"/handles/{quote(handle, safe='')}{more}"


def create(server: Harness, handle: str, **more: object) -> Any:
    """Make a record as Ann; with a URL, if nothing else is said."""
    return got(send(server, "POST", "/handles", {"handle": handle, "values": [URL], **more}, headers=basic()), 201)


def record(server: Harness, handle: str, query: str = "", **how: Any) -> Any:
    """What a name stands for."""
    return got(send(server, "GET", at(handle, query), **how))


def change(server: Harness, method: str, path: str, plain: object = None, **headers: str) -> Any:
    """Change something as Ann."""
    return got(send(server, method, path, plain, headers={**basic(), **headers}))

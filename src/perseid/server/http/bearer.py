"""The `Bearer` scheme of the Authorization header (RFC 6750): a token that somebody who holds a key has made.

    Bearer perseid_k7qpx2ma…

A token is recognised by its id, which is no secret, and by the hash of the rest, compared in constant time. Whether it
counts is looked up again in the very state in which an operation is decided (`Registry.do`), as a `Guard` does for
keys: who revokes a token ends it at once. A browser never sends one by itself.

A token that is not known counts as a failed proof of whoever shows it. Nobody can be locked out of their own token by
others who show wrong ones with its id, which is in logs: it is by all of its text that guesses are told apart, and a
right one is never wrong.
"""

import hashlib
from typing import Final

from perseid.registry.access.token_records import PREFIX, InvalidToken, Secret
from perseid.registry.identity import Tokened
from perseid.registry.results import Refused
from perseid.server.http.auth.proofs import Unproved
from perseid.server.native_steps import Kind

from .context import Asking
from .judging import Verdict

UNKNOWN: Final = (
    "the scheme of the Authorization header is not known here, or holds no token; tokens begin with perseid_"
)
"""What is said of a text that looks like no token of ours."""

INVALID: Final = 'Bearer realm="handle", error="invalid_token"'
"""How a challenge says that a token does not count (RFC 6750, 3.1)."""

_TARGET: Final = b"token "  # no handle begins so: a prefix has no blank in it


def is_token(text: str) -> bool:
    """Whether somebody wanted to show a token of ours."""
    return text.startswith(PREFIX)


async def by_token(asking: Asking, text: str) -> Tokened | Unproved:
    """Who shows a token: what stands behind the name of the scheme. Raises `Busy`."""
    if not is_token(text):
        return Unproved(UNKNOWN, told=False)
    try:
        Secret.parse(text)
    except InvalidToken as problem:
        return Unproved(f"the token was not accepted: {problem}", told=False)
    place = asking.place
    target = _TARGET + hashlib.sha256(text.encode("utf-8", "replace")).digest()
    tokens = place.api.tokens(place.registry)
    try:
        shown = await asking.do(Kind.READ, lambda: tokens.authenticate(text), secret_of=target)
    except Refused as refused:
        place.judge(Verdict(right=False, secret_of=target), asking.request.client)
        return Unproved(f"the token was not accepted: {refused}", told=False)
    place.judge(Verdict(right=True, secret_of=target), asking.request.client)
    return shown

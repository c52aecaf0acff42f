"""What whoever watches over the server asks: whether it is alive, and whether it should get requests.

    GET /healthz   200 as long as there is somebody to say so
    GET /readyz    200 if requests should come; 503 with the reason if they should go elsewhere

The first is for who restarts what hangs, the second for who distributes requests. The answer is a line of text, or JSON
for those who accept that and say so. It holds nothing that strangers may not know, so anybody may ask.
"""

import json
from typing import Final

from .context import Asking
from .messages import HeaderList, Response

ALIVE_PATH: Final = b"/healthz"
READY_PATH: Final = b"/readyz"

RETRY_AFTER: Final = 5
"""Seconds after which it is worth asking again: a view that follows the ledger again, or another server."""

_JSON = "application/json"
_AT_ONCE: HeaderList = (("Cache-Control", "no-store"),)


async def answer(asking: Asking) -> Response:
    """The answer to one of the two paths, for any method that reads."""
    if asking.request.path == READY_PATH:
        reason = asking.place.ready()
        facts: dict[str, object] = {"ready": not reason} | ({"reason": reason} if reason else {})
        return _told(asking, 503 if reason else 200, facts, f"not ready: {reason}" if reason else "ready")
    return _told(asking, 200, {"alive": True}, "alive")


def _told(asking: Asking, status: int, facts: dict[str, object], line: str) -> Response:
    as_json = _JSON in asking.request.joined("accept").lower()
    body = json.dumps(facts) if as_json else line
    kind = f"{_JSON};charset=utf-8" if as_json else "text/plain;charset=utf-8"
    headers: HeaderList = (("Content-Type", kind), *_AT_ONCE)
    if status == 503:
        headers += (("Retry-After", str(RETRY_AFTER)),)
    return Response(status, headers, body.encode() + b"\n")

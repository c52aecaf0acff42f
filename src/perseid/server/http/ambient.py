"""Credentials that a browser sends by itself, and what they may not do.

A browser remembers passwords and certificates and sends them with every request to this server, also with one that a
page of somebody else makes it send. So for a change they count only if the request says that it is JSON, which no form
can say and no script of another site without being allowed to, and if nothing says that it comes from another site.
The proof of a `Handle` header or its session is written by whoever makes the request, and always counts.

A DELETE, and a POST that homes a prefix, may have no body. No form sends a DELETE, and a script of another site has to
ask first. A POST without a body and without a type can be sent by such a script unasked, but every browser says then
where it comes from; so that counts only from where nothing is said, which is no browser.
"""

from typing import Final

from .bodies import JSON_TYPE, media_type
from .context import Asking
from .origins import is_foreign

REASON: Final = (
    "credentials that a browser sends by itself do not count here, because {}; "
    "use a session or the Handle scheme, or send Content-Type: application/json from this site itself"
)


def objection(asking: Asking) -> str | None:
    """Why ambient credentials do not count for a change; None if they do."""
    request = asking.request
    if is_foreign(asking):
        return REASON.format("the request was made by a page of another site")
    is_typed = request.header("content-type") is not None
    if media_type(request) == JSON_TYPE or (request.method == "DELETE" and not is_typed):
        return None
    is_from_browser = any(request.header(name) is not None for name in ("origin", "sec-fetch-site"))
    if not is_typed and not request.body and not is_from_browser:
        return None
    return REASON.format("the request does not say that it is JSON")

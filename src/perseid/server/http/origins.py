"""Where a request was made: whether a page of another site has a browser make it, and at which address of this server.

A browser sends some proofs by itself, whoever's page it is that makes the request: a password that it remembers, a
certificate. So a request that comes with one of them and from a page of somebody else is not what its owner asked for.
Browsers say where a request comes from in `Sec-Fetch-Site`, and older ones in `Origin`; programs say nothing, and it is
theirs.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from .context import Asking

OWN: Final = frozenset(("same-origin", "none"))
"""What `Sec-Fetch-Site` says where no other page is behind it: one of ours, or somebody who typed the address."""

UNNAMED: Final = "https://server.example"
"""What stands for the address of the server where a request does not name it, or not so that it could be shown."""

_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


def address_asked(asking: Asking) -> str:
    """The address at which a request was made, to be shown to whoever made it and to nobody else.

    It is what they say themselves in `Host`, so nothing may be decided by it, and no other links are made of it. There
    is nothing in it that HTML or a shell would take for something else.
    """
    named = asking.request.header("host") or ""
    if _HOST.fullmatch(named) is None:
        return UNNAMED
    return f"{'https' if asking.request.client.secure else 'http'}://{named}"


def is_foreign(asking: Asking) -> bool:
    """Whether a request is made by a page of another site."""
    request = asking.request
    site = request.header("sec-fetch-site")
    if site is not None and site.lower() not in OWN:
        return True
    origin = request.header("origin")
    return origin is not None and not _is_own(origin, asking)


def _is_own(origin: str, asking: Asking) -> bool:
    """Whether an origin is this server: as the settings name it, or as the browser does that made the request."""
    declared = urlsplit(asking.place.settings.public_url)
    named = asking.request.header("host")
    own = {f"{declared.scheme}://{declared.netloc}"} if declared.netloc else set()
    if named:
        own.add(f"{'https' if asking.request.client.secure else 'http'}://{named}")
    return origin.lower() in {each.lower() for each in own}

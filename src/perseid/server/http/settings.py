"""How HTTP is served here, as the settings of the installation say it."""

from dataclasses import dataclass
from typing import Final, Self

from perseid.registry.installation.setting_http import BARE
from perseid.registry.installation.settings import Config

SEGMENT: Final = "hdl"
"""The segment behind which every handle can be reached, whatever the server's own paths are called."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How HTTP is served."""

    public_url: str = ""
    """The address of this server as others know it, `https://hdl.example.org`, without a slash at the end."""
    bare: bool = True
    """Whether `/{handle}` resolves."""
    segments: tuple[str, ...] = (SEGMENT,)
    """Segments behind which `/{segment}/{handle}` resolves; the one of `SEGMENT` always does."""
    redirect_status: int = 302
    """Of a redirection, where the record does not choose one."""
    schemes: frozenset[str] = frozenset(("http", "https", "ftp", "mailto"))
    """Schemes of URLs that are redirected to, and linked on pages."""
    no_values_status: int = 200
    """Of the page for a name without public values; 404 is for link checkers, which take 200 for alive."""
    weak_digests: bool = True
    """Whether MD5 and SHA-1 may be used to prove an identity, as deployed clients do."""
    session_timeout: int = 1_800
    """Seconds of idleness after which a session of the API ends, as in deployed servers."""
    api_requests: int = 6_000
    """Requests to our own API in a minute by one identity; 0 for no limit. A hundred a second: whoever needs more asks
    for many things in one request."""
    api_requests_anonymous: int = 600
    """The same by one network from which nobody says who they are: ten a second, more than anybody reads."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """What the settings of an installation say."""
        forms = config.http_resolver_forms
        segments = tuple(dict.fromkeys(each for each in (*forms, SEGMENT) if each != BARE))
        return cls(
            public_url=config.http_public_url,
            bare=BARE in forms,
            segments=segments,
            redirect_status=config.http_redirect_status,
            schemes=frozenset(config.http_schemes),
            no_values_status=config.http_no_values_status,
            weak_digests=config.http_weak_digests,
            api_requests=config.http_api_requests,
            api_requests_anonymous=config.http_api_requests_anonymous,
        )

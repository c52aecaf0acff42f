"""What `perseid check` has to say about HTTP: the certificate, and settings that do not go together."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from perseid.registry.installation.certificates import SOON, Credentials, find
from perseid.registry.installation.installation import InstallationProblem
from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.settings import Config
from perseid.registry.installation.site import identify

from ._findings import Finding, Level

_ABOUT = "http"


def http_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Whether HTTPS can be served, for how long, and what clients will think of it."""
    if not config.http_enabled:
        yield Finding(_ABOUT, Level.OK, "it is not served (http.enabled is false)")
        return
    if config.http_listen is Listen.HTTP:
        yield from _behind_a_proxy(config)
        yield Finding(_ABOUT, Level.OK, "plain HTTP is served, so no certificate is needed (http.listen is http)")
        return
    try:
        found = find(directory, config, identify(directory, config).key)
    except InstallationProblem as problem:
        yield Finding(_ABOUT, Level.WRONG, str(problem))
        return
    if found is None:
        message = "there is no self-signed certificate for the key and hosts of today"
        yield Finding(_ABOUT, Level.NOTE, message, "the server makes one when it starts, or on SIGHUP")
        return
    yield from _certificate(found, config)
    yield from _readable(directory, config)


def _certificate(found: Credentials, config: Config) -> Iterator[Finding]:
    now = datetime.now(UTC)
    leaf = found.chain[0]
    end = leaf.not_valid_after_utc
    for remark in found.remarks(config, now):
        yield Finding(_ABOUT, Level.WRONG if now > end else Level.NOTE, remark)
    if now > end:
        return
    if found.is_own:
        yield Finding(_ABOUT, Level.OK, f"HTTPS has a self-signed certificate: {found.path}")
    elif now <= end - SOON:
        days = (end - now).days
        yield Finding(_ABOUT, Level.OK, f"the certificate in {found.path} is valid for another {days} days")


def _readable(directory: Path, config: Config) -> Iterator[Finding]:
    """A private key that everybody can read."""
    path = directory / (config.http_key_file or config.http_certificate_file)
    with suppress(OSError):
        if config.http_certificate_file and path.stat().st_mode & stat.S_IROTH:
            message = f"everybody may read {path}, and the private key for HTTPS is in it"
            yield Finding(_ABOUT, Level.NOTE, message, f"close it with: chmod o= {path}")


def _behind_a_proxy(config: Config) -> Iterator[Finding]:
    if config.http_public_url.lower().startswith("https:") and not config.http_trusted_proxies:
        message = "http.public_url is an https address and only plain HTTP is spoken here, so something passes it on"
        advice = "name it in http.trusted_proxies; otherwise nobody can prove who they are over HTTP"
        yield Finding(_ABOUT, Level.NOTE, message, advice)

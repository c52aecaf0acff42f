"""Sessions of the web console: who has signed in, under the secret id in a cookie, in the state of all processes.

A session stores what proved the identity, and no secret: the fingerprint of the key, or the id of the token. Every
command checks that again (`Guard`, `check_token_identity`), so a removed key or revoked token ends what a session can
do at once. A session ends when its user signs out, here or everywhere, after a time without use, at the latest after a
fixed time, and with the server.

A page of another site can make a browser send the cookie, so the cookie alone changes nothing: every form has a token
that is bound to the session, and a script sends such a token in a header. The random number in the token is the
idempotency key: a form that is sent twice, by a double click or a reload, is executed once.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from perseid.registry.identity import Identity, TokenIdentity, quota_key
from perseid.server.http.messages import Request
from perseid.server.native.authentication import Guard
from perseid.server.state.jobs import Credentials
from perseid.server.state.state import Entry, SharedState, StateFull

SECURE_COOKIE: Final = "__Host-perseid"
"""The cookie over HTTPS. The prefix makes browsers refuse it from other hosts and without TLS."""

LOCAL_COOKIE: Final = "perseid"
"""The cookie over plain HTTP, which is for this machine only."""

CSRF_FIELD: Final = "csrf"
"""The field of a form with its token."""

CSRF_HEADER: Final = "x-csrf-token"
"""The header with a token in a request of a script."""

IDLE_SECONDS: Final = 3_600
"""Seconds without use after which a session ends: a long meeting, but not a lunch and a walk."""

MAX_SECONDS: Final = 12 * 3_600
"""Seconds after which a session ends in any case: a working day."""

MAX_SESSIONS: Final = 10_000
"""Sessions of all users; the one that would end first is evicted."""

MAX_PER_IDENTITY: Final = 100
"""Sessions of one identity: a shared identity in an office with many machines."""

MAX_BYTES: Final = 16 << 20
"""Bytes of all sessions. One has some hundred, unless the identity has a very long handle."""

USE_INTERVAL: Final = 60
"""Seconds after which a further use is written, so that most requests only read."""

ID_BYTES: Final = 24
"""Random bytes of an id: 192 bits, in 32 characters."""

MAX_ID_LENGTH: Final = 128
"""Characters of an id that is looked up; valid ones have 32."""

NUMBER_BYTES: Final = 16
"""Random bytes of a form token; long enough to be unique."""

_VERSION: Final = 1
_TAG_BYTES: Final = hashlib.sha256().digest_size
_TOKEN_BYTES: Final = NUMBER_BYTES + _TAG_BYTES
_MAX_TOKEN: Final = 2 * _TOKEN_BYTES  # longer than its base64 form
_GROUP_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class WebSession:
    """A session, as it was when it was found."""

    id: str = field(repr=False)
    identity: Identity
    guard: Guard | None
    """Checks that the key still exists; None for a token, which every decision checks."""
    method: str
    """How the user signed in: `secret`, `key` or `token`."""
    started: float
    used: float
    token_key: bytes = field(repr=False, compare=False)

    def make_form_token(self, random: Callable[[int], bytes] = secrets.token_bytes) -> str:
        """Create the token of a form."""
        number = random(NUMBER_BYTES)
        return base64.urlsafe_b64encode(number + self._tag(number)).rstrip(b"=").decode()

    def read_form_token(self, token: str) -> bytes | None:
        """Return the number of a token; None if it belongs to another session."""
        try:
            data = b"" if len(token) > _MAX_TOKEN else base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            data = b""
        number, tag = data[:NUMBER_BYTES], data[NUMBER_BYTES:]
        return number if hmac.compare_digest(tag, self._tag(number)) and len(data) == _TOKEN_BYTES else None

    def _tag(self, number: bytes) -> bytes:
        return hmac.digest(self.token_key, number, hashlib.sha256)


class _StoredSession(msgspec.Struct, array_like=True, frozen=True):
    """A session in the shared state; a change of the fields is a new version of the table."""

    started: float
    used: float
    method: str
    credentials: Credentials

    def has_ended(self, now: float) -> bool:
        """Whether it was not used for too long, or has lasted too long."""
        return now - self.used > IDLE_SECONDS + USE_INTERVAL or now - self.started > MAX_SECONDS


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredSession).decode


class WebSessions:
    """The sessions of a server."""

    def __init__(self, state: SharedState, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._random = random
        self._key = hmac.digest(state.key, b"web sessions", "sha256")
        self._table = state.table(
            "web_sessions", version=_VERSION, max_entries=MAX_SESSIONS, max_bytes=MAX_BYTES, clock=time.time
        )

    def begin(self, identity: Identity, guard: Guard | None, method: str, now: float, interface: str) -> WebSession:
        """Start a session under a new id; raises `StateFull`."""
        id_ = base64.urlsafe_b64encode(self._random(ID_BYTES)).decode("ascii")
        stored = _StoredSession(now, now, method, Credentials.of(identity, guard, interface))
        if not self._table.put(self._hash(id_), self._entry(stored)):
            raise StateFull
        return self._to_session(id_, stored)

    def find(self, id_: str, now: float) -> WebSession | None:
        """Find a session and keep it alive; None if it does not exist or has ended."""
        if not 0 < len(id_) <= MAX_ID_LENGTH:
            return None
        key = self._hash(id_)
        data = self._table.get(key, now)
        if data is None:
            return None
        stored = _decode(data)
        if stored.has_ended(now):
            with suppress(StateFull):  # it will be swept
                self._table.delete(key)
            return None
        if now - stored.used >= USE_INTERVAL:
            # It may have ended meanwhile.
            self._table.update(
                key,
                now,
                lambda old: None if old is None else self._entry(msgspec.structs.replace(_decode(old), used=now)),
            )
        return self._to_session(id_, stored)

    def is_active(self, session: WebSession, now: float) -> bool:
        """Whether a session has not ended; this does not keep it alive."""
        data = self._table.get(self._hash(session.id), now)
        return data is not None and not _decode(data).has_ended(now)

    def end(self, session: WebSession) -> None:
        """End a session; raises `StateFull`."""
        self._table.delete(self._hash(session.id))

    def end_all(self, identity: Identity, now: float) -> int:
        """End all sessions of an identity; return how many there were. Raises `StateFull`. Slow: it reads all."""
        own = _owner(identity)
        found = [key for key, data in self._table.items(now) if _owner(_decode(data).credentials.identity) == own]
        return sum(self._table.delete(key) for key in found)

    def of_identity(self, identity: Identity, now: float, current: str = "") -> list[WebSession]:
        """The sessions of an identity, the newest first; without their ids, except that of the `current` one."""
        own, current_key = _owner(identity), self._hash(current)
        stored = [(current if key == current_key else "", _decode(data)) for key, data in self._table.items(now)]
        found = [self._to_session(id_, each) for id_, each in stored if _owner(each.credentials.identity) == own]
        return sorted(found, key=lambda session: session.started, reverse=True)

    def find_for(self, request: Request, now: float) -> WebSession | None:
        """The session of the cookie of a request; None if there is none."""
        id_ = read_cookie(request)
        return None if id_ is None else self.find(id_, now)

    def find_for_script(self, request: Request, now: float) -> WebSession | None:
        """The session of a request to an API, which must have a token of the session in its header as well."""
        token = request.header(CSRF_HEADER)
        session = None if token is None else self.find_for(request, now)
        return session if session is not None and session.read_form_token(token or "") is not None else None

    def _to_session(self, id_: str, stored: _StoredSession) -> WebSession:
        credentials, key = stored.credentials, hmac.digest(self._key, b"forms of " + id_.encode(), "sha256")
        return WebSession(id_, credentials.identity, credentials.guard, stored.method, stored.started, stored.used, key)

    def _entry(self, stored: _StoredSession) -> Entry:
        expires = min(stored.used + IDLE_SECONDS + USE_INTERVAL, stored.started + MAX_SECONDS)
        owner = hashlib.sha256(_owner(stored.credentials.identity).encode("utf-8", "surrogatepass")).digest()
        return Entry(_encode(stored), expires, ((owner[:_GROUP_BYTES], MAX_PER_IDENTITY),))

    def _hash(self, id_: str) -> bytes:
        return hmac.digest(self._key, id_.encode("utf-8", "surrogatepass"), "sha256")


def _owner(identity: Identity) -> str:
    """Whose session it is: a token sees and ends only its own, not those of its issuer."""
    return f"token:{identity.token}" if isinstance(identity, TokenIdentity) else quota_key(identity)


def cookie_name(request: Request) -> str:
    """The name of the cookie on a connection."""
    return SECURE_COOKIE if request.client.secure else LOCAL_COOKIE


def read_cookie(request: Request) -> str | None:
    """The id in the cookie of a request; None if there is none, or several."""
    name = cookie_name(request)
    pairs = (part.partition("=") for header in request.all("cookie") for part in header.split(";"))
    found = [value.strip() for key, _, value in pairs if key.strip() == name]
    return found[0] if len(found) == 1 else None


def set_cookie(request: Request, id_: str) -> tuple[str, str]:
    """The header that stores the id of a session in the browser, until it is closed."""
    return "Set-Cookie", f"{cookie_name(request)}={id_}; {_attributes(request)}"


def delete_cookie(request: Request) -> tuple[str, str]:
    """The header that deletes it."""
    return "Set-Cookie", f"{cookie_name(request)}=; Max-Age=0; {_attributes(request)}"


def _attributes(request: Request) -> str:
    # Lax, so that links from mails to the console work for users who have signed in.
    return f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if request.client.secure else ''}"

"""Replay of the recorded HTTP exchanges in the recorded state, in process or over the network.

A recorded request is sent as it was, unless it depends on the recorded server (session id and nonce): those parts are
computed again from the recorded keys. Responses are compared field by field, without what varies: dates, timestamps,
ids, nonces, minted suffixes, the number of handles, and messages. Signatures that differ are verified here.
"""

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from perseid.names.handle import Handle
from perseid.records.json_form import values_from_json
from perseid.registry.commands.records import Create
from perseid.registry.registry import Registry
from perseid.wire.message import ENVELOPE_LENGTH
from tests.registry.registries import OPERATOR
from tests.server.http.contexts import basic
from tests.server.native.recorded_answers import ABSENT, Found
from tests.vector_files import Vector, load
from tests.wire.key_material import SECRET, SERVER_KEY, private_key

FILE: Final = "http.json"
VECTORS: Final = load(FILE)
NAMES: Final = [vector["name"] for vector in VECTORS]
ADMINISTRATOR: Final = "301:0.NA/20.500.99999"

NO_SESSION: Final = "nope"
"""The id in the recorded exchanges that was no session there either."""

_FIELD: Final = re.compile(r'(\w+)="?([^",\s]*)"?')
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NONCE_OCTETS: Final = 16
_WORDS: Final = frozenset(("message",))
_PASSED_OVER: Final = frozenset(("date", "content-length", "transfer-encoding", "connection", "keep-alive"))
"""Headers that belong to the connection; their tests are elsewhere."""

_EXPIRES_IN: Final = slice(16, 20)  # of the header of a native message, behind its envelope


IMPORTED: Final = frozenset(("20.500.99999/vec-h-loop",))
"""Records of the recorded server that clients cannot create here: an alias of itself."""


def import_state(registry: Registry) -> None:
    """Import the records of the exchanges that clients cannot create."""
    for record in load("http/state.json"):
        if record["handle"] in IMPORTED:
            values = tuple([value.with_timestamp(0) for value in values_from_json(record)])
            registry.do(Create(Handle.parse(record["handle"]), values), OPERATOR, "import")


@dataclass(frozen=True)
class Sent:
    """A request as it is sent."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    secure: bool
    version: str


@dataclass(frozen=True)
class Received:
    """A response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    now: float
    """What the server's clock showed."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Replay:
    """Replays the recorded exchanges, one after the other."""

    send: Callable[[Sent], Received]
    nonces: dict[str, bytes] = field(default_factory=dict)
    """Of the sessions of our server."""
    ids: dict[str, str] = field(default_factory=dict)
    """The sessions of our server that stand for the recorded ones."""

    def load_state(self) -> None:
        """Create the records of the exchanges, as an administrator; `import_state` creates the others."""
        for record in load("http/state.json"):
            if record["handle"] in IMPORTED:
                continue
            path = "/api/handles/" + quote(record["handle"], safe="")
            headers = [("Content-Type", "application/json"), *basic(ADMINISTRATOR, SECRET).items()]
            answer = self.send(Sent("PUT", path, headers, json.dumps(record).encode(), True, "1.1"))
            assert answer.status == 201, (record["handle"], answer)

    def hold(self, vector: Vector) -> list[Found]:
        """Replay one exchange; return the fields in which our response differs."""
        sent = self._request(vector)
        received = self.send(sent)
        recorded = vector["response"]
        date = parsedate_to_datetime(recorded["headers"]["Date"]).timestamp()
        headers = [
            (name, value)
            for name, values in recorded["headers"].items()
            for value in ([values] if isinstance(values, str) else values)
        ]
        self._learn(vector, sent, received, recorded)
        recorded_body = _recorded_body(recorded)
        body = None if recorded_body is None else received.body
        theirs = dict(self._described(recorded["status"], headers, recorded_body, date, ours=False))
        ours = dict(self._described(received.status, received.headers, body, received.now, ours=True))
        return [
            Found(name, ours.get(name, ABSENT), theirs.get(name, ABSENT))
            for name in ours | theirs
            if ours.get(name, ABSENT) != theirs.get(name, ABSENT)
        ]

    # What is sent

    def _request(self, vector: Vector) -> Sent:
        request = vector["request"]
        headers = dict(request["headers"])
        body = bytes.fromhex(request["body_hex"]) if "body_hex" in request else (request["body"] or "").encode()
        if headers.get("Authorization", "").lower().startswith("handle "):
            scheme, _, rest = headers["Authorization"].partition(" ")
            fields = dict(_FIELD.findall(rest))
            self._renew(vector, fields)
            headers["Authorization"] = f"{scheme} " + ", ".join(f'{name}="{value}"' for name, value in fields.items())
        elif b"sessionId" in body:
            fields = json.loads(body)
            self._renew(vector, fields)
            body = json.dumps(fields).encode()
        return Sent(
            request["method"],
            request["path"],
            list(headers.items()),
            body,
            vector["transport"] == "https",
            request.get("version", "HTTP/1.1").removeprefix("HTTP/"),
        )

    def _renew(self, vector: Vector, fields: dict[str, str]) -> None:
        """Replace the recorded session by ours, with a signature for its nonce."""
        name = next((name for name in fields if name.lower() == "sessionid"), None)
        if name is None or fields[name] == NO_SESSION:
            return
        if fields[name] not in self.ids:
            answer = self.send(Sent("POST", "/api/sessions", [], b"", True, "1.1"))
            plain = json.loads(answer.body)
            self._know(fields[name], plain["sessionId"], plain["nonce"])
        fields[name] = self.ids[fields[name]]
        if "signature" in fields and "keys" in vector:
            fields["signature"] = b64encode(_signature(vector["keys"], fields, self.nonces[fields[name]])).decode()

    def _know(self, recorded: str, ours: str, nonce: str) -> None:
        self.ids[recorded] = ours
        self.nonces[ours] = b64decode(nonce)
        assert len(self.nonces[ours]) == _NONCE_OCTETS

    def _learn(self, vector: Vector, sent: Sent, received: Received, recorded: dict[str, Any]) -> None:
        """Map the recorded session to the one that our server has started."""
        theirs = _session(recorded["headers"].get("WWW-Authenticate", []), recorded["body"])
        ours = _session(received.all("www-authenticate"), _json(received.body))
        if theirs is None or ours is None:
            return
        if theirs["sessionId"] not in self.ids:
            self._know(theirs["sessionId"], ours["sessionId"], ours["nonce"])
        if "serverSignature" in ours:
            told = dict(sent.headers).get("Authorization", "") or sent.body.decode()
            cnonce = re.search(r'cnonce"?\s*[=:]\s*"([^"]+)"', told)
            assert cnonce is not None
            signed = b64decode(ours["nonce"]) + b64decode(cnonce[1])
            assert SERVER_KEY.public.verify("SHA-256", b64decode(ours["serverSignature"]), signed), vector["name"]

    # What comes back

    def _described(
        self, status: int, headers: Sequence[tuple[str, str]], body: bytes | None, now: float, *, ours: bool
    ) -> Iterator[tuple[str, str | int]]:
        yield "status", status
        for name, value in headers:
            lower = name.lower()
            if lower in _PASSED_OVER:
                continue
            if lower == "www-authenticate":
                yield from self._challenge(value, ours=ours)
            elif lower == "expires":
                # To ten seconds: over a network a second may begin between the answer and the look at the clock.
                yield "header.expires", int(round(parsedate_to_datetime(value).timestamp() - now, -1))
            elif lower == "link":
                yield f"header.link.{value.partition('>')[0]}", value
            else:
                yield f"header.{lower}", value
        if body is not None:
            yield from self._body(body, ours=ours)

    def _body(self, body: bytes, *, ours: bool) -> Iterator[tuple[str, str | int]]:
        plain = _json(body)
        if isinstance(plain, dict):
            yield from self._plain("body", plain, ours=ours)
        elif body.startswith(b"<locations"):
            for element in ET.fromstring(body):
                named = sorted(element.attrib.items())
                yield f"body.{dict(named).get('id', 'other')}", str(named)
        elif len(body) > ENVELOPE_LENGTH and body[:1] == b"\x02":
            start = ENVELOPE_LENGTH + _EXPIRES_IN.start
            yield "body", (body[:start] + body[start + 4 :]).hex()
        else:
            yield "body", _ISO.sub("TIME", body.decode())

    def _challenge(self, value: str, *, ours: bool) -> Iterator[tuple[str, str]]:
        scheme, _, rest = value.partition(" ")
        for name, text in _FIELD.findall(rest.replace("%20", " ")):
            yield f"challenge.{scheme}.{name}", self._constant(name, text, ours=ours)

    def _plain(self, where: str, plain: Any, *, ours: bool) -> Iterator[tuple[str, str | int]]:
        if isinstance(plain, dict):
            for name, value in plain.items():
                if name not in _WORDS:
                    yield from self._plain(f"{where}.{name}", value, ours=ours)
        elif isinstance(plain, list):
            yield f"{where}.length", len(plain)
            if plain and all(isinstance(item, dict) and "type" in item for item in plain):
                yield f"{where}.order", str([item["index"] for item in plain])
                plain = sorted(plain, key=lambda item: int(item["index"]))
            for number, item in enumerate(plain):
                yield from self._plain(f"{where}[{number}]", item, ours=ours)
        else:
            yield where, self._constant(where.rpartition(".")[2], json.dumps(plain), ours=ours)

    def _constant(self, name: str, text: str, *, ours: bool) -> str:
        """A value with a placeholder for what varies."""
        bare = text.strip('"')
        match name:
            case "timestamp" if _ISO.fullmatch(bare):
                return "TIME"
            case "sessionId":
                return bare if ours else self.ids.get(bare, bare)
            case "nonce" | "serverSignature":
                return f"{len(b64decode(bare))} octets"
            case "error":
                return "some words"
            case "totalCount":
                return re.sub(r"\d+", "number", text)
            case "handle":
                return _UUID.sub("UUID", text)
        return text


def _signature(keys: dict[str, str], fields: dict[str, str], nonce: bytes) -> bytes:
    """The signature that the recorded client would have sent for another nonce."""
    signed = nonce + b64decode(fields["cnonce"])
    if "private_key_file" in keys:
        name = {"SHA1": "SHA1", "SHA256": "SHA-256"}[fields["alg"]]
        return private_key(keys["private_key_file"].removeprefix("keys/")).sign(name, signed)
    secret = bytes.fromhex(keys["secret_key"])
    match fields["alg"]:
        case "SHA1" | "SHA256" as digest:
            return hashlib.new(digest, secret + signed + secret).digest()
        case "HMAC-SHA256":
            return hmac.digest(secret, signed, "sha256")
        case "PBKDF2-HMAC-SHA1":
            salt, rounds, bits = b64decode(fields["salt"]), int(fields["iterations"]), int(fields["length"])
            return hmac.digest(hashlib.pbkdf2_hmac("sha1", secret, salt, rounds, bits // 8), signed, "sha1")
    return b64decode(fields["signature"])


def _session(lines: str | list[str], plain: Any) -> dict[str, str] | None:
    """The session id and nonce in a response, in a header or in its body."""
    if isinstance(plain, dict) and "sessionId" in plain:
        return plain
    for line in [lines] if isinstance(lines, str) else lines:
        if line.startswith("Handle "):
            return dict(_FIELD.findall(line))
    return None


def _recorded_body(recorded: dict[str, Any]) -> bytes | None:
    """The body of a response; None if it was left out."""
    if "body_hex" in recorded:
        return bytes.fromhex(recorded["body_hex"])
    body = recorded["body"]
    return json.dumps(body).encode() if isinstance(body, dict) else None if body is None else str(body).encode()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None

"""The recorded exchanges of tests/vectors, as objects. The format is described in tests/vectors/README.md."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from perseid.wire import message as envelope_module
from perseid.wire.framing import MEDIA_TYPE, Frame, FrameReader
from perseid.wire.message import Envelope

FOLDER: Final = Path(__file__).parent.parent / "vectors"

NOW: Final = 1_794_724_100
"""When the exchanges were recorded, to within a minute; times are decoded relative to it."""

WIRE_FILES: Final = (
    "admin-dsa.json",
    "admin-rsa.json",
    "admin-sec.json",
    "auth-errors.json",
    "certified.json",
    "lists.json",
    "malformed.json",
    "mint.json",
    "multipacket.json",
    "prefixes.json",
    "replication.json",
    "resolve.json",
    "session.json",
    "siteinfo.json",
    "verify.json",
    "versions.json",
)
"""The files of exchanges; the others (codec-*) contain encodings without messages."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, as in the recorded descriptions."""

    offset: int | None
    length: int | None
    name: str
    value: int | str


@dataclass(frozen=True, slots=True)
class MessageDescription:
    """The recorded description of one message."""

    fields: tuple[Field, ...]
    decrypted: bytes | None
    """The plaintext of an encrypted message, without the envelope."""
    undecoded: str | None
    """Why the rest could not be described, for a malformed message."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One exchange: the request and its response."""

    file: str
    name: str
    transport: str
    request: tuple[bytes, ...]
    """Datagrams, or the one piece of a TCP stream."""
    response: tuple[bytes, ...]
    described_request: tuple[MessageDescription, ...]
    described_response: tuple[MessageDescription, ...]
    keys: dict[str, str]

    @property
    def group(self) -> str:
        """The conversation to which the exchange belongs: its name without `#1`, `#2` …"""
        return self.name.partition("#")[0]

    def __str__(self) -> str:
        return f"{self.file.removesuffix('.json')}:{self.name}"


@cache
def load(file: str) -> tuple[Vector, ...]:
    """All exchanges of one file, in order."""
    return tuple(_vector(file, entry) for entry in json.loads((FOLDER / file).read_text(encoding="utf-8")))


def exchanges(*files: str) -> list[Vector]:
    """All exchanges of some files, in order."""
    return [vector for file in files for vector in load(file)]


def conversations(*files: str) -> dict[str, list[Vector]]:
    """The exchanges of some files by conversation."""
    groups: dict[str, list[Vector]] = {}
    for vector in exchanges(*files):
        groups.setdefault(f"{vector.file.removesuffix('.json')}:{vector.group}", []).append(vector)
    return groups


def key_file(name: str) -> bytes:
    """One of the key files."""
    return (FOLDER / "keys" / name).read_bytes()


def fed(reader: FrameReader, data: bytes) -> list[Frame]:
    """Feed a reader and return every complete message."""
    reader.feed(data)
    return list(reader.frames())


def frames_of(pieces: tuple[bytes, ...], transport: str) -> list[Frame]:
    """Complete messages, split independently of our own framing and reassembly."""
    if transport == "udp":
        if not pieces:
            return []
        first = Envelope.from_bytes(pieces[0])
        return [Frame(first, b"".join(piece[envelope_module.ENVELOPE_LENGTH :] for piece in pieces))]
    stream, frames = b"".join(pieces), []
    while stream:
        envelope = Envelope.from_bytes(stream)
        end = envelope_module.ENVELOPE_LENGTH + envelope.length
        frames.append(Frame(envelope, stream[envelope_module.ENVELOPE_LENGTH : end]))
        stream = stream[end:]
    return frames


def _vector(file: str, entry: dict[str, Any]) -> Vector:
    return Vector(
        file,
        entry["name"],
        entry["transport"],
        _pieces(entry["request_hex"]),
        _pieces(entry["response_hex"]),
        tuple(_description(message) for message in entry["decoded"]["request"]),
        tuple(_description(message) for message in entry["decoded"]["response"]),
        {name: str(value) for name, value in entry.get("keys", {}).items()},
    )


def _pieces(value: str | list[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(piece) for piece in ([value] if isinstance(value, str) else value))


def _description(message: dict[str, Any]) -> MessageDescription:
    fields = tuple(Field(field["off"], field["len"], field["field"], field["value"]) for field in message["fields"])
    decrypted = message.get("decrypted_hex")
    return MessageDescription(fields, None if decrypted is None else bytes.fromhex(decrypted), message.get("undecoded"))


def native_headers(length: int) -> list[tuple[str, str]]:
    """Headers of the response to a native message over HTTP."""
    return [("Content-Type", MEDIA_TYPE), ("Content-Length", str(length))]

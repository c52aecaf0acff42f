"""What stands in the target of a request: a name in the path, and parameters behind the question mark.

The path up to the question mark is percent-decoded once, as UTF-8, and all that is left of it is the name: slashes,
dots, semicolons and plus signs are ordinary characters, and nothing is normalised (http-api reference, 3.1). Old
clients send a percent sign at the very end as it is; any other one that begins no escape is refused, and so is a NUL,
which no name can hold.

In parameters a plus sign is a space, and only `&` separates (3.2). A percent sign that begins no escape stands for
itself there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

from perseid.names.errors import quote_text
from perseid.wire.codes import ResponseCode

from .messages import HeaderList

MAX_PARAMETERS: Final = 10_000
"""Parameters of one request: a head of 8 KiB has room for 4,096, and a body should not have many more."""

API_PATH: Final = b"/api"
"""Below it everything is JSON."""

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_INVALID_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_SAFE_CHARACTERS: Final = "!$'()*,:@;=+"  # of what may stand in a path as it is
_INT32: Final = range(-0x8000_0000, 0x8000_0000)
_TRUE: Final = ("", "true", "yes")


class BadRequest(Exception):
    """A request that does not have the form it should; nothing was done."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: ResponseCode = ResponseCode.PROTOCOL_ERROR,
        headers: HeaderList = (),
        *,
        echo_name: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, and what would be right."""
        self.status = status
        self.code = code
        self.headers = headers
        self.echo_name = echo_name
        """Whether the name that it was about is told."""


def is_api(path: bytes) -> bool:
    """Whether a path is the API's."""
    return path == API_PATH or path.startswith(API_PATH + b"/")


@dataclass(frozen=True, slots=True)
class Name:
    """A name, as somebody has written it."""

    text: str
    """What it says; octets that are no UTF-8 are U+FFFD here."""
    is_text: bool = True
    """Whether all of it is UTF-8."""


def percent_decode(data: bytes) -> bytes:
    """Octets with their escapes decoded, once; what begins no escape stands for itself."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), data) if b"%" in data else data


def parse_name(data: bytes) -> Name:
    """The name that a part of a path stands for; raises `Malformed`."""
    for found in _INVALID_ESCAPE.finditer(data):
        if found.start() < len(data) - 1:
            written = quote_text(data[found.start() : found.start() + 3].decode("latin-1"))
            message = f"{written} in the path is no escape: a percent sign of the name itself is written %25"
            raise BadRequest(message)
    decoded = percent_decode(data)
    if b"\0" in decoded:
        raise BadRequest("the path holds a NUL (%00), which no name can hold")
    try:
        return Name(decoded.decode("utf-8"))
    except UnicodeDecodeError:
        return Name(decoded.decode("utf-8", "replace"), is_text=False)


def encode_path(name: str) -> str:
    """How a name is written in a path so that every client and every server on the way leaves it alone.

    Where a step would be empty or all dots, which some drop or follow, slashes are escaped as well: they mean the same.
    """
    is_plain = not {"", ".", ".."} & set(name.split("/"))
    return quote(name, safe=_SAFE_CHARACTERS + "/" if is_plain else _SAFE_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters in their order; names may repeat, and letters of any case are told apart."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, query: bytes) -> Self:
        """Take what stands behind a question mark, or in the body of a form."""
        parts = query.split(b"&", MAX_PARAMETERS)
        if len(parts) > MAX_PARAMETERS:
            raise BadRequest(f"a request may have {MAX_PARAMETERS:,} parameters, and no more")
        return cls(tuple([_parse_pair(part) for part in parts if part]))

    def plus(self, more: Iterable[tuple[str, str]]) -> Self:
        """The same with others behind them."""
        return type(self)((*self.pairs, *more))

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)

    def all(self, name: str) -> list[str]:
        """What all parameters of a name say."""
        return [value for key, value in self.pairs if key == name]

    def first(self, name: str) -> str | None:
        """What the first parameter of a name says; None if there is none."""
        return next((value for key, value in self.pairs if key == name), None)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Whether a parameter is there and says nothing, `true` or `yes`, in letters of any case."""
        value = self.first(name)
        return default if value is None else value.lower() in _TRUE

    def numbers(self, name: str) -> list[int]:
        """The numbers that all parameters of a name are; raises `Malformed` if one is not a number of 32 bits."""
        return [_parse_number(name, value) for value in self.all(name)]

    def number(self, name: str) -> int | None:
        """The number that the first parameter of a name is; None if there is none. Raises `Malformed`."""
        value = self.first(name)
        return None if value is None else _parse_number(name, value)


def _parse_pair(part: bytes) -> tuple[str, str]:
    key, _, value = part.replace(b"+", b" ").partition(b"=")
    return percent_decode(key).decode("utf-8", "replace"), percent_decode(value).decode("utf-8", "replace")


def _parse_number(name: str, value: str) -> int:
    if _NUMBER.fullmatch(value) is None or int(value) not in _INT32:
        raise BadRequest(f"the parameter {name} should be a whole number of 32 bits, and is {quote_text(value)}")
    return int(value)

"""Answers in JSON, as deployed servers write them (http-api reference, 3.5 and 4).

One object, compact unless `pretty` was asked for. Characters beyond ASCII go out as UTF-8, but for U+2028 and U+2029,
which end lines in older JavaScript. With `callback` the same is the argument of a call, for scripts of other pages that
can do no better. In the name of the function nothing is left that could be anything but a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.queries.paging import octets_of
from perseid.wire.codes import ResponseCode

from .messages import HeaderList, Response
from .targets import Parameters

JSON: Final = "application/json;charset=utf-8"
SCRIPT: Final = "application/javascript;charset=utf-8"

INDENT: Final = 2

MAX_AT_ONCE: Final = 16_384
"""Octets of values, as `page_room` counts them, that are written as JSON in the event loop, where others wait
meanwhile: some milliseconds, whatever they are."""

_LINE_ENDS: Final = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
_SIGNS: Final = "_$"
_DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class Form:
    """How somebody wants JSON."""

    pretty: bool = False
    callback: str | None = None
    """The function that a script has for it; None for JSON itself."""

    @classmethod
    def of(cls, parameters: Parameters) -> "Form":
        """The form that the parameters of a request ask for."""
        return cls(parameters.flag("pretty"), parameters.first("callback"))

    @property
    def content_type(self) -> tuple[str, str]:
        """The header that says what comes."""
        return "Content-Type", JSON if self.callback is None else SCRIPT

    def wrap(self) -> tuple[bytes, bytes]:
        """What stands before and behind the JSON."""
        return (b"", b"") if self.callback is None else (function_name(self.callback).encode() + b"(", b");")

    def encoded(self, plain: object) -> bytes:
        """The octets of a plain object."""
        before, behind = self.wrap()
        return before + encoded(plain, pretty=self.pretty) + behind


PLAIN: Final = Form()


def encoded(plain: object, *, pretty: bool = False) -> bytes:
    """A plain object as JSON in UTF-8."""
    octets = msgspec.json.encode(plain)
    if pretty:
        octets = msgspec.json.format(octets, indent=INDENT)
    for character, escaped in _LINE_ENDS:
        octets = octets.replace(character, escaped)  # neither stands anywhere but in a string
    return octets


def is_small(values: Sequence[Value]) -> bool:
    """Whether values are written so soon that nobody needs to have it done elsewhere."""
    return octets_of(values) <= MAX_AT_ONCE


def function_name(text: str) -> str:
    """A name that a script may call, with `_` for whatever cannot stand in one.

    Beyond ASCII deployed servers let everything stand, blanks and ends of lines too; here it is letters and digits.
    """
    name = "".join([sign if sign.isalnum() or sign in _SIGNS else "_" for sign in text])
    return "_" + name[1:] if name[:1] in _DIGITS and name else name


def answer(
    plain: JsonObject,
    form: Form = PLAIN,
    status: int = 200,
    headers: HeaderList = (),
    *,
    name: str = "",
    who: str = "",
) -> Response:
    """An answer; its code is the one that the object has."""
    code = plain.get("responseCode", 0)
    return Response(
        status,
        (*headers, form.content_type),
        form.encoded(plain),
        code=code if isinstance(code, int) else 0,
        name=name,
        who=who,
    )


def refusal(code: ResponseCode, message: str, handle: str | None) -> JsonObject:
    """What is said where something was not done."""
    plain: JsonObject = {"responseCode": int(code)}
    if message:
        plain["message"] = message
    if handle is not None:
        plain["handle"] = handle
    return plain

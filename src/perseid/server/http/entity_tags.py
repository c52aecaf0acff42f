"""Entity tags in headers: which states of a record a request is about (RFC 9110, 8.8.3 and 13.1)."""

import re
from typing import Final

from perseid.registry.commands.conditions import Condition

from .messages import Request
from .targets import Malformed

ANY: Final = "*"

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_LIST: Final = re.compile(rf"\s*(?:{_TAG.pattern}\s*)?(?:,\s*(?:{_TAG.pattern}\s*)?)*")


def header(tag: str) -> tuple[str, str]:
    """The header that says which state an answer shows."""
    return "ETag", f'"{tag}"'


def is_known(request: Request, tag: str) -> bool:
    """Whether whoever asks has this state already, so that nothing needs to be sent."""
    text = request.joined("if-none-match")
    return text.strip() == ANY or tag in _TAG.findall(text)


def condition(request: Request) -> Condition | None:
    """Under which condition a change is to be made; None for none. Raises `Malformed`."""
    wanted, unwanted = request.joined("if-match").strip(), request.joined("if-none-match").strip()
    if not wanted and not unwanted:
        return None
    exists = True if wanted == ANY else False if unwanted == ANY else None
    return Condition(
        any_of=_tags("If-Match", wanted) if wanted not in ("", ANY) else None,
        none_of=_tags("If-None-Match", unwanted) if unwanted not in ("", ANY) else (),
        exists=exists,
    )


def _tags(name: str, text: str) -> tuple[str, ...]:
    if _LIST.fullmatch(text) is None:
        raise Malformed(f'the header {name} should hold * or tags in quotation marks, as in "abc", "def"')
    return tuple(_TAG.findall(text))

"""What a record holds, as keys beside those of where it leads: its types, its data, its administrators (S5).

    EMAIL = someone@example.org             Y email     V <8 octets>
    HS_ADMIN = 200:12345/ann                O <8 octets>
    URL = https://example.org/              its keys of `target_keys` and no others

without the blanks. `Y` is a type with small letters, `V` a digest of data with small letters, `O` one of the handle of
an administrator, likewise. A digest leads to a few records that are looked at, so it need not be long.

Nearly every record has a URL and an administrator. So what finds their types is what finds them anyway (`U` and `T` of
`target_keys`, and `O`), and a URL is looked up as such. Secret keys are found by nobody: their data has no key.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct, error
from typing import Final

from perseid.ledger.views.search_keys import (
    EVERY_TEXT,
    EVERY_URL,
    KEY_LENGTH,
    Range,
    beginning,
    one_key,
    targets_of,
    url_exact,
)

_TYPE, _DATA, _OWNER = b"Y", b"V", b"O"
_DIGEST_OCTETS: Final = 8
_URL, _ADMIN, _SECRET = b"url", b"hs_admin", b"hs_seckey"
_LENGTH = Struct(">i")
_TYPE_AT: Final = 14  # where the type stands in the binary form of a value, behind its length
_HANDLE_AT: Final = 2  # where the handle stands in the data of an administrator, likewise
_KEPT_ADMINISTRATORS: Final = 1_024
_MAX_KEPT_OCTETS: Final = 256


def keys_of(contents: Sequence[bytes]) -> set[bytes]:
    """All keys by which a record is found, given its values in their binary form."""
    keys = targets_of(contents)
    for content in contents:
        start = _TYPE_AT + 4
        end = start + _LENGTH.unpack_from(content, _TYPE_AT)[0]
        type_ = content[start:end].lower()
        if type_ == _URL:
            continue
        data = content[end + 4 : end + 4 + _LENGTH.unpack_from(content, end)[0]]
        base = type_.partition(b".")[0]
        owner = _owner_in(data) if base == _ADMIN else None
        if owner is not None:
            keys.add(owner)
        if type_ != _ADMIN or owner is None:
            keys.add((_TYPE + type_)[:KEY_LENGTH])
        if base not in (_URL, _ADMIN, _SECRET):
            keys.add(_digest(_DATA, data))
    return keys


def type_ranges(type_: str) -> tuple[Range, ...]:
    """Everything with a value that a query for this type finds; some with others, so the values have to be looked at.

    As in resolution, `URL` is that type only, and `URL.` means its subtypes as well.
    """
    whole = type_.encode("utf-8", "surrogatepass").lower()
    name = whole.removesuffix(b".")
    if name == _URL:
        return EVERY_TEXT, EVERY_URL  # subtypes have such keys too
    found = (one_key(_TYPE + name),) if whole == name else (one_key(_TYPE + name), beginning(_TYPE + whole))
    return (beginning(_OWNER), *found) if name == _ADMIN else found


def value_ranges(data: bytes) -> tuple[Range, ...]:
    """Everything with a value that holds these data, and a few others."""
    return url_exact(data), one_key(_digest(_DATA, data))


def owner_ranges(handle: str) -> tuple[Range, ...]:
    """Everything of which this handle is an administrator, or in which it is named as some party, and a few others."""
    octets = handle.encode("utf-8", "surrogatepass")
    return one_key(_digest(_OWNER, octets)), one_key(_digest(_DATA, octets))


def _digest(kind: bytes, octets: bytes) -> bytes:
    return kind + blake2b(octets.lower(), digest_size=_DIGEST_OCTETS).digest()


def _owner_in(data: bytes) -> bytes | None:
    """The key of the administrator that data name; None if they cannot be read."""
    return _kept_owner(data) if len(data) <= _MAX_KEPT_OCTETS else _new_owner(data)


def _new_owner(data: bytes) -> bytes | None:
    start = _HANDLE_AT + 4
    try:
        (length,) = _LENGTH.unpack_from(data, _HANDLE_AT)
    except error:
        return None
    # An index of four octets follows the handle.
    return _digest(_OWNER, data[start : start + length]) if 0 < length <= len(data) - start - 4 else None


_kept_owner = lru_cache(_KEPT_ADMINISTRATORS)(_new_owner)

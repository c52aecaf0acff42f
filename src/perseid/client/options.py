"""Options that programs give to clients: mistakes are found before anything is sent."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perseid.names.suggest import did_you_mean
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef

E = TypeVar("E", bound=Enum)

if TYPE_CHECKING:
    from perseid.records.private_keys import PrivateKey


def check_options(given: Mapping[str, object], known: type) -> None:
    """Refuse options that a typed dictionary does not have: a misspelled one would be ignored. Raises TypeError."""
    for name in given.keys() - known.__annotations__.keys():
        meant = "".join(get_close_matches(name, known.__annotations__, 1))
        hint = did_you_mean(meant, f"use {', '.join(known.__annotations__)}")
        raise TypeError(f"{name!r} is not an option; {hint}")


def parse_identity(identity: str | ValueRef) -> ValueRef:
    """Parse who acts, `INDEX:HANDLE`; raises ValueError."""
    try:
        reference = ValueRef.parse(identity) if isinstance(identity, str) else identity
    except InvalidData as error:
        raise ValueError(f"The identity {error}") from error
    if "/" not in reference.handle or (isinstance(identity, str) and identity == reference.handle):
        raise ValueError(
            f"The identity {str(identity)[:80]!r} does not have the form INDEX:HANDLE, as in 300:12345/ann"
        )
    return reference


def read_key(key: "PrivateKey | str | os.PathLike[str]") -> "PrivateKey":
    """Return a private key, or read it from a file without a passphrase: PEM, JWK or a Handle key file."""
    if not isinstance(key, str | os.PathLike):
        return key
    from perseid.records.private_keys import read_private_key  # noqa: PLC0415 - loads cryptography

    try:
        return read_private_key(Path(key).read_bytes())
    except OSError as error:
        raise ValueError(f"Cannot read the key file {os.fspath(key)}: {error.strerror}") from error
    except InvalidData as error:
        raise ValueError(f"{os.fspath(key)} is not a private key that can be used: {error}") from error


def as_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return several names as a tuple; a text alone is one of them."""
    return (names,) if isinstance(names, str) else tuple(names)


def as_members(kind: type[E], names: Iterable[E | str]) -> tuple[E, ...]:
    """Return members of an enumeration, given as such or by their values; one alone is accepted. Raises ValueError."""
    found: list[E] = []
    for name in (names,) if isinstance(names, str | kind) else names:
        try:
            found.append(kind(name))
        except ValueError:
            known = ", ".join(str(each.value) for each in kind)
            raise ValueError(f"{name!r} is not a {kind.__name__}; use {known}") from None
    return tuple(found)

"""Types of settings: validation, and conversion from TOML and environment variables.

A setting has two forms: the *plain* object that a TOML parser returns (text, number, boolean, list), and the value that
the program uses. Errors state what is expected and repeat the value, except where it can contain a password.
"""

import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perseid.names.errors import InvalidName, quote_text
from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.value import ref_from_text
from perseid.registry.policy.text import format_toml

MAX_DELIMITER: Final = 16
"""Maximum length of a template delimiter, in characters."""

MASK: Final = "***"
"""Shown instead of a secret."""

_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_PASSWORD = re.compile(r"^([^:]+://[^:/@]*):.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"((?:^|[?&])[^=&]*password=)[^&]*", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class InvalidSetting(ValueError):
    """A value is invalid for its setting; the message says what is expected."""


class SettingType(ABC):
    """What a setting accepts."""

    expects: str
    """Description for errors and documentation."""

    @abstractmethod
    def read(self, plain: object) -> Any:
        """Convert a plain object; raises `InvalidSetting`."""

    def plain(self, value: Any) -> object:
        """Convert a value to a plain object."""
        return value

    def from_variable(self, text: str) -> object:
        """Convert an environment variable to a plain object."""
        return text

    def masked(self, plain: object) -> object:
        """Mask secrets in a plain object."""
        return plain

    def refuse(self, plain: object) -> InvalidSetting:
        """Return the error for a plain object."""
        return InvalidSetting(f"Expected {self.expects}, not {_describe(plain)}")


class Flag(SettingType):
    """A boolean."""

    expects = "true or false"

    def read(self, plain: object) -> bool:
        if not isinstance(plain, bool):
            raise self.refuse(plain)
        return plain

    def from_variable(self, text: str) -> object:
        word = text.strip().lower()
        return word in _TRUE if word in (*_TRUE, *_FALSE) else text


class Number(SettingType):
    """An integer in a range."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.expects = f"a whole number from {low:,} to {high:,}"

    def read(self, plain: object) -> int:
        if not isinstance(plain, int) or isinstance(plain, bool) or not self._low <= plain <= self._high:
            raise self.refuse(plain)
        return plain

    def from_variable(self, text: str) -> object:
        digits = text.strip()
        # Longer numbers are invalid for every setting, and Python refuses to parse thousands of digits.
        return int(digits) if re.fullmatch("-?[0-9]{1,18}", digits) else text


class Choice(SettingType):
    """One of several words, each with a value."""

    def __init__(self, words: Mapping[str, object]) -> None:
        self._words = words
        *others, last = map(format_toml, words)
        self.expects = f"{', '.join(others)} or {last}"

    def read(self, plain: object) -> Any:
        if not isinstance(plain, str) or plain not in self._words:
            raise self.refuse(plain)
        return self._words[plain]

    def plain(self, value: Any) -> object:
        return next(word for word, meaning in self._words.items() if meaning == value)


class Address(SettingType):
    """An address or host name to listen on."""

    expects = "an IP address or a host name"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str):
            raise self.refuse(plain)
        try:
            return str(ipaddress.ip_address(plain))
        except ValueError:
            # Digits and dots are an IP address; an invalid one must not be looked up as a name.
            if not _HOST.fullmatch(plain) or re.fullmatch("[0-9.]+", plain):
                raise self.refuse(plain) from None
        return plain


class Delimiter(SettingType):
    """A separator within a handle; may be empty."""

    expects = f"a text of at most {MAX_DELIMITER} printable characters"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or len(plain) > MAX_DELIMITER or not plain.isprintable():
            raise self.refuse(plain)
        return plain


class Database(SettingType):
    """The URL of a database. It can contain a password, so no error repeats it."""

    expects = "a URL such as postgresql://user@host/database, or an empty text"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str):
            raise self.refuse(plain)
        if plain and (not plain.startswith(_SCHEMES) or not plain.isprintable() or " " in plain):
            raise InvalidSetting(f"Expected {self.expects}")
        return plain

    def masked(self, plain: object) -> object:
        return mask_password(str(plain))


class FileName(SettingType):
    """A file name; may be empty."""

    expects = "a file name, or an empty text"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or not plain.isprintable():
            raise self.refuse(plain)
        return plain


class Secret(SettingType):
    """A secret text, never repeated in errors and never shown."""

    expects = "a single line of text"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or not plain.isprintable():
            raise InvalidSetting(f"Expected {self.expects}")
        return plain

    def masked(self, plain: object) -> object:
        return MASK if plain else plain


class TextList(SettingType):
    """A list of texts. A variable has them separated by commas, or in brackets as in the file."""

    def read(self, plain: object) -> tuple[Any, ...]:
        if not isinstance(plain, list):
            raise self.refuse(plain)
        return tuple(map(self.item, plain))

    def plain(self, value: Any) -> object:
        return list(map(str, value))

    def from_variable(self, text: str) -> object:
        return [item for part in text.split(",") if (item := part.strip())]

    @abstractmethod
    def item(self, plain: object) -> object:
        """Convert one item."""

    @staticmethod
    def shown(plain: object) -> str:
        """Describe an item, for errors."""
        return _describe(plain)


class Identities(TextList):
    """Keys, or groups of keys, that identify administrators."""

    expects = 'a list of "INDEX:HANDLE"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str):
            raise InvalidSetting(f"Expected {self.expects}; it contains {_describe(plain)}")
        try:
            reference = ref_from_text(plain)
            Handle.parse(reference.handle)
        except (InvalidData, InvalidName) as problem:
            raise InvalidSetting(f"Invalid administrator {quote_text(plain)}: {problem}") from None
        if reference.index < 0:
            raise InvalidSetting(
                f"Invalid administrator {quote_text(plain)}: the index must not be negative; 0 means any key"
            )
        return reference


class Networks(TextList):
    """Addresses and networks."""

    expects = "a list of addresses and networks such as 192.0.2.0/24"

    def item(self, plain: object) -> object:
        if not isinstance(plain, str):
            raise InvalidSetting(f"Expected {self.expects}; it contains {_describe(plain)}")
        try:
            return ipaddress.ip_network(plain)
        except ValueError as problem:
            raise InvalidSetting(f"Invalid network {quote_text(plain)}: {problem}") from None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    kind: SettingType
    default: object
    """As a plain object."""
    about: str
    """Description, in a sentence or two."""
    unit: str = ""
    deployed: tuple[str, ...] = ()
    """Its names in the `config.dct` of the deployed server, if any."""
    remark: str = ""
    """Differences from those."""
    secret: bool = False
    """Whether it can contain a password or passphrase."""

    def shown(self, value: object) -> object:
        """Return the plain object of a value, without secrets."""
        plain = self.kind.plain(value)
        return self.kind.masked(plain) if self.secret else plain


def mask_password(url: str) -> str:
    """Mask the password in a database URL, rather too much than too little."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def _describe(plain: object) -> str:
    """Describe a plain object in terms of TOML."""
    if isinstance(plain, str):
        return quote_text(plain)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, int | float):
        return quote_text(str(plain))[1:-1]
    names: dict[type, str] = {list: "a list", dict: "a table"}
    return names.get(type(plain), "a date or time")

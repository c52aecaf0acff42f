"""What settings take: the kinds of values there are, as they stand in a file and as they come from a variable.

A setting has two forms: the *plain* object that a TOML reader makes (text, number, flag, list), and the value that the
program uses. Refusals say what is expected and repeat what was found, except where that may hold a password.
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
"""The longest delimiter of templates in characters: room for any mark that people can tell from a name."""

MASK: Final = "***"
"""What is shown instead of what nobody is to see."""

_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_PASSWORD = re.compile(r"^([^:]+://[^:/@]*):.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"((?:^|[?&])[^=&]*password=)[^&]*", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class InvalidSetting(ValueError):
    """What is written there is not what the setting takes; the message says what is expected."""


class SettingType(ABC):
    """What a setting takes. A *plain* object is what a TOML reader makes: text, number, flag, list."""

    expects: str
    """The same in words, for refusals and for the manual."""

    @abstractmethod
    def read(self, plain: object) -> Any:
        """The value that a plain object stands for; Unsuitable if it stands for none."""

    def plain(self, value: Any) -> object:
        """The plain object of a value."""
        return value

    def from_variable(self, text: str) -> object:
        """The plain object that a variable of the environment stands for."""
        return text

    def hidden(self, plain: object) -> object:
        """A plain object without what nobody is to see in it."""
        return plain

    def refuse(self, plain: object) -> InvalidSetting:
        """The refusal of a plain object."""
        return InvalidSetting(f"{self.expects} is expected, not {_describe(plain)}")


class Flag(SettingType):
    """Yes or no."""

    expects = "true or false"

    def read(self, plain: object) -> bool:
        if not isinstance(plain, bool):
            raise self.refuse(plain)
        return plain

    def from_variable(self, text: str) -> object:
        word = text.strip().lower()
        return word in _TRUE if word in (*_TRUE, *_FALSE) else text


class Number(SettingType):
    """A whole number in a range."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.expects = f"a whole number from {low:,} to {high:,}"

    def read(self, plain: object) -> int:
        if not isinstance(plain, int) or isinstance(plain, bool) or not self._low <= plain <= self._high:
            raise self.refuse(plain)
        return plain

    def from_variable(self, text: str) -> object:
        digits = text.strip()
        # A number of many digits is none that any setting takes, and Python refuses to read thousands of them.
        return int(digits) if re.fullmatch("-?[0-9]{1,18}", digits) else text


class Choice(SettingType):
    """One of a few words, each of which stands for something."""

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
    """Where to listen: an address, or a name that stands for one."""

    expects = "an IP address or a host name"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str):
            raise self.refuse(plain)
        try:
            return str(ipaddress.ip_address(plain))
        except ValueError:
            # What consists of digits and dots would be an address; one that is wrong is not to be looked up as a name.
            if not _HOST.fullmatch(plain) or re.fullmatch("[0-9.]+", plain):
                raise self.refuse(plain) from None
        return plain


class Delimiter(SettingType):
    """What separates two parts of a name; none if it is empty."""

    expects = f"a text of at most {MAX_DELIMITER} printable characters"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or len(plain) > MAX_DELIMITER or not plain.isprintable():
            raise self.refuse(plain)
        return plain


class Database(SettingType):
    """Where a ledger is kept. What is given may hold a password, so no refusal repeats it."""

    expects = "an empty text or a URL such as postgresql://user@host/database"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str):
            raise self.refuse(plain)
        if plain and (not plain.startswith(_SCHEMES) or not plain.isprintable() or " " in plain):
            raise InvalidSetting(f"{self.expects} is expected")
        return plain

    def hidden(self, plain: object) -> object:
        return mask_password(str(plain))


class FileName(SettingType):
    """A file; none if it is empty."""

    expects = "the name of a file, or an empty text"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or not plain.isprintable():
            raise self.refuse(plain)
        return plain


class Secret(SettingType):
    """A text that nobody is to see: no refusal repeats it, and nothing shows it."""

    expects = "a text of one line"

    def read(self, plain: object) -> str:
        if not isinstance(plain, str) or not plain.isprintable():
            raise InvalidSetting(f"{self.expects} is expected")
        return plain

    def hidden(self, plain: object) -> object:
        return MASK if plain else plain


class TextList(SettingType):
    """A list of texts. In a variable they stand with commas between them, or as in the file, in brackets."""

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
        """One of the values."""

    @staticmethod
    def shown(plain: object) -> str:
        """What is in a list, for refusals."""
        return _describe(plain)


class Identities(TextList):
    """Keys, or groups of keys, by which administrators identify themselves."""

    expects = 'a list of "INDEX:HANDLE"'

    def item(self, plain: object) -> object:
        if not isinstance(plain, str):
            raise InvalidSetting(f"{self.expects} is expected, and {_describe(plain)} is in it")
        try:
            reference = ref_from_text(plain)
            Handle.parse(reference.handle)
        except (InvalidData, InvalidName) as problem:
            raise InvalidSetting(f"{quote_text(plain)} names no administrator: {problem}") from None
        if reference.index < 0:
            raise InvalidSetting(
                f"{quote_text(plain)} names no administrator: an index is not negative; 0 means any key"
            )
        return reference


class Networks(TextList):
    """Addresses and networks."""

    expects = "a list of addresses and networks such as 192.0.2.0/24"

    def item(self, plain: object) -> object:
        if not isinstance(plain, str):
            raise InvalidSetting(f"{self.expects} is expected, and {_describe(plain)} is in it")
        try:
            return ipaddress.ip_network(plain)
        except ValueError as problem:
            raise InvalidSetting(f"{quote_text(plain)} is no network: {problem}") from None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    kind: SettingType
    default: object
    """As a plain object."""
    about: str
    """What it is for, in a sentence or two."""
    unit: str = ""
    deployed: tuple[str, ...] = ()
    """What it is called in a `config.dct` of the deployed server, if it exists there."""
    remark: str = ""
    """What differs from there."""
    secret: bool = False
    """Whether it may hold a password or passphrase."""

    def shown(self, value: object) -> object:
        """The plain object of a value, without passwords."""
        plain = self.kind.plain(value)
        return self.kind.hidden(plain) if self.secret else plain


def mask_password(url: str) -> str:
    """The URL of a database with its password hidden; rather too much is hidden than too little."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def _describe(plain: object) -> str:
    """What a plain object is, in TOML's words; small ones as they are."""
    if isinstance(plain, str):
        return quote_text(plain)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, int | float):
        return quote_text(str(plain))[1:-1]
    names: dict[type, str] = {list: "a list", dict: "a table"}
    return names.get(type(plain), "a date or time")

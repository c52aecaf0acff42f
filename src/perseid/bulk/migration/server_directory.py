"""The directory of a Handle server: its site information, its key, and the settings that matter for a migration.

config.dct                     the settings, in a syntax of their own (`parse_dct`)
siteinfo.bin or siteinfo.json  the site; the binary form has precedence
privkey.bin                    the private key of the server, plain or protected by a passphrase
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from perseid.records.errors import InvalidData
from perseid.records.private_keys import MAX_FILE_SIZE, PrivateKey, needs_passphrase, read_key_file
from perseid.records.site import Site

from .source import SourceError

CONFIG_FILE: Final = "config.dct"
KEY_FILE: Final = "privkey.bin"
SITE_FILES: Final = ("siteinfo.bin", "siteinfo.json")

MAX_CONFIG: Final = 1 << 20
"""Bytes of a file of settings."""

MAX_DEPTH: Final = 16
"""Levels of tables and lists; settings have three."""

MAX_SITE: Final = 4 << 20
"""Bytes of site information."""

DctValue: TypeAlias = "str | list[DctValue] | dict[str, DctValue]"

_SEPARATORS: Final = " \t\r\n,;"
_WORD: Final = re.compile(r"[^ \t\r\n,;=]+")
_JDBC: Final = re.compile(r"jdbc:(mysql|mariadb|postgresql)://([^/?;]+)/([^?;]+)")


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """What the directory of a Handle server says."""

    site: Site
    key: PrivateKey
    position: int
    """The position of the server in its site, from 0."""
    case_sensitive: bool
    administrators: tuple[str, ...]
    """Server administrators, as `INDEX:HANDLE`."""
    full_access: bool
    """Whether they have all permissions on every handle."""
    replication_administrators: tuple[str, ...]
    database: str
    """The URL of the SQL database, without user; empty if there is none."""

    @property
    def profile(self) -> str:
        """The profile of its prefixes here."""
        return "exact" if self.case_sensitive else "free"


def read_server_directory(directory: Path, passphrase: bytes | None = None) -> ServerDirectory:
    """Read a directory. Raises `SourceError`."""
    settings = _read_settings(directory / CONFIG_FILE)
    server = settings.get("server_config")
    config = server if isinstance(server, dict) else {}
    site = _read_site(directory)
    key = _read_key(directory / KEY_FILE, passphrase)
    position = _find_position(site, str(config.get("this_server_id", "1")), key)
    sql = config.get("sql_settings")
    return ServerDirectory(
        site,
        key,
        position,
        _as_bool(config.get("case_sensitive"), default=False),
        _as_list(config.get("server_admins")),
        _as_bool(config.get("server_admin_full_access"), default=False),
        _as_list(config.get("replication_admins")),
        _find_database(sql if isinstance(sql, dict) else {}),
    )


def _read_settings(path: Path) -> dict[str, DctValue]:
    if not path.exists():
        return {}
    try:
        parsed = parse_dct(_read(path, MAX_CONFIG).decode())
    except (InvalidData, UnicodeDecodeError) as problem:
        raise SourceError(f"{path} cannot be read: {problem}") from problem
    return parsed


def _read_site(directory: Path) -> Site:
    for name in SITE_FILES:
        path = directory / name
        if path.exists():
            try:
                return Site.from_file(_read(path, MAX_SITE))
            except InvalidData as problem:
                raise SourceError(f"{path} is not valid site information: {problem}") from problem
    raise SourceError(f"No site information in {directory}", f"The directory must have {' or '.join(SITE_FILES)}")


def _read_key(path: Path, passphrase: bytes | None) -> PrivateKey:
    data = _read(path, MAX_FILE_SIZE)
    try:
        if needs_passphrase(data) and passphrase is None:
            raise SourceError(f"{path} is protected by a passphrase", "Use --passphrase-file FILE")
        return read_key_file(data, passphrase if needs_passphrase(data) else None)
    except InvalidData:
        raise SourceError(f"{path} is not a private key, or the passphrase is wrong") from None


def _find_position(site: Site, server_id: str, key: PrivateKey) -> int:
    """Find the server in its site, by its id and its key."""
    for position, server in enumerate(site.servers):
        if server.key == key.public and (str(server.server_id) == server_id or len(site.servers) == 1):
            return position
    raise SourceError(
        f"The key of the server is not that of server {server_id[:20]} in the site information",
        "Use the files of one server",
    )


def _find_database(settings: dict[str, DctValue]) -> str:
    match = _JDBC.match(str(settings.get("sql_url", "")))
    return "" if match is None else f"{match[1]}://{match[2]}/{match[3]}"


def _as_bool(value: "DctValue | None", *, default: bool) -> bool:
    return value[:1].lower() in ("y", "t") if isinstance(value, str) and value else default


def _as_list(value: "DctValue | None") -> tuple[str, ...]:
    items = value if isinstance(value, list) else []
    texts = [item for item in items if isinstance(item, str)]
    return tuple([text if re.match("[0-9]+:", text) else f"0:{text}" for text in texts])


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise SourceError(f"Cannot read {path}: {error.strerror}") from error
    if len(data) > limit:
        raise SourceError(f"{path} has more than {limit:,} bytes")
    return data


# Settings


def parse_dct(text: str) -> dict[str, DctValue]:
    """Parse settings: `{ "key" = "value" "table" = { … } "list" = ( "a" "b" ) }`. Raises `InvalidData`.

    Everything is a string. Items are separated by white space, commas or semicolons; a backslash stands for the next
    character, or with `n` for a line end; a later key replaces an earlier one. There are no comments.
    """
    parser = _DctParser(text)
    parsed = parser.value(0)
    parser.skip()
    if not isinstance(parsed, dict) or not parser.is_at_end:
        raise InvalidData("the settings are not one table in braces")
    return parsed


class _DctParser:
    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("\ufeff")
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def skip(self) -> None:
        while not self.is_at_end and self._text[self._at] in _SEPARATORS:
            self._at += 1

    def value(self, depth: int) -> DctValue:
        if depth > MAX_DEPTH:
            raise InvalidData(f"the settings are nested more than {MAX_DEPTH} levels deep")
        self.skip()
        match self._peek():
            case "{":
                return self._table(depth)
            case "(":
                return self._list(depth)
            case '"':
                return self._quoted()
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise InvalidData(f"the settings are invalid at character {self._at + 1}")
        self._at = found.end()
        return found[0]

    def _table(self, depth: int) -> dict[str, DctValue]:
        self._at += 1
        table: dict[str, DctValue] = {}
        while not self._ends("}"):
            key = self.value(depth + 1)
            self.skip()
            if not isinstance(key, str) or self._peek() != "=":
                raise InvalidData(f"the settings lack a key and = at character {self._at + 1}")
            self._at += 1
            table[key] = self.value(depth + 1)
        return table

    def _list(self, depth: int) -> list[DctValue]:
        self._at += 1
        items: list[DctValue] = []
        while not self._ends(")"):
            items.append(self.value(depth + 1))
        return items

    def _ends(self, mark: str) -> bool:
        self.skip()
        is_end = self._peek() == mark
        self._at += is_end
        return is_end

    def _quoted(self) -> str:
        self._at += 1
        characters: list[str] = []
        while (character := self._take()) != '"':
            if character == "\\":
                escaped = self._take()
                character = "\n" if escaped == "n" else escaped
            characters.append(character)
        return "".join(characters)

    def _peek(self) -> str:
        if self.is_at_end:
            raise InvalidData("the settings end early")
        return self._text[self._at]

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character

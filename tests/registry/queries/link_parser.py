"""A simple parser for links of RFC 8288 (appendix B), for tests."""

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True)
class ReadLink:
    target: str
    parameters: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]

    def one(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) <= 1, f"{name} stands there {len(found)} times"
        return found[0] if found else None

    @property
    def relations(self) -> list[str]:
        return (self.one("rel") or "").split()

    @property
    def title(self) -> tuple[str, str] | None:
        """The title and its language; the long form wins."""
        extended = self.one("title*")
        if extended is not None:
            charset, language, text = extended.split("'")
            assert charset == "UTF-8"
            return unquote_to_bytes(text).decode("utf-8"), language
        plain = self.one("title")
        return None if plain is None else (plain, "")


def read_links(text: str) -> list[ReadLink]:
    """Parse the links of header values or of a document."""
    found: list[ReadLink] = []
    rest = text.lstrip(" \t\r\n")
    while rest:
        assert rest[0] == "<", f"a target was expected at {rest[:40]!r}"
        target, closed, rest = rest[1:].partition(">")
        assert closed, "the target does not end"
        parameters: list[tuple[str, str]] = []
        rest = rest.lstrip(" \t\r\n")
        while rest.startswith(";"):
            name, value, rest = _parameter(rest[1:].lstrip(" \t\r\n"))
            parameters.append((name, value))
            rest = rest.lstrip(" \t\r\n")
        found.append(ReadLink(target, tuple(parameters)))
        if rest:
            assert rest[0] == ",", f"a comma was expected at {rest[:40]!r}"
            rest = rest[1:].lstrip(" \t\r\n")
            assert rest, "there is nothing behind the last comma"
    return found


def _parameter(text: str) -> tuple[str, str, str]:
    end = next((at for at, sign in enumerate(text) if sign in "=;, \t\r\n"), len(text))
    name, rest = text[:end].lower(), text[end:]
    assert name
    if not rest.startswith("="):
        return name, "", rest
    rest = rest[1:]
    if not rest.startswith('"'):
        end = next((at for at, sign in enumerate(rest) if sign in ";, \t\r\n"), len(rest))
        return name, rest[:end], rest[end:]
    value, at = "", 1
    while rest[at] != '"':
        if rest[at] == "\\":
            at += 1
        value += rest[at]
        at += 1
    return name, value, rest[at + 1 :]

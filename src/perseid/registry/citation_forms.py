"""Citations as people and programs read them: text, BibTeX, CSL-JSON. What is not known is left out.

BibTeX is written for every program that reads it: whatever means something to TeX is written as a command, and braces
too, because BibTeX counts them even behind a backslash. Letters outside of ASCII stay as they are, in UTF-8. A title
stands in two pairs of braces, so that no style changes its capitals, and so does a name, so that none takes it apart.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from perseid.records.json_parsing import JsonObject, write_json
from perseid.registry.queries.citation import Citation

TEX: Final[Mapping[str, str]] = {
    "\\": "\\textbackslash{}",
    "{": "\\textbraceleft{}",
    "}": "\\textbraceright{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': '{"}',
    **{character: f"\\{character}" for character in "#$%&_"},
}
"""What each character is written as that means something to TeX, or that its oldest fonts do not have."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ENDS: Final = (".", "?", "!")


def as_text(citation: Citation) -> str:
    """One line: who, when, what, where, in both forms."""
    who = "; ".join(citation.creators)
    when = f"({citation.date})" if citation.date else ""
    beginning = " ".join(filter(None, (who, when)))
    state = f" [{'; '.join(citation.state)}]" if citation.state else ""
    parts = [_ended(part) for part in (beginning, citation.title, citation.publisher) if part]
    return " ".join([*parts, f"{citation.hdl}, {citation.http}{state}"])


def as_hdl(citation: Citation) -> str:
    """The identifier as URI of its own scheme."""
    return citation.hdl + _version(citation)


def as_http(citation: Citation) -> str:
    """The identifier at a resolver."""
    return citation.http + _version(citation)


def as_bibtex(citation: Citation) -> str:
    """An entry of a BibTeX file."""
    fields = "".join(f",\n  {name} = {value}" for name, value in _fields(citation))
    return f"@misc{{{_key(citation)}{fields}\n}}"


def as_csl(citation: Citation) -> str:
    """A list of one item in CSL-JSON."""
    return write_json([csl(citation)])


def csl(citation: Citation) -> JsonObject:
    """An item of CSL-JSON as a plain object."""
    item: JsonObject = {"id": _id(citation), "type": "document"}
    parts = citation.date_parts
    known: JsonObject = {
        "title": citation.title,
        "author": [{"literal": name} for name in citation.creators],
        "issued": {"date-parts": [list(parts)]} if parts else citation.date and {"literal": citation.date},
        "publisher": citation.publisher,
        "abstract": citation.description,
        "version": citation.version and f"entry {citation.version.seq}",
        "URL": citation.http,
        "note": _note(citation),
    }
    return item | {name: value for name, value in known.items() if value}


def as_json(citation: Citation) -> JsonObject:
    """Everything that is known, as a plain object."""
    version = citation.version
    known: JsonObject = {
        "hdl": citation.hdl,
        "http": citation.http,
        "title": citation.title,
        "creators": list(citation.creators),
        "date": citation.date,
        "publisher": citation.publisher,
        "description": citation.description,
        "created": citation.created,
        "creator": citation.creator,
        "gone": citation.gone,
        "version": None if version is None else {"seq": version.seq, "at": version.at},
    }
    return {name: value for name, value in known.items() if value}


class Style(StrEnum):
    """How a citation is written."""

    TEXT = "text"
    HDL = "hdl"
    HTTP = "http"
    BIBTEX = "bibtex"
    CSL_JSON = "csl-json"


FORMS: Final[Mapping[str, Callable[[Citation], str]]] = {
    Style.TEXT: as_text,
    Style.HDL: as_hdl,
    Style.HTTP: as_http,
    Style.BIBTEX: as_bibtex,
    Style.CSL_JSON: as_csl,
}
"""The styles by their names."""


def escaped(text: str) -> str:
    """A text as TeX reads it."""
    return "".join([TEX.get(character, character) for character in text])


def _fields(citation: Citation) -> Iterator[tuple[str, str]]:
    if citation.title:
        yield "title", f"{{{{{escaped(citation.title)}}}}}"
    if citation.creators:
        yield "author", f"{{{' and '.join(f'{{{escaped(name)}}}' for name in citation.creators)}}}"
    if citation.date:
        parts = citation.date_parts
        yield "year", f"{{{f'{parts[0]:04}' if parts else escaped(citation.date)}}}"
        if len(parts) > 1:
            yield "month", _MONTHS[parts[1] - 1]  # a word that every style knows in its own language
    if citation.publisher:
        yield "publisher", f"{{{{{escaped(citation.publisher)}}}}}"
    if citation.description:
        yield "abstract", f"{{{escaped(citation.description)}}}"
    # An address is taken as it stands, and a URI has nothing in it that could end the field.
    yield "url", f"{{{citation.http}}}"
    yield "note", f"{{{escaped(_note(citation))}}}"


def _note(citation: Citation) -> str:
    return "; ".join(filter(None, (citation.hdl, *citation.state, citation.origin)))


def _version(citation: Citation) -> str:
    return f" as of entry {citation.version.seq}" if citation.version else ""


def _id(citation: Citation) -> str:
    return citation.hdl if citation.version is None else f"{citation.hdl}@{citation.version.seq}"


def _key(citation: Citation) -> str:
    """The key of an entry: of the characters that every reader of BibTeX takes, and one for one with the identifier."""
    return "".join(
        [
            each if each.isascii() and (each.isalnum() or each in ":/.-") else f"_{ord(each):x}_"
            for each in _id(citation)
        ]
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(_ENDS) else f"{sentence}."

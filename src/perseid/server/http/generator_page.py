"""The generator's page: what stands on it, for everybody, for who may use it, and after it was used.

It works without script. What somebody has written into the form stays there when something was wrong with it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.registry.policy.policy import Policy
from perseid.registry.queries.suffixes import HOW_IT_COUNTS, Making, Part, described, explain
from perseid.server.http.pages.pages import Piece, page, visible
from perseid.server.http.resolver.paths import path_to

from .messages import HeaderList, Response
from .responses import NO_STORE
from .settings import HttpSettings
from .targets import Parameters

MAX_AT_ONCE: Final = 100
"""Names that the page makes at once: as many as somebody copies by hand."""

MAX_FIELD: Final = 2_048
"""Characters of one field: the longest name, and the longest address that every browser takes. More is refused, for
what is cut means something else."""

TITLE: Final = "Make new names"

_NUMBER: Final = re.compile("[0-9]{1,6}")
_FIELDS: Final = {"where": "prefix", "count": "number of names", "url": "address", "creator": "creator"}
_UNREADABLE: Final = "\ufffd"  # what stands for octets that are no text
_MAKINGS: Final = {making.value: making for making in Making}
_DONE: Final = {
    Making.MINT: "minted: the names lead to the address from now on",
    Making.RESERVE: "reserved: the names are yours, and lead nowhere yet",
    Making.GENERATE: "generated: nobody else is given these names, and no record is kept of whose they are",
}
_DETAILS: Final = {"milliseconds": "Milliseconds", "time": "Made for", "check": "Check character", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class Filled:
    """What somebody has written into the form."""

    where: str = ""
    making: Making | None = Making.MINT
    count: str = "1"
    url: str = ""
    creator: str = ""
    fault: str = ""
    """Why it cannot be taken as it was sent; empty if it can."""

    @classmethod
    def of(cls, form: Parameters) -> Self:
        """The fields of a form that was sent, as far as they can be shown again."""
        texts = {name: (form.first(name) or "").strip() for name in _FIELDS}
        faults = [_fault(name, text) for name, text in texts.items()]
        making = _MAKINGS.get((form.first("making") or "").strip())
        shown = {name: text[:MAX_FIELD] for name, text in texts.items()}
        return cls(making=making, fault=next(filter(None, faults), ""), **shown)

    @property
    def number(self) -> int | None:
        """How many names are wanted; None if that is no number."""
        return int(self.count) if _NUMBER.fullmatch(self.count) else None


@dataclass(frozen=True, slots=True)
class Offer:
    """A namespace in which somebody may make names."""

    prefix: str
    scheme: str
    """By which its suffixes are made."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form."""

    who: str
    offers: Sequence[Offer]
    token: str = field(repr=False)
    filled: Filled
    problem: str
    """What was wrong with the last one; empty if nothing was."""


def _fault(name: str, text: str) -> str:
    """Why a field cannot be taken as it was sent; empty if it can."""
    if len(text) > MAX_FIELD:
        return f"the {_FIELDS[name]} has {len(text):,} characters; {MAX_FIELD:,} are the most here"
    return f"the {_FIELDS[name]} holds something that is no text in UTF-8" if _UNREADABLE in text else ""


def introduction(settings: HttpSettings) -> Response:
    """The page for whoever has not said who they are."""
    return _page(settings, 200, sign_in=True)


def closed(reason: str, settings: HttpSettings, status: int) -> Response:
    """The page where nobody can say who they are."""
    return _page(settings, status, problem=reason)


def denied(reason: str, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page for somebody who is asked who they are, or is not believed."""
    return _page(settings, status, headers, problem=reason, sign_in=True)


def form(shown: Form, settings: HttpSettings, status: int, headers: HeaderList) -> Response:
    """The page with the form."""
    return _page(settings, status, headers, problem=shown.problem, who=shown.who, form=shown)


def result(who: str, making: Making, names: Sequence[Handle], policy: Policy, settings: HttpSettings) -> Response:
    """The page with the names that were made."""
    shown = [_name(name, making, settings) for name in names]
    parts, details = _explained(names[0], policy)
    return _page(settings, 200, who=who, done=_DONE[making], names=shown, parts=parts, details=details)


def _name(name: Handle, making: Making, settings: HttpSettings) -> Piece:
    text = visible(str(name))
    return Piece(text, path_to(str(name), settings)) if making is Making.MINT else Piece(text)


def _explained(name: Handle, policy: Policy) -> tuple[tuple[Part, ...], list[tuple[str, str]]]:
    """The characters of a PILIN suffix, and what else the scheme tells from a name."""
    told = described(policy, name)
    details = [(_DETAILS.get(key, key), visible(str(value))) for key, value in told.items() if value is not None]
    if "milliseconds" not in told:
        return (), details
    try:
        return explain(name.suffix[:-1] if "check" in told else name.suffix), details
    except InvalidName:
        return (), details


def _page(settings: HttpSettings, status: int, headers: HeaderList = (), **shown: object) -> Response:
    everything: dict[str, object] = {
        "problem": "",
        "sign_in": False,
        "who": "",
        "form": None,
        "done": "",
        "names": (),
        "parts": (),
        "details": (),
    }
    shown = everything | shown
    shown["problem"] = _sentence(visible(str(shown["problem"])))
    shown["who"] = visible(str(shown["who"]))
    return page(
        "generator.html",
        settings,
        status,
        (*headers, NO_STORE),
        title=TITLE,
        makings=tuple(Making),
        most=MAX_AT_ONCE,
        how_it_counts=HOW_IT_COUNTS,
        **shown,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if not text or text.endswith((".", "!", "?")) else ".")

"""What may have been meant by a name that is not there, as problems tell it.

Everybody may read what is told, and so it is told to everybody who reads. It is the same as on the page of the
resolver, and counts for the same budget: whoever has used theirs up gets the problem without it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import unquote

import msgspec

from perseid.names.handle import Handle
from perseid.registry.queries.suggest import Standing
from perseid.server.http.context import Asking
from perseid.server.http.suggested import ABOUT, suggested

from .structures import About, Told

if TYPE_CHECKING:
    from .problems import Answered

ENCODED_TWICE: Final = "it looks as if the path was encoded twice: the slash of a handle is %2F there, and not %252F"


class GoneThing(Told, frozen=True):
    """What became of a thing whose name is a tombstone. What the tombstone does not say is left out."""

    reason: Annotated[str, About("Why it is gone.")] = ""
    date: Annotated[str, About("Since when, as the tombstone has it.", examples=["2026-11-15T10:00:00Z"])] = ""
    replacement: Annotated[str | None, About("The name to use instead.")] = None


class MeantName(Told, frozen=True):
    """A name that is there, and may have been meant."""

    handle: Annotated[str, About("The name as it is registered.", examples=["12345/x"])]
    why: Annotated[str, About("What makes it likely.", examples=["two characters are the other way round there"])]
    gone: Annotated[GoneThing | None, About("What became of its thing, if that is gone.")] = None


class KnownPrefix(Told, frozen=True):
    """What this server knows of the prefix of a name that is not there."""

    prefix: Annotated[str, About("The prefix, as far as one can be told.", examples=["12345"])]
    standing: Annotated[Standing, About("What this server is to it.")]
    why: Annotated[str, About("The same for people.")]
    derived_from: Annotated[str | None, About("The prefix above it that is kept here, if that is the nearest.")] = None


class _Found(Told, frozen=True):
    """What was found out, with the members that the other doors have too."""

    suggestions: tuple[MeantName, ...] = ()
    prefix: KnownPrefix | None = None


async def told(asking: Asking, answered: "Answered", text: str) -> "Answered":
    """A problem with what may have been meant by a name of the path, if it is one that may be a matter of spelling."""
    problem = answered.problem
    if problem.code not in ABOUT:
        return answered
    if "/" not in text and Handle.for_lookup(unquote(text)) is not None:
        problem = msgspec.structs.replace(problem, advice=ENCODED_TWICE)
    found = await suggested(asking, text)
    if found is not None:
        said = msgspec.convert(found.to_json(), _Found)
        problem = msgspec.structs.replace(problem, suggestions=said.suggestions, prefix=said.prefix)
    return replace(answered, problem=problem)

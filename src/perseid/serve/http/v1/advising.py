"""Advice in the language of this door: what is said elsewhere in commands of `perseid`, said here in requests.

The registry advises everybody in the same words, and where something is to be done it names the command that does it.
Who asks over the network has no command, so each becomes the request that does the same. A test fails where the
registry names one that is not known here.
"""

import re
from ast import literal_eval
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from perseid.names.errors import MAX_QUOTED

from .routing import BASE

IDENTIFY: Final = "send a token (Authorization: Bearer …), or prove who you are with a key"
"""What to do about not being known."""

_NAME: Final = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""  # as `names.errors.quoted` writes it

Found = re.Match[str]


def _step(found: Found) -> str:
    """The name in a command as a step of a path; one that was cut has to be put in by whoever knows it."""
    name = str(literal_eval(found[1]))
    return "{handle}" if len(name) > MAX_QUOTED else quote(name, safe="", errors="replace")


_SAID_HERE: Final[tuple[tuple[str, str | Callable[[Found], str]], ...]] = (
    (rf"perseid tombstone {_NAME} --undo", lambda found: f"POST {BASE}/handles/{_step(found)}/revive"),
    (rf"perseid tombstone {_NAME} --reason TEXT", lambda found: f"POST {BASE}/handles/{_step(found)}/tombstone"),
    (rf"perseid type add {_NAME} …", f"POST {BASE}/types"),
    (rf"perseid type show {_NAME}", lambda found: f"GET {BASE}/types/{_step(found)}"),
    (r"perseid type list", f"GET {BASE}/types"),
    (r"perseid mint", f"POST {BASE}/mint"),
    (r"perseid namespace list", f"GET {BASE}/namespaces"),
    (r"perseid namespace add (\S+)", rf"POST {BASE}/namespaces, with the prefix \1"),
    (r"perseid token list", f"GET {BASE}/tokens"),
    (r"perseid operations resume ([\w-]+)", rf"POST {BASE}/operations/\1/resume"),
    (r"perseid operations", f"GET {BASE}/operations"),
    (r"perseid undo ([\w-]+)", rf"POST {BASE}/operations/\1/undo"),
    (r"perseid name rules (\w+)", rf"GET {BASE}/names/rules/\1"),
    (r"--change-case", "changeCase"),
    (r"replace the record \(overwrite\)", f"replace the record (PUT {BASE}/handles/{{handle}})"),
    (r"docs/reference/types\.md", "/docs/types"),
    (r"answer a challenge, or use a session", IDENTIFY),
)

_KNOWN: Final = tuple([(re.compile(said, re.IGNORECASE), here) for said, here in _SAID_HERE])


def said_here(advice: str) -> str:
    """Advice of the registry, as it can be followed over the network."""
    for said, here in _KNOWN:
        advice = said.sub(here, advice)
    return advice


def on_name(rule: str) -> str:
    """What to do about a name that breaks a rule."""
    full = f"the rule in full: GET {BASE}/names/rules/{rule}"
    return f"name a resolver of your own with the parameter resolver; {full}" if rule == "U4" else full

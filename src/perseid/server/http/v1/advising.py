"""Advice in the language of this door: what is said elsewhere in commands of `perseid`, said here in requests.

The registry advises everybody in the same words, and where something is to be done it names the command that does it.
Who asks over the network has no command, so each becomes the request that does the same. A test fails where the
registry names one that is not known here.

Advice may hold names, and in names anything may stand, commands too. So it is taken as a whole: what is not all in the
words of the registry, with names where the registry puts them, stays as it is.
"""

import re
from typing import Final
from urllib.parse import quote

from perseid.names.errors import MAX_QUOTED

from .routing import BASE

IDENTIFY: Final = "send a token (Authorization: Bearer …), or prove who you are with a key"
"""What to do about not being known."""

_SLOTS: Final = {
    "NAME": r"""(?P<NAME>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")""",  # as `names.errors.quoted` writes it
    "PREFIX": r"(?P<PREFIX>.+)",
    "ID": r"(?P<ID>[\w-]+)",
    "WHY": r"(?P<WHY>(?:if the thing [a-z ,]+: )?)",
}
"""What the registry puts into its advice, by the words that stand for it below."""

_SAID_HERE: Final = (
    ("WHYperseid tombstone NAME --undo", "{WHY}POST {BASE}/handles/{NAME}/revive"),
    (
        "Say what became of the thing: perseid tombstone NAME --reason TEXT.",
        "Say what became of the thing: POST {BASE}/handles/{NAME}/tombstone.",
    ),
    (
        "Define it first (perseid type add NAME …), or use a type that is registered.",
        "Define it first (POST {BASE}/types), or use a type that is registered.",
    ),
    ("Give what the type asks for: perseid type show NAME.", "Give what the type asks for: GET {BASE}/types/{NAME}."),
    (
        "It is no handle, and only handles are registered: use one that is (perseid type list).",
        "It is no handle, and only handles are registered: use one that is (GET {BASE}/types).",
    ),
    (
        "what a definition looks like stands in docs/reference/types.md",
        "what a definition looks like stands in /docs/types",
    ),
    (
        "Let the service make the suffix (perseid mint), or give one that follows the scheme.",
        "Let the service make the suffix (POST {BASE}/mint), or give one that follows the scheme.",
    ),
    ("perseid namespace list shows those there are", "GET {BASE}/namespaces shows those there are"),
    ("look at: perseid namespace list", "look at: GET {BASE}/namespaces"),
    ("perseid namespace add PREFIX", "POST {BASE}/namespaces, with the prefix {PREFIX}"),
    (
        "Leave it as it is; or, if no two names become one by it, say that it is meant: --change-case.",
        "Leave it as it is; or, if no two names become one by it, say that it is meant: changeCase.",
    ),
    ("look at: perseid token list", "look at: GET {BASE}/tokens"),
    ("look at: perseid operations", "look at: GET {BASE}/operations"),
    ("go on with that: perseid operations resume ID", "go on with that: POST {BASE}/operations/{ID}/resume"),
    ("to have it again, undo that: perseid undo ID", "to have it again, undo that: POST {BASE}/operations/{ID}/undo"),
    ("the rule in full: perseid name rules ID", "the rule in full: GET {BASE}/names/rules/{ID}"),
    (
        "choose another name, or replace the record (overwrite)",
        "choose another name, or replace the record (PUT {BASE}/handles/{{handle}})",
    ),
    ("answer a challenge, or use a session", IDENTIFY),
)

_SLOT: Final = re.compile("|".join(_SLOTS))
_ESCAPE: Final = re.compile(r"\\(?:x(?P<x>..)|u(?P<u>.{4})|U(?P<U>.{8})|(?P<other>.))")
_OTHERS: Final = {"n": "\n", "r": "\r", "t": "\t"}


def _pattern(said: str) -> re.Pattern[str]:
    """What advice looks like; a refusal as a whole begins it with a capital letter."""
    return re.compile(_SLOT.sub(lambda found: _SLOTS[found[0]], re.escape(said)), re.IGNORECASE)


_KNOWN: Final = tuple([(_pattern(said), here) for said, here in _SAID_HERE])


def said_here(advice: str) -> str:
    """Advice of the registry, as it can be followed over the network."""
    for pattern, here in _KNOWN:
        if found := pattern.fullmatch(advice):
            slots = {slot: _step(text) if slot == "NAME" else text for slot, text in found.groupdict().items()}
            return here.format(BASE=BASE, **slots)
    return advice


def _step(name: str) -> str:
    """A name in a command as a step of a path; one that was cut has to be put in by whoever knows it."""
    text = _ESCAPE.sub(_character, name[1:-1])
    return "{handle}" if len(text) > MAX_QUOTED else quote(text, safe="", errors="replace")


def _character(found: re.Match[str]) -> str:
    """What an escape of `quoted` stands for."""
    number = found["x"] or found["u"] or found["U"]
    return _OTHERS.get(found["other"], found["other"]) if number is None else chr(int(number, 16))


def on_name(rule: str) -> str:
    """What to do about a name that breaks a rule."""
    full = f"the rule in full: GET {BASE}/names/rules/{rule}"
    return f"name a resolver of your own with the parameter resolver; {full}" if rule == "U4" else full

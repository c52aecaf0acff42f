"""Decisions of the check of an import that its job can use, so that new records are not decided twice.

The check decides each row as the job will. What it decided for a new record is kept with the row, and holds as long as
everything that it read is unchanged: settings, policies, prefixes and the records that give the permission (the
`Basis`), and the handle itself, which must still be new. The job reads all of that again in each step, so the commit
checks it as for any other decision. If something has changed, or somebody else runs the job, each row is decided again.
"""

import hashlib
import sys
from collections.abc import Iterable
from struct import Struct
from typing import Final

import msgspec

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.records.encoding import to_wire
from perseid.registry.context import Context
from perseid.registry.identity import Identity, TokenIdentity
from perseid.registry.snapshot import Rules
from perseid.schema.imports import ImportRow, RowOptions

RULES_VERSION: Final = 1
"""Changes with the rules of deciding, within a version of Perseid as well."""

MAX_RECORDS: Final = 100
"""Records of a basis, which each step reads: more than the policies and prefixes of a file, which are few."""

_WHO: Final = "by"  # not a key in hexadecimal form
_LOADED_VERSION: Final = str(sys.modules["perseid"].__version__)  # importing the root would import the client as well
_TIMESTAMP: Final = Struct(">I")
_TIMESTAMP_AT: Final = 4  # offset in an encoded value
_TIMESTAMP_END: Final = _TIMESTAMP_AT + _TIMESTAMP.size


class KeptDecision(msgspec.Struct, frozen=True, array_like=True):
    """The new record that was decided for a row."""

    handle: str
    state: int
    exact: bool
    contents: tuple[bytes, ...]
    """The encoded values."""


class SpooledRow(ImportRow, frozen=True, omit_defaults=True):
    """A valid row, as the check gives it to the job."""

    decision: KeptDecision | None = None

    @classmethod
    def of(cls, row: ImportRow, draft: Draft) -> "SpooledRow":
        """A row with what was decided for it."""
        decision = KeptDecision(draft.handle, int(draft.state), draft.exact, tuple(draft.contents()))
        return cls(*(*msgspec.structs.astuple(row), decision))


class Basis:
    """What decisions of a check depend on, except for the handles of their rows."""

    def __init__(self, identity: Identity, interface: str) -> None:
        self._identity, self._interface = identity, interface
        self._leaves: dict[str, str] = {}
        self._who = ""
        self._holds = True

    def add_rules(self, rules: Rules) -> None:
        """Note the settings by which the next rows are decided: they can change while a file is checked."""
        who = _digest(self._identity, self._interface, rules)
        if self._who not in ("", who):
            self._holds = False
        self._who = who

    def add(self, read: Iterable[tuple[bytes, Entry | None]]) -> None:
        """Note records that were read, with their latest entries."""
        for key, entry in read:
            leaf = _leaf(entry)
            if len(self._leaves) > MAX_RECORDS or self._leaves.setdefault(key.hex(), leaf) != leaf:
                self._holds = False

    def describe(self) -> dict[str, str]:
        """Return the leaf hash of each record, and who decided; empty if the decisions cannot be used."""
        return {**self._leaves, _WHO: self._who} if self._holds else {}


def is_unchanged(basis: dict[str, str], context: Context) -> bool:
    """Whether decisions with a basis hold in a context; the commit checks what this reads."""
    snapshot = context.snapshot
    if basis.get(_WHO) != _digest(context.identity, context.interface, snapshot.rules):
        return False
    try:
        leaves = {bytes.fromhex(key): leaf for key, leaf in basis.items() if key != _WHO}
    except ValueError:  # the file of the import is damaged
        return False
    return all(_leaf(snapshot.entry(key)) == leaf for key, leaf in leaves.items())


def can_keep(context: Context, draft: Draft, options: RowOptions) -> bool:
    """Whether the decision on a new record does not depend on the time, except for the timestamps of its values."""
    if options.preserve_dates or any(value.ttl_type for value in draft.values):
        return False
    return not context.snapshot.policy(draft.handle.partition("/")[0]).authority


def apply_decision(context: Context, decision: KeptDecision, note: str) -> Draft | None:
    """Return the entry of a decision that holds, with the time of now; None if the handle is no longer new."""
    now = _TIMESTAMP.pack(to_wire(context.now))
    contents = [content[:_TIMESTAMP_AT] + now + content[_TIMESTAMP_END:] for content in decision.contents]
    kind = Action.CREATE, State(decision.state), decision.exact
    draft = Draft.of_contents(kind, decision.handle, context.interface, str(context.identity), note, contents)
    return draft if context.snapshot.entry(draft.key, new=True) is None else None


def _leaf(entry: Entry | None) -> str:
    return "" if entry is None else entry.leaf_hash().hex()


def _digest(identity: Identity, interface: str, rules: Rules) -> str:
    """Return what identifies who decides, by which settings and with which program; the same in each process."""
    who: object = identity
    if isinstance(identity, TokenIdentity):  # the order of its scopes differs between processes
        scopes = sorted([scope.value for scope in identity.scope.scopes])
        who = identity.issuer, identity.token, scopes, identity.scope.namespaces
    text = repr((RULES_VERSION, _LOADED_VERSION, who, interface, rules))
    return hashlib.sha256(text.encode()).hexdigest()

"""Under which key a record is kept, and the names of the installation's own records.

Small and capital ASCII letters are the same unless the namespace tells them apart, and then only in the suffix (H5).
Every entry says which of the two holds for it, so the key follows from the entry alone, for ever.

Names under `0.SITE/` are the installation's own. They are entries and records like any other, with history and proof,
but no door serves them as handles: which prefixes are homed here, the policy of each namespace, the bearer tokens, and
the ledger itself.
"""

from typing import Final

from perseid.names.characters import fold

LOCAL: Final = "0.SITE/"
"""What the names of the installation's own records begin with."""

HOMED: Final = LOCAL + "HOMED/"
"""Before a prefix handle: this server is responsible for the prefix, while the record exists."""

POLICY: Final = LOCAL + "POLICY/"
"""Before a prefix: the rules of the namespace."""

TOKENS: Final = LOCAL + "TOKENS/"
"""Before the id of a bearer token: what it is good for, and by what it is recognised."""

LEDGER: Final = LOCAL + "LEDGER"
"""The ledger itself: new checkpoint keys, new origins."""


def record_key(handle: str, *, exact: bool = False) -> bytes:
    """The key of a record: the handle in UTF-8 with folded letters; where they are told apart, a folded prefix only."""
    if exact:
        prefix, slash, suffix = handle.partition("/")
        return f"{fold(prefix)}{slash}{suffix}".encode()
    return fold(handle).encode()


def homed_name(prefix_handle: str) -> str:
    """The name of the record that says whether a prefix is homed here: `0.SITE/HOMED/0.NA/12345`."""
    return HOMED + fold(prefix_handle)


def policy_name(prefix: str) -> str:
    """The name of the record with the policy of a namespace: `0.SITE/POLICY/12345`."""
    return POLICY + fold(prefix)


def token_name(token: str) -> str:
    """The name of the record of a bearer token: `0.SITE/TOKENS/K7QPX2MA`."""
    return TOKENS + fold(token)

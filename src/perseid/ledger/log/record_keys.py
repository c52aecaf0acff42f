"""Keys of records, and the names of the installation's own records.

ASCII case is ignored, unless the namespace is case-sensitive, and then only in the suffix (H5). Every entry says which
rule applies to it, so its key never changes.

Names under `0.SITE/` are the installation's own records: homed prefixes, namespace policies, bearer tokens, the ledger
itself. They have history and proofs like any other record, but no interface serves them as handles.
"""

from typing import Final

from perseid.names.handle import fold

LOCAL: Final = "0.SITE/"
"""Prefix of the installation's own records."""

HOMED: Final = LOCAL + "HOMED/"
"""Followed by a prefix handle: this server is responsible for the prefix while the record exists."""

POLICY: Final = LOCAL + "POLICY/"
"""Followed by a prefix: the rules of the namespace."""

TOKENS: Final = LOCAL + "TOKENS/"
"""Followed by the id of a bearer token: its scopes and its hash."""

LEDGER: Final = LOCAL + "LEDGER"
"""The ledger itself: new checkpoint keys, new origins."""


def record_key(handle: str, *, exact: bool = False) -> bytes:
    """Return a record's key: the case-folded handle in UTF-8; only the prefix is folded if `exact`."""
    if exact:
        prefix, slash, suffix = handle.partition("/")
        return f"{fold(prefix)}{slash}{suffix}".encode()
    return fold(handle).encode()


def key_range(start: str, *, exact: bool = False) -> tuple[bytes, bytes]:
    """Return the range of the keys of all handles that start like this; of a prefix and `/` by either case rule."""
    first = record_key(start, exact=exact)
    return first, first[:-1] + bytes((first[-1] + 1,))


def homed_name(prefix_handle: str) -> str:
    """Return the name of the record for a homed prefix: `0.SITE/HOMED/0.NA/12345`."""
    return HOMED + fold(prefix_handle)


def policy_name(prefix: str) -> str:
    """Return the name of a namespace's policy record: `0.SITE/POLICY/12345`."""
    return POLICY + fold(prefix)


def token_name(token: str) -> str:
    """Return the name of a bearer token's record: `0.SITE/TOKENS/K7QPX2MA`."""
    return TOKENS + fold(token)

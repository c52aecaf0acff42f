"""Partition of handles among the servers of a site (native protocol §11.4).

    part  = prefix part | suffix part | whole handle      (hash option 0 | 1 | 2)
    d     = MD5( ASCII-uppercase(part) )
    h     = abs( signed 32-bit big-endian integer from d[12:16] )
    index = h mod number of servers                       (position in the site record)

For a name without a slash the prefix is 0.NA and the suffix is the whole name. For -2³¹, abs() overflows in the
reference code; here it is 2³¹.
"""

import hashlib
from typing import Final

from .encoding import OpenEnum
from .errors import RecordMisuse

_PREFIX_OF_PREFIXES: Final = b"0.NA"


class HashOption(OpenEnum):
    """The part of a handle that selects the server."""

    PREFIX = 0
    SUFFIX = 1
    ALL = 2


def partition_hash(handle: bytes, option: int = HashOption.ALL) -> int:
    """Hash of a handle, from 0 to 2³¹. An unknown option means the whole handle."""
    digest = hashlib.md5(_hashed_part(handle, option).upper(), usedforsecurity=False).digest()
    return abs(int.from_bytes(digest[12:16], "big", signed=True))


def find_server_index(handle: bytes, option: int, servers: int) -> int:
    """Position of the server that is responsible for a handle."""
    if servers < 1:
        raise RecordMisuse("the site has no servers")
    return 0 if servers == 1 else partition_hash(handle, option) % servers


def _hashed_part(handle: bytes, option: int) -> bytes:
    prefix, slash, suffix = handle.partition(b"/")
    if option == HashOption.PREFIX:
        return prefix if slash else _PREFIX_OF_PREFIXES
    if option == HashOption.SUFFIX:
        return suffix if slash else handle
    return handle

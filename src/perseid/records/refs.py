"""Pointers to values in JSON, and where an index and a handle must both be there, in text.

JSON is `{"handle": "0.NA/12345", "index": 300}`; text is `300:0.NA/12345`. For claims and identities, where the
index may be left out, see `ValueRef.parse`.
"""

import re

from .errors import InvalidData
from .json_parsing import JsonObject, a_number, a_text, an_object, check_text, member
from .value import ValueRef

_TEXT = re.compile(r"(-?[0-9]{1,10}):(.*)", re.DOTALL)


def ref_from_json(plain: object, what: str) -> ValueRef:
    """Take the JSON form; the index may be written as text."""
    members = an_object(plain, what)
    handle = a_text(member(members, "handle", what), f"the handle of {what}")
    return ValueRef(a_number(member(members, "index", what), f"the index of {what}"), handle)


def ref_to_json(ref: ValueRef) -> JsonObject:
    """The JSON form."""
    return {"handle": ref.handle, "index": ref.index}


def ref_from_text(text: str) -> ValueRef:
    """Take `INDEX:HANDLE`, both of which must be written."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidData(f"{text[:60]!r} is not of the form INDEX:HANDLE, such as 300:0.NA/12345")
    index = a_number(int(found[1]), "the index")
    check_text(found[2], "the handle")
    return ValueRef(index, found[2])

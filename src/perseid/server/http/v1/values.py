"""Values of records in requests and answers.

They look as in the API of deployed servers, `{"index": 1, "type": "URL", "data": {"format": "string", "value": "…"}}`,
and in requests may be shorter: data may be a text, as at the command line, and what is left out is chosen
(`perseid.registry.commands.records`).
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.data_types import data_from_text
from perseid.records.encoding import to_base64
from perseid.records.errors import InvalidData
from perseid.records.json_form import value_from_json, value_to_json
from perseid.records.json_parsing import kind
from perseid.records.types import HS_SECKEY, has_type
from perseid.records.value import MAX_VALUES, Permission, Value, ValueRef, ref_from_text
from perseid.registry.commands.records import Given as GivenValue
from perseid.registry.commands.records import Ttl

from .structures import About, Given, Told
from .validation import Unfitting

FORMATS: Final = (
    "`string`, `base64`, `hex`, `admin` (HS_ADMIN), `vlist` (HS_VLIST), `site` (HS_SITE), `key` (HS_PUBKEY)"
)

_OF_OCTETS: Final = frozenset(("string", "base64", "hex"))
"""Formats of data that is octets, whatever it means."""

PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
"""The permissions of a value that administrators alone may read, as of a secret key where nothing else is said."""

Index = Annotated[int, About("Where it stands in the record.", ge=1, le=0x7FFF_FFFF, examples=[1])]
Type = Annotated[str, About("What sort of value it is.", min_length=1, max_length=2_048, examples=["URL"])]
Permissions = Annotated[
    str,
    About(
        "Who may read and write it, as four digits: administrators read, administrators write, everybody reads, "
        "everybody writes. `1110` is usual, `1100` is private.",
        pattern="^[01]{4}([01]{4})?$",
        examples=["1110"],
    ),
]
TtlText = Annotated[
    int | str, About("For how many seconds it may be kept; or the moment until which, in ISO 8601.", examples=[86400])
]


class Data(Given, frozen=True):
    """The data of a value."""

    format: Annotated[str, About(f"How it is written: {FORMATS}.", examples=["string"])]
    value: Annotated[
        str | dict[str, Any] | list[Any],
        About(
            "The data in that format: a text for `string`, `base64` and `hex`, a list for `vlist`, and otherwise an "
            "object.",
            examples=["https://example.org/"],
        ),
    ]


class Reference(Given, frozen=True):
    """Another value."""

    handle: Annotated[str, About("The handle in whose record it stands.", examples=["0.NA/12345"])]
    index: Annotated[int, About("Where it stands there; 0 for any.", ge=0, le=0x7FFF_FFFF, examples=[300])]


class ValueGiven(Given, frozen=True):
    """A value that is to be stored."""

    type: Type
    data: Annotated[
        str | Data,
        About(
            "What it says: a text, as people write data of the type (`200:0.NA/12345` for HS_ADMIN, `base64:…` for "
            "octets); or an object that says in which format it is written, as answers do."
        ),
    ]
    index: Annotated[Index | None, About("Where it shall stand; a free place is chosen if it is left out.")] = None
    permissions: Annotated[
        Permissions | None, About("Who may read and write it; if left out `1110`, and `1100` for a secret key.")
    ] = None
    ttl: Annotated[TtlText | None, About("How long it may be kept; as the namespace's policy says if left out.")] = None
    ttl_type: Annotated[int | None, About("How `ttl` counts, where it is neither seconds nor a moment.")] = None
    references: Annotated[tuple[Reference, ...] | None, About("Values that it refers to; hardly anybody uses it.")] = (
        None
    )
    timestamp: Annotated[
        int | str | None, About("As it was read; it does not count, for the server says when a value was changed.")
    ] = None


class ValueTold(Told, frozen=True):
    """A value of a record."""

    index: Index
    type: Type
    data: Annotated[Data, About("What it says.")]
    ttl: TtlText
    ttl_type: Annotated[int | None, About("How `ttl` counts, where it is neither seconds nor a moment.")] = None
    permissions: Permissions = "1110"
    timestamp: Annotated[int | str | None, About("When it was last changed, in ISO 8601.")] = None
    references: Annotated[tuple[Reference, ...], About("Values that it refers to.")] = ()


Values = Annotated[tuple[ValueGiven, ...], About("Values of a record.", max_length=MAX_VALUES)]


def party(text: str, where: str) -> ValueRef:
    """Somebody who holds a key, or a group, as `INDEX:HANDLE`; raises `Unfitting`."""
    try:
        found = ref_from_text(text)
        Handle.parse(found.handle)
    except (InvalidData, InvalidName) as problem:
        raise Unfitting(
            f"{problem}; write INDEX:HANDLE, as in 300:0.NA/12345", where, "name a key, or a group of keys"
        ) from problem
    return found


def given_values(values: Iterable[ValueGiven], where: str = "$.values") -> tuple[GivenValue, ...]:
    """Values of a request, for commands of the registry; raises `Unfitting`, with their place."""
    return tuple([_given(value, f"{where}[{number}]") for number, value in enumerate(values)])


def told_values(values: Sequence[Value]) -> list[ValueTold]:
    """Values for an answer."""
    return [msgspec.convert(value_to_json(value), ValueTold) for value in values]


def _check_data(data: str | Data, where: str) -> None:
    """Refuse data of octets that is no text: there are readers that guess what it would be as one, and we do not."""
    if isinstance(data, Data) and data.format.lower() in _OF_OCTETS and not isinstance(data.value, str):
        message = f"data in the format {data.format} is a text, and here it is {kind(data.value)}"
        raise Unfitting(message, f"{where}.data.value", "write it as a text, in quotes")


def _given(given: ValueGiven, where: str) -> GivenValue:
    _check_data(given.data, where)
    plain = {name: said for name, said in msgspec.to_builtins(given).items() if said is not None}
    try:
        if given.references is not None:
            plain["references"] = [*plain["references"]]
        if isinstance(given.data, str):
            plain["data"] = {"format": "base64", "value": to_base64(data_from_text(given.type, given.data))}
        value = value_from_json({"index": 1, **plain, "timestamp": 0})
    except InvalidData as problem:
        advice = "what values look like stands in /docs/structures#ValueGiven"
        raise Unfitting(f"the value does not fit: {problem}", where, advice) from problem
    permissions = None if given.permissions is None else value.permissions
    if permissions is None and has_type(value.type, HS_SECKEY):
        permissions = PRIVATE  # nobody means to publish a secret key
    return GivenValue(
        value.type,
        value.data,
        given.index,
        permissions,
        None if given.ttl is None else Ttl(value.ttl, value.ttl_type),
        None if given.references is None else value.references,
    )

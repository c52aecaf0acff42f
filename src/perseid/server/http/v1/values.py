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
from perseid.records.json_parsing import json_type_name
from perseid.records.types import HS_SECKEY, has_type
from perseid.records.value import MAX_VALUES, Permission, Value, ValueRef, ref_from_text
from perseid.registry.commands.records import PartialValue as GivenValue
from perseid.registry.commands.records import Ttl

from .structures import Doc, RequestBody, ResponseBody
from .validation import InvalidParameter

FORMATS: Final = (
    "`string`, `base64`, `hex`, `admin` (HS_ADMIN), `vlist` (HS_VLIST), `site` (HS_SITE), `key` (HS_PUBKEY)"
)

_TEXT_FORMATS: Final = frozenset(("string", "base64", "hex"))
"""Formats of data that is octets, whatever it means."""

PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
"""The permissions of a value that administrators alone may read, as of a secret key where nothing else is said."""

Index = Annotated[int, Doc("Where it stands in the record.", ge=1, le=0x7FFF_FFFF, examples=[1])]
Type = Annotated[str, Doc("What sort of value it is.", min_length=1, max_length=2_048, examples=["URL"])]
Permissions = Annotated[
    str,
    Doc(
        "Who may read and write it, as four digits: administrators read, administrators write, everybody reads, "
        "everybody writes. `1110` is usual, `1100` is private.",
        pattern="^[01]{4}([01]{4})?$",
        examples=["1110"],
    ),
]
TtlText = Annotated[
    int | str, Doc("For how many seconds it may be kept; or the moment until which, in ISO 8601.", examples=[86400])
]


class Data(RequestBody, frozen=True):
    """The data of a value."""

    format: Annotated[str, Doc(f"How it is written: {FORMATS}.", examples=["string"])]
    value: Annotated[
        str | dict[str, Any] | list[Any],
        Doc(
            "The data in that format: a text for `string`, `base64` and `hex`, a list for `vlist`, and otherwise an "
            "object.",
            examples=["https://example.org/"],
        ),
    ]


class Reference(RequestBody, frozen=True):
    """Another value."""

    handle: Annotated[str, Doc("The handle in whose record it stands.", examples=["0.NA/12345"])]
    index: Annotated[int, Doc("Where it stands there; 0 for any.", ge=0, le=0x7FFF_FFFF, examples=[300])]


class ValueInput(RequestBody, frozen=True):
    """A value that is to be stored."""

    type: Type
    data: Annotated[
        str | Data,
        Doc(
            "What it says: a text, as people write data of the type (`200:0.NA/12345` for HS_ADMIN, `base64:…` for "
            "octets); or an object that says in which format it is written, as answers do."
        ),
    ]
    index: Annotated[Index | None, Doc("Where it shall stand; a free place is chosen if it is left out.")] = None
    permissions: Annotated[
        Permissions | None, Doc("Who may read and write it; if left out `1110`, and `1100` for a secret key.")
    ] = None
    ttl: Annotated[TtlText | None, Doc("How long it may be kept; as the namespace's policy says if left out.")] = None
    ttl_type: Annotated[int | None, Doc("How `ttl` counts, where it is neither seconds nor a moment.")] = None
    references: Annotated[tuple[Reference, ...] | None, Doc("Values that it refers to; hardly anybody uses it.")] = None
    timestamp: Annotated[
        int | str | None, Doc("As it was read; it does not count, for the server says when a value was changed.")
    ] = None


class ValueResponse(ResponseBody, frozen=True):
    """A value of a record."""

    index: Index
    type: Type
    data: Annotated[Data, Doc("What it says.")]
    ttl: TtlText
    ttl_type: Annotated[int | None, Doc("How `ttl` counts, where it is neither seconds nor a moment.")] = None
    permissions: Permissions = "1110"
    timestamp: Annotated[int | str | None, Doc("When it was last changed, in ISO 8601.")] = None
    references: Annotated[tuple[Reference, ...], Doc("Values that it refers to.")] = ()


Values = Annotated[tuple[ValueInput, ...], Doc("Values of a record.", max_length=MAX_VALUES)]


def parse_value_ref(text: str, where: str) -> ValueRef:
    """Somebody who holds a key, or a group, as `INDEX:HANDLE`; raises `Unfitting`."""
    try:
        found = ref_from_text(text)
        Handle.parse(found.handle)
    except (InvalidData, InvalidName) as problem:
        raise InvalidParameter(
            f"{problem}; write INDEX:HANDLE, as in 300:0.NA/12345", where, "name a key, or a group of keys"
        ) from problem
    return found


def parse_values(values: Iterable[ValueInput], where: str = "$.values") -> tuple[GivenValue, ...]:
    """Values of a request, for commands of the registry; raises `Unfitting`, with their place."""
    return tuple([_parse_value(value, f"{where}[{number}]") for number, value in enumerate(values)])


def dump_values(values: Sequence[Value]) -> list[ValueResponse]:
    """Values for an answer."""
    return [msgspec.convert(value_to_json(value), ValueResponse) for value in values]


def _check_data(data: str | Data, where: str) -> None:
    """Refuse data of octets that is no text: there are readers that guess what it would be as one, and we do not."""
    if isinstance(data, Data) and data.format.lower() in _TEXT_FORMATS and not isinstance(data.value, str):
        message = f"data in the format {data.format} is a text, and here it is {json_type_name(data.value)}"
        raise InvalidParameter(message, f"{where}.data.value", "write it as a text, in quotes")


def _parse_value(given: ValueInput, where: str) -> GivenValue:
    _check_data(given.data, where)
    plain = {name: said for name, said in msgspec.to_builtins(given).items() if said is not None}
    try:
        if given.references is not None:
            plain["references"] = [*plain["references"]]
        if isinstance(given.data, str):
            plain["data"] = {"format": "base64", "value": to_base64(data_from_text(given.type, given.data))}
        value = value_from_json({"index": 1, **plain, "timestamp": 0})
    except InvalidData as problem:
        advice = "what values look like stands in /docs/structures#ValueInput"
        raise InvalidParameter(f"the value does not fit: {problem}", where, advice) from problem
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

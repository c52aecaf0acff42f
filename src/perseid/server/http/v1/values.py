"""Values of records in requests and responses.

They have the form of Handle.Net servers, `{"index": 1, "type": "URL", "data": {"format": "string", "value": "…"}}`. In
requests data may be a string, as at the command line, and omitted fields get defaults
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
from perseid.registry.commands.records import PartialValue, Ttl

from .schemas import Doc, RequestBody, ResponseBody
from .validation import InvalidParameter

FORMATS: Final = (
    "`string`, `base64`, `hex`, `admin` (HS_ADMIN), `vlist` (HS_VLIST), `site` (HS_SITE), `key` (HS_PUBKEY)"
)

_TEXT_FORMATS: Final = frozenset(("string", "base64", "hex"))
"""Formats whose value is a string."""

PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
"""Readable by administrators only, the default for a secret key."""

Index = Annotated[int, Doc("The index of the value in the record.", ge=1, le=0x7FFF_FFFF, examples=[1])]
Type = Annotated[str, Doc("The type of the value.", min_length=1, max_length=2_048, examples=["URL"])]
Permissions = Annotated[
    str,
    Doc(
        "Permissions as four digits: administrators read, administrators write, public read, public "
        "write. `1110` is usual, `1100` is private.",
        pattern="^[01]{4}([01]{4})?$",
        examples=["1110"],
    ),
]
TtlText = Annotated[
    int | str, Doc("Seconds for which the value can be cached, or an absolute time in ISO 8601.", examples=[86400])
]


class Data(RequestBody, frozen=True):
    """The data of a value."""

    format: Annotated[str, Doc(f"The format: {FORMATS}.", examples=["string"])]
    value: Annotated[
        str | dict[str, Any] | list[Any],
        Doc(
            "The data in that format: a string for `string`, `base64` and `hex`, a list for `vlist`, "
            "otherwise an object.",
            examples=["https://example.org/"],
        ),
    ]


class Reference(RequestBody, frozen=True):
    """A reference to another value."""

    handle: Annotated[str, Doc("The handle of the record.", examples=["0.NA/12345"])]
    index: Annotated[int, Doc("The index of the value; 0 for any.", ge=0, le=0x7FFF_FFFF, examples=[300])]


class ValueInput(RequestBody, frozen=True, rename={"ttl_type": "ttlType"}):
    """A value to store."""

    type: Type
    data: Annotated[
        str | Data,
        Doc(
            "The data: a string in the natural form of the type (`200:0.NA/12345` for HS_ADMIN, "
            "`base64:…` for bytes), or an object with a format, as in responses."
        ),
    ]
    index: Annotated[Index | None, Doc("The index; a free one if omitted.")] = None
    permissions: Annotated[
        Permissions | None, Doc("The permissions; `1110` if omitted, and `1100` for a secret key.")
    ] = None
    ttl: Annotated[TtlText | None, Doc("The TTL; the default of the namespace's policy if omitted.")] = None
    ttl_type: Annotated[int | None, Doc("The TTL type, if it is neither relative nor absolute.")] = None
    references: Annotated[tuple[Reference, ...] | None, Doc("References to other values; rarely used.")] = None
    timestamp: Annotated[int | str | None, Doc("Ignored: the server sets the time of the change.")] = None


class ValueResponse(ResponseBody, frozen=True, rename={"ttl_type": "ttlType"}):
    """A value of a record."""

    index: Index
    type: Type
    data: Annotated[Data, Doc("The data.")]
    ttl: TtlText
    ttl_type: Annotated[int | None, Doc("The TTL type, if it is neither relative nor absolute.")] = None
    permissions: Permissions = "1110"
    timestamp: Annotated[int | str | None, Doc("Time of the last change, in ISO 8601.")] = None
    references: Annotated[tuple[Reference, ...], Doc("References to other values.")] = ()


Values = Annotated[tuple[ValueInput, ...], Doc("Values of a record.", max_length=MAX_VALUES)]


def parse_value_ref(text: str, where: str) -> ValueRef:
    """Parse a key or group, `INDEX:HANDLE`; raises `InvalidParameter`."""
    try:
        reference = ref_from_text(text)
        Handle.parse(reference.handle)
    except (InvalidData, InvalidName) as problem:
        raise InvalidParameter(str(problem), where, "Use INDEX:HANDLE, as in 300:0.NA/12345") from problem
    return reference


def parse_values(values: Iterable[ValueInput], where: str = "$.values") -> tuple[PartialValue, ...]:
    """Parse the values of a request; raises `InvalidParameter` with their path."""
    return tuple([_parse_value(value, f"{where}[{number}]") for number, value in enumerate(values)])


def dump_values(values: Sequence[Value]) -> list[ValueResponse]:
    """Convert values for a response."""
    return [msgspec.convert(value_to_json(value), ValueResponse) for value in values]


def _check_data(data: str | Data, where: str) -> None:
    """Refuse non-string data in a string format: its meaning would be a guess."""
    if isinstance(data, Data) and data.format.lower() in _TEXT_FORMATS and not isinstance(data.value, str):
        message = f"Data in the format {data.format} must be a string, not {json_type_name(data.value)}"
        raise InvalidParameter(message, f"{where}.data.value", "Write it as a string, in quotes")


def _parse_value(item: ValueInput, where: str) -> PartialValue:
    _check_data(item.data, where)
    plain = {name: member for name, member in msgspec.to_builtins(item).items() if member is not None}
    try:
        if item.references is not None:
            plain["references"] = [*plain["references"]]
        if isinstance(item.data, str):
            plain["data"] = {"format": "base64", "value": to_base64(data_from_text(item.type, item.data))}
        value = value_from_json({"index": 1, **plain, "timestamp": 0})
    except InvalidData as problem:
        advice = "See /docs/schemas#ValueInput"
        raise InvalidParameter(f"Invalid value: {problem}", where, advice) from problem
    permissions = None if item.permissions is None else value.permissions
    if permissions is None and has_type(value.type, HS_SECKEY):
        permissions = PRIVATE  # a secret key is never published by accident
    return PartialValue(
        value.type,
        value.data,
        item.index,
        permissions,
        None if item.ttl is None else Ttl(value.ttl, value.ttl_type),
        None if item.references is None else value.references,
    )

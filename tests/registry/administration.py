"""Fixtures for authorization: records in memory, administrators, groups, and identities."""

from collections.abc import Iterable, Mapping
from typing import Final

from perseid.names.handle import Handle
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.record import Permission, Value, ValueRef
from perseid.registry.identity import KeyIdentity, Proof

TARGET: Final = Handle.parse("12345/x")
PREFIX_HANDLE: Final = "0.NA/12345"
SECRET: Final = "correct horse battery staple"


class Records:
    """Records by their exact spelling; notes what was looked up."""

    def __init__(self, records: Mapping[str, Iterable[Value]]) -> None:
        self.records = {handle: tuple(values) for handle, values in records.items()}
        self.asked: list[str] = []

    def values(self, handle: str) -> tuple[Value, ...] | None:
        self.asked.append(handle)
        return self.records.get(handle)

    def group(self, handle: str) -> tuple[Value, ...] | None:
        return self.values(handle)


def ref(text: str) -> ValueRef:
    return ValueRef.parse(text)


def holder(text: str, *, session: bool = False, verified: int | None = None) -> KeyIdentity:
    return KeyIdentity(ref(text), Proof.PUBLIC_KEY, session, verified)


def admin(
    identity: str, permissions: AdminPermission = ALL_PERMISSIONS, index: int = 100, type_: str = "HS_ADMIN"
) -> Value:
    return Value(index, type_, Admin(ref(identity), permissions).to_bytes())


def group(*members: str, index: int = 200, type_: str = "HS_VLIST") -> Value:
    return Value(index, type_, ValueList(tuple([ref(member) for member in members])).to_bytes())


def secret(index: int = 300) -> Value:
    return Value(index, "HS_SECKEY", SECRET.encode(), permissions=Permission.ADMIN_READ | Permission.ADMIN_WRITE)


def url(index: int, data: str = "https://example.org/", permissions: str = "rwr-") -> Value:
    bits = zip(permissions, (8, 4, 2, 1), strict=True)
    return Value(index, "URL", data.encode(), permissions=Permission(sum(bit for sign, bit in bits if sign != "-")))

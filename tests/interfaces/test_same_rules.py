"""Every interface applies the same rules: the same request is accepted, or refused with the same response code.

Where an interface must behave as deployed servers do, the case names it and says why; the table in
docs/reference/interfaces.md lists these exceptions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from perseid.records.record import MAX_VALUES, Permission, TtlType, Value
from perseid.registry.policy.resolution import MAX_ALIASES, MAX_CACHE_LIFETIME
from perseid.wire.codes import ResponseCode
from tests.interfaces.callers import ACCEPTED, ANN, CompatibleApi, Interface, Request, all_interfaces
from tests.server.http.contexts import Harness, header_of

RC = ResponseCode
MANUAL: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "interfaces.md"
EVERYWHERE: Final = ("cli", "compat", "v1", "native", "session")
URL: Final = {"index": 1, "type": "URL", "data": "https://example.org/"}
DESC: Final = {"index": 2, "type": "DESC", "data": "x"}
STORED: Final = (Value.text(1, "URL", "https://example.org/"), Value.text(2, "DESC", "a description"))
ODD: Final = (Value(1, "URL", b"https://example.org/", ttl=-5), Value.text(2, "DESC", "a description"))
PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
HIDDEN: Final = (
    Value.text(1, "URL", "https://example.org/"),
    Value(5, "NOTE", b"for administrators", permissions=PRIVATE),
    Value(6, "NOTE", b"for nobody", permissions=Permission.ADMIN_WRITE),
    Value(7, "NOTE", b"fixed", permissions=Permission.ADMIN_READ | Permission.PUBLIC_READ),
)


@dataclass(frozen=True)
class Case:
    """A request and its outcome."""

    name: str
    request: Request
    outcome: RC
    stored: tuple[Value, ...] | None = None
    """The record before the request; None if there is none."""
    deleted: bool = False
    """Whether that record was deleted."""
    interfaces: tuple[str, ...] = EVERYWHERE
    """Interfaces that can express the request."""
    exceptions: dict[str, RC] = field(default_factory=dict)
    """Interfaces with another outcome."""
    why: str = ""
    """The reason of the exceptions."""


def _with(value: dict[str, object], **more: object) -> dict[str, object]:
    return {**value, **more}


def _alias(index: int, target: str) -> dict[str, object]:
    return {"index": index, "type": "HS_ALIAS", "data": target}


WITH_TTL: Final = ("compat", "v1", "native", "session")
"""Interfaces at which a single value can have a TTL; at the command line only a whole record in JSON can."""

THIRD: Final = _with(DESC, index=3)
ADMIN: Final[dict[str, object]] = {
    "index": 100,
    "type": "HS_ADMIN",
    "data": {"format": "admin", "value": {"handle": "0.NA/12345", "index": 300, "permissions": "011111110011"}},
}
NEGATIVE: Final = _with(DESC, ttl=-1)
OLD_TTL: Final = _with(URL, ttl=-5)
NOT_ADMIN: Final = RC.INVALID_ADMIN

CASES: Final = (
    # Creating
    Case("create", Request("create", (URL,)), ACCEPTED),
    Case("create-empty", Request("create"), ACCEPTED),
    Case(
        "create-empty-type",
        Request("create", (_with(URL, type=""),)),
        ACCEPTED,
        exceptions={"v1": RC.PROTOCOL_ERROR},
        why="deployed servers accept it; the schema of v1 does not",
    ),
    Case(
        "create-index-zero",
        Request("create", (_with(URL, index=0),)),
        RC.INVALID_VALUE,
        exceptions={"v1": RC.PROTOCOL_ERROR},
        why="refused everywhere; in v1 by the schema, before the registry",
    ),
    Case(
        "create-too-many-values",
        Request("create", tuple([_with(DESC, index=number + 1) for number in range(MAX_VALUES + 1)])),
        RC.PROTOCOL_ERROR,
        interfaces=("cli", "compat", "v1"),  # a native message cannot contain them
    ),
    Case("create-bidi-\u202e", Request("create", (URL,)), RC.INVALID_HANDLE),
    Case("create-existing", Request("create", (URL,)), RC.HANDLE_ALREADY_EXISTS, STORED),
    Case("create-without-permission", Request("create", (URL,), identity=ANN), NOT_ADMIN),
    Case("create-same-index-twice", Request("create", (URL, URL)), RC.VALUE_ALREADY_EXISTS),
    Case(
        "create-deleted",
        Request("create", (URL,)),
        RC.HANDLE_ALREADY_EXISTS,
        STORED,
        deleted=True,
        exceptions={"compat": ACCEPTED},
        why="deployed servers forget deleted handles, and clients of their API create them again",
    ),
    # TTLs
    Case("ttl-zero", Request("create", (_with(URL, ttl=0),)), ACCEPTED),
    Case("ttl-negative", Request("create", (OLD_TTL,)), RC.INVALID_VALUE),
    Case("ttl-large", Request("create", (_with(URL, ttl=0x7FFF_FFFF),)), ACCEPTED),
    Case("ttl-absolute", Request("create", (_with(URL, ttl="2040-01-01T00:00:00Z"),)), ACCEPTED),
    Case(
        "ttl-absolute-distant",
        Request("create", (_with(URL, ttl="2200-01-01T00:00:00Z"),)),
        RC.INVALID_VALUE,
        interfaces=("cli", "compat", "v1"),  # not expressible in 32 bits
    ),
    Case("ttl-negative-replace", Request("replace", (OLD_TTL, NEGATIVE, ADMIN)), RC.INVALID_VALUE, ODD),
    Case("ttl-negative-kept-in-replace", Request("replace", (OLD_TTL, DESC, ADMIN)), ACCEPTED, ODD),
    Case("ttl-negative-add", Request("add", (_with(THIRD, ttl=-1),)), RC.INVALID_VALUE, STORED, interfaces=WITH_TTL),
    Case("ttl-negative-modify", Request("modify", (NEGATIVE,)), RC.INVALID_VALUE, STORED, interfaces=WITH_TTL),
    Case("ttl-negative-kept-beside-add", Request("add", (THIRD,)), ACCEPTED, ODD),
    Case("ttl-negative-kept-in-modify", Request("modify", (_with(URL, data="x", ttl=-5),)), ACCEPTED, ODD),
    # Aliases
    Case("alias", Request("create", (_alias(1, "12345/n0"),)), ACCEPTED),
    Case("alias-of-itself", Request("create", (_alias(1, "{handle}"),)), RC.INVALID_VALUE),
    Case("alias-of-itself-add", Request("add", (_alias(3, "{handle}"),)), RC.INVALID_VALUE, STORED),
    Case("alias-of-itself-modify", Request("modify", (_alias(2, "{handle}"),)), RC.INVALID_VALUE, STORED),
    # Changing
    Case("add", Request("add", (THIRD,)), ACCEPTED, STORED),
    Case("add-index-taken", Request("add", (DESC,)), RC.VALUE_ALREADY_EXISTS, STORED),
    Case("add-nothing", Request("add"), RC.INVALID_VALUE, STORED, interfaces=("compat", "native", "session")),
    Case("add-to-nothing", Request("add", (DESC,)), RC.HANDLE_NOT_FOUND),
    Case("add-without-permission", Request("add", (THIRD,), identity=ANN), NOT_ADMIN, STORED),
    Case("modify", Request("modify", (DESC,)), ACCEPTED, STORED),
    Case(
        "modify-read-only",
        Request("modify", (_with(URL, index=7),)),
        RC.INSUFFICIENT_PERMISSIONS,
        HIDDEN,
        exceptions={"compat": ACCEPTED},
        why="a PUT of single values is ADD_VALUE with overwriting, which does not check it in deployed servers",
    ),
    Case(
        "modify-read-only-and-add",
        Request("modify", (_with(URL, index=7), THIRD)),
        RC.INSUFFICIENT_PERMISSIONS,
        HIDDEN,
        interfaces=("cli", "v1"),
    ),
    Case("modify-unreadable", Request("modify", (_with(URL, index=6),)), ACCEPTED, HIDDEN),
    Case("remove-read-only", Request("remove", indexes=(7,)), ACCEPTED, HIDDEN),
    Case("replace-read-only", Request("replace", (URL, _with(URL, index=7), ADMIN)), ACCEPTED, HIDDEN),
    Case(
        "replace-nothing",
        Request("replace", (URL, ADMIN)),
        RC.HANDLE_NOT_FOUND,
        exceptions={"compat": ACCEPTED, "native": ACCEPTED, "session": ACCEPTED},
        why="their only request that replaces a record also creates it",
    ),
    Case("replace-without-permission", Request("replace", (DESC, ADMIN), identity=ANN), NOT_ADMIN, STORED),
    Case("remove", Request("remove", indexes=(2,)), ACCEPTED, STORED),
    Case("remove-missing", Request("remove", indexes=(2, 77)), RC.VALUES_NOT_FOUND, STORED),
    Case("remove-without-permission", Request("remove", indexes=(2,), identity=ANN), NOT_ADMIN, STORED),
    Case("delete", Request("delete"), ACCEPTED, STORED),
    Case("delete-nothing", Request("delete"), RC.HANDLE_NOT_FOUND),
    Case("delete-without-permission", Request("delete", identity=ANN), NOT_ADMIN, STORED),
    Case(
        "replace-without-administrators",
        Request("replace", (URL,)),
        ACCEPTED,
        STORED,
        exceptions={"compat": RC.INVALID_VALUE},
        why="the command line and v1 keep the administrators; clients of the compatible API send whole records",
    ),
    # Reading
    Case("read-public", Request("read", indexes=(1,)), ACCEPTED, HIDDEN),
    Case("read-private", Request("read", indexes=(5,)), ACCEPTED, HIDDEN),
    Case("read-private-without-permission", Request("read", indexes=(5,), identity=ANN), NOT_ADMIN, HIDDEN),
    Case("read-unreadable", Request("read", indexes=(6,)), RC.INSUFFICIENT_PERMISSIONS, HIDDEN),
    Case("read-missing-value", Request("read", indexes=(77,)), RC.VALUES_NOT_FOUND, HIDDEN),
    Case("read-nothing", Request("read"), RC.HANDLE_NOT_FOUND),
)

BY_NAME: Final = {case.name: case for case in CASES}
FOLLOWING: Final = ("cli", "v1")
"""Interfaces that follow aliases; the others return them as values, as deployed servers do."""


CACHED: Final = {
    "cached-short": 60,
    "cached-long": MAX_CACHE_LIFETIME,
    "cached-until": MAX_CACHE_LIFETIME,
    "cached-past": 0,
}
"""Seconds for which records with these TTLs are cached."""

CACHED_VALUES: Final = (
    Value(1, "URL", b"https://example.org/", 60),
    Value(1, "URL", b"https://example.org/", 400_000),
    Value(1, "URL", b"https://example.org/", 2_208_988_800, TtlType.ABSOLUTE),
    Value(1, "URL", b"https://example.org/", 1, TtlType.ABSOLUTE),
)


def server_of(interfaces: dict[str, Interface]) -> Harness:
    """The server behind the HTTP interfaces."""
    api = interfaces["compat"]
    assert isinstance(api, CompatibleApi)
    return api.server


def handle_for(case: str, interface: str) -> str:
    """The handle of a case: each interface changes its own."""
    return f"12345/{case}.{interface}"


def _chain(name: str, length: int, end: str) -> dict[str, tuple[Value, ...]]:
    """Records with so many aliases in a row."""
    targets = [f"12345/{name}{number}" for number in range(1, length)] + [end]
    return {f"12345/{name}{number}": (Value.text(1, "HS_ALIAS", to),) for number, to in enumerate(targets)}


@pytest.fixture(scope="module")
def interfaces() -> Iterator[dict[str, Interface]]:
    pairs = [(case, handle_for(case.name, each)) for case in CASES if case.stored is not None for each in EVERYWHERE]
    records = {handle: case.stored or () for case, handle in pairs}
    records |= _chain("long", MAX_ALIASES, "12345/n0") | _chain("longer", MAX_ALIASES + 1, "12345/n0")
    records |= _chain("circle", 3, "12345/circle0")
    records |= {f"12345/{name}": (value,) for name, value in zip(CACHED, CACHED_VALUES, strict=True)}
    with all_interfaces(records, tuple(handle for case, handle in pairs if case.deleted)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "interface"), [(case.name, interface) for case in CASES for interface in case.interfaces]
)
def test_request_has_the_same_outcome(interfaces: dict[str, Interface], name: str, interface: str) -> None:
    case = BY_NAME[name]
    found = interfaces[interface].send(case.request, handle_for(name, interface))
    assert found == case.exceptions.get(interface, case.outcome)


@pytest.mark.parametrize("interface", FOLLOWING)
@pytest.mark.parametrize(
    ("first", "outcome"),
    [("long0", ACCEPTED), ("longer0", RC.VALUES_NOT_FOUND), ("circle0", RC.VALUES_NOT_FOUND)],
)
def test_aliases_are_followed_alike(interfaces: dict[str, Interface], interface: str, first: str, outcome: RC) -> None:
    assert interfaces[interface].send(Request("follow"), f"12345/{first}") == outcome


@pytest.mark.parametrize(("first", "status"), [("long0", 301), ("longer0", 404), ("circle0", 404)])
def test_the_web_follows_as_many_aliases(interfaces: dict[str, Interface], first: str, status: int) -> None:
    assert server_of(interfaces).get(f"/12345/{first}").status == status


@pytest.mark.parametrize(("name", "seconds"), CACHED.items())
def test_the_web_and_the_api_are_cached_alike(interfaces: dict[str, Interface], name: str, seconds: int) -> None:
    for path in (f"/12345/{name}?index=1", f"/api/handles/12345/{name}?index=1"):
        assert header_of(server_of(interfaces).get(path), "Cache-Control") == f"public, max-age={seconds}"


def test_exceptions_are_documented() -> None:
    for case in CASES:
        assert bool(case.exceptions) == bool(case.why), case.name
        assert set(case.exceptions) <= set(case.interfaces), case.name
    documented = re.findall(r"^\| `([a-z-]+)` \|", MANUAL.read_text(), re.MULTILINE)
    assert documented == [case.name for case in CASES if case.exceptions]

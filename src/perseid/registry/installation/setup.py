"""First steps of an installation: root, first administrator, namespaces, and the demonstration.

The first administrator is laid out as deployed tools do it, on the prefix handle:

    100  HS_ADMIN   200:0.NA/12345   members of the group have all permissions
    200  HS_VLIST   300:0.NA/12345   the group: one key at first
    300  HS_SECKEY                   the key, readable by administrators

New records of the namespace name the group, so their administrators are managed in one place.

The demonstration has the namespaces of the seed documents and the identifiers published there: PILIN's `102.100.272`,
whose types are handles under `102.100.TYPE`, and CORDRA's `2000.01`. The example of PILIN's authority metadata policy
is imported value by value, with its dates. The other records contain what the documents say about them. They have the
date of the minting of their suffix, or of the revision of their document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from perseid.ledger.log.entry import IMPORT
from perseid.names import pilin
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.admin import Admin, ValueList
from perseid.records.encoding import from_iso, to_iso
from perseid.records.record import PRIVATE_PERMISSIONS, Value, ValueRef
from perseid.records.types import HS_ADMIN, HS_SECKEY, HS_VLIST
from perseid.registry.access.permissions import display_name
from perseid.registry.access.roles import KEY_INDEX
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.create_namespace import CreateNamespace
from perseid.registry.commands.minting import DEFAULT_TIMEOUT, retry_until_ready
from perseid.registry.commands.namespaces import AddNamespace, Namespace
from perseid.registry.commands.records import Create, Home
from perseid.registry.identity import Identity
from perseid.registry.policy.authority import FIRST_INDEX
from perseid.registry.policy.policy import PREFIX_PLACEHOLDER, PROFILES, TYPE_REGISTRY, Policy
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

ADMIN_INDEX: Final = 100
GROUP_INDEX: Final = 200

GROUP: Final = f"{GROUP_INDEX}:{PREFIX_OF_PREFIXES}/{PREFIX_PLACEHOLDER}"
"""Administrators of new records, as a policy names them: the group on the prefix handle."""


def administrator_key(prefix: str) -> ValueRef:
    """Return the first administrator's identity."""
    return ValueRef(KEY_INDEX, f"{PREFIX_OF_PREFIXES}/{prefix}")


def administrator_values(prefix: str, members: Sequence[ValueRef], secret: str | None = None) -> tuple[Value, ...]:
    """Return the values of a prefix handle with these administrators and, with a secret, the first one's key."""
    group = ValueRef(GROUP_INDEX, f"{PREFIX_OF_PREFIXES}/{prefix}")
    values = [Value(ADMIN_INDEX, HS_ADMIN, Admin(group).to_bytes())]
    values.append(Value(GROUP_INDEX, HS_VLIST, ValueList(tuple(members)).to_bytes()))
    if secret is not None:
        values.append(Value(KEY_INDEX, HS_SECKEY, secret.encode(), permissions=PRIVATE_PERMISSIONS))
    return tuple(values)


def create_root(registry: Registry, identity: Identity, interface: str, secret: str | None = None) -> None:
    """Make an installation its own root: it serves the prefix handles of its namespaces.

    With a secret the root has the first administrator; otherwise a namespace has it.
    """
    registry.do(Home(f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}"), identity, interface)
    if secret is not None:
        values = administrator_values(PREFIX_OF_PREFIXES, (administrator_key(PREFIX_OF_PREFIXES),), secret)
        registry.do(Create(Handle(PREFIX_OF_PREFIXES, PREFIX_OF_PREFIXES), values), identity, interface)


def add_namespace(
    registry: Registry,
    namespace: AddNamespace,
    identity: Identity,
    interface: str,
    note: str = "",
    patience: float = DEFAULT_TIMEOUT,
) -> Namespace:
    """Create a namespace with everything it needs in one commit: see `commands.create_namespace`.

    If the creator's handle must wait for the clock, this waits up to `patience` seconds, then raises `RetryLater`.
    """
    return retry_until_ready(
        lambda since: registry.do(CreateNamespace(namespace, since), identity, interface, note), None, patience
    )


def with_group_administrators(policy: Policy) -> Policy:
    """Return a policy whose default administrators are the group on the prefix handle, unless it names some."""
    return policy if policy.default_administrators else replace(policy, default_administrators=(GROUP,))


PILIN: Final = "102.100.272"
TYPES: Final = TYPE_REGISTRY.removesuffix("/")
CORDRA: Final = "2000.01"
CREATOR: Final = f"{PILIN}/0N8J991QH"
"""The PILIN project, creator of all its identifiers; its record names itself."""

_NOTE: Final = "demonstration: as published in the seed documents"
_PURPOSES: Final = {
    TYPES: "The types of values in records of the PILIN project, each a handle that resolves to its definition.",
    PILIN: "Identifiers of the PILIN project and of its documents.",
    CORDRA: "Identifiers of CORDRA's specifications, and of the metadata records that describe these.",
}


_DemoRecord: TypeAlias = tuple[str, tuple[Value, ...]]  # handle and values


def create_demonstration(
    registry: Registry, identity: Identity, interface: str, administrators: tuple[ValueRef, ...] = ()
) -> tuple[Handle, ...]:
    """Create the demonstration's namespaces, with these administrators, and its records; return the handles.

    Refused before anything is written if one of the namespaces exists.
    """
    with registry.snapshot() as snapshot:
        for prefix in _PURPOSES:
            if snapshot.policy_entry(prefix) is not None:
                reason = f"Namespace {display_name(prefix)} of the demonstration already exists"
                raise Refused(ResponseCode.HANDLE_ALREADY_EXISTS, reason, AdviceKind.USE_OTHER_INSTALLATION(), "H7")
    for prefix in _PURPOSES:
        values = administrator_values(prefix, administrators) if administrators else ()
        registry.do(AddNamespace(prefix, _policy(prefix), values), identity, interface)
    handles = []
    for handle, values in (*_pilin(), *_cordra()):
        command = Create(Handle.parse(handle), values)
        handles.append(registry.do(command, identity, IMPORT, _NOTE).handle)
    return tuple(handles)


def _policy(prefix: str) -> Policy:
    profiles = {TYPES: PROFILES["free"], PILIN: PROFILES["pilin"], CORDRA: PROFILES["cordra"]}
    policy = replace(profiles[prefix], purpose=_PURPOSES[prefix])
    return with_group_administrators(replace(policy, default_creator=CREATOR) if prefix == PILIN else policy)


def _pilin() -> Iterator[_DemoRecord]:
    """Yield records in an order in which each refers only to existing ones."""
    policy = PROFILES["pilin"]
    yield _pilin_record("0N8J991QH", "The PILIN project", _text(2, "EMAIL", "policy@pilin.net.au"))
    yield _example()
    suffixes = "Handle Suffix Format Policy for the PILIN Project"
    yield _pilin_record("Y35XYS0QH", f"{suffixes}: the latest version, which is 1.0 of 2007-06-26")
    metadata = "Authority Metadata for the PILIN Project"
    work, draft, release = ("8RBZF0DQH", "D7J1G0DQH", "X4NDP2JQH")
    versions = [_text(2 + at, policy.expression_type, f"{PILIN}/{each}") for at, each in enumerate((draft, release))]
    yield _pilin_record(work, f"{metadata}: the latest version", *versions)
    of_work = _text(2, policy.work_type, f"{PILIN}/{work}")
    yield _pilin_record(draft, f"{metadata}: version 0.2 of 2007-09-17, draft for discussion", of_work)
    yield _pilin_record(release, f"{metadata}: version 1.0 of 2007-10-25, release", of_work)


def _example() -> _DemoRecord:
    """Return the example of the authority metadata policy: a date, a creator, an owner, and two timestamps."""
    policy = PROFILES["pilin"]
    created, updated = from_iso("2007-06-22T02:53:46Z"), from_iso("2007-08-10T04:23:11Z")
    owner = Value(100, "HS_ADMIN", Admin(ValueRef(300, "102.100.pilin2/XYZZY")).to_bytes())
    values = (
        _text(1, policy.creation_date_type, "2007-06-22T02:53:46Z").with_timestamp(created),
        _text(2, policy.creator_type, CREATOR).with_timestamp(created),
        owner.with_timestamp(updated),
    )
    return f"{PILIN}/2RDV0T0QH", values


def _cordra() -> Iterator[_DemoRecord]:
    """Yield two specifications, each with its metadata record: two identifiers per object (S12)."""
    cordra = PROFILES["cordra"]
    documents = {
        "CORDRA identifiers as handles": ("EEF4DF17361A42E2B975E554663B70C3", "F4FBE5D290194191AAD3A1EFE79D6C5A"),
        "Encoding CORDRA identifiers in URI syntax": (
            "FFEE9F72B00C4189B137ECD34188B94E",
            "A3D8BE7457C943FFB66ED4583059A8BA",
        ),
    }
    for title, (thing, about) in documents.items():
        of_thing = _text(2, cordra.object_type, f"{CORDRA}/{thing}")
        of_record = _text(2, cordra.metadata_type, f"{CORDRA}/{about}")
        revised = from_iso("2005-01-01T00:00:00Z")
        text = f"{title}: specification, version 1.00.20050101"
        yield _demo_record(f"{CORDRA}/{thing}", revised, _text(1, "DESC", text), of_record)
        text = f"{title}: the metadata record of the specification"
        yield _demo_record(f"{CORDRA}/{about}", revised, _text(1, "DESC", text), of_thing)


def _pilin_record(suffix: str, text: str, *more: Value) -> _DemoRecord:
    """Return a record with authority metadata: the documents give no date, so it is that of the suffix."""
    policy, created = PROFILES["pilin"], int(pilin.to_time(pilin.decode(suffix)).timestamp())
    date = _text(FIRST_INDEX, policy.creation_date_type, to_iso(created))
    creator = _text(FIRST_INDEX + 1, policy.creator_type, CREATOR)
    return _demo_record(f"{PILIN}/{suffix}", created, _text(1, "DESC", text), *more, date, creator)


def _demo_record(handle: str, time: int, *values: Value) -> _DemoRecord:
    """Return a record with the group of its namespace as administrator; all values have the same timestamp."""
    prefix = handle.partition("/")[0]
    group = Admin(ValueRef(GROUP_INDEX, f"{PREFIX_OF_PREFIXES}/{prefix}"))
    admin = Value(ADMIN_INDEX, HS_ADMIN, group.to_bytes())
    return handle, tuple([value.with_timestamp(time) for value in (*values, admin)])


def _text(index: int, type_: str, text: str) -> Value:
    return Value.text(index, type_, text)

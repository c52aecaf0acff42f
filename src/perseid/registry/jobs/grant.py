"""Grant jobs: make existing records of a prefix name the groups of roles, as new records do (`access.roles`).

Each record gets an HS_ADMIN value for the group, with the permissions of the role, as `commands.access.Grant` would add
it, and requires the same permissions. Records that the caller cannot change belong to others and are skipped; so are
those with keys or groups, which editors and readers must not control.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import key_range
from perseid.ledger.store.jobs import Job, JobSteps
from perseid.names.handle import fold
from perseid.records.admin import AdminPermission
from perseid.records.record import Value
from perseid.registry.access.permissions import display_name, on_record
from perseid.registry.access.roles import ROLES
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.access import add_administrator, get_prefix_handle, require_group, require_rights
from perseid.registry.commands.composition import compose
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context, Plan
from perseid.registry.identity import Identity
from perseid.registry.queries.access import find_stored, names_group
from perseid.registry.registry import Registry
from perseid.registry.results import InvalidRequest, Refused
from perseid.schema.access import AccessRole
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from . import runner
from .runner import JobRun

KIND: Final = "grant"


@dataclass(frozen=True, slots=True)
class GrantAll:
    """The parameters of a grant job."""

    prefix: str
    roles: tuple[AccessRole, ...]


def start(
    registry: Registry, order: GrantAll, identity: Identity, interface: str, note: str = "", total: int = 0
) -> Job:
    """Start a grant job; `JobRun` executes it. Raises `Refused`."""
    registry.do(_Start(order), identity, interface)
    parameters: dict[str, object] = {"prefix": order.prefix, "roles": [role.value for role in order.roles]}
    return runner.start_job(registry, KIND, parameters, identity, interface, note, total=total)


def load_work(_registry: Registry, job: Job) -> "_GrantWork":
    """Load the work of a grant job. Raises `Refused` if its parameters are unreadable."""
    parameters = runner.load_parameters(job)
    try:
        roles = parameters["roles"]
        names = roles if isinstance(roles, list) else []
        return _GrantWork(GrantAll(str(parameters["prefix"]), tuple([AccessRole(role) for role in names])), job)
    except (KeyError, ValueError) as problem:
        reason = f"The parameters of job {job.id} are unreadable"
        raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.UNDO_JOB(job=job.id)) from problem


@dataclass(frozen=True, slots=True)
class _Start:
    """Check that the caller may start or resume the job."""

    order: GrantAll

    def decide(self, context: Context) -> Plan[None]:
        """Require MODIFY_ADMIN and LIST_HANDLES on the prefix, and the groups of the roles there."""
        prefix = self.order.prefix
        require_identity(context, f"grant rights on {display_name(prefix)}")
        stored = get_prefix_handle(context, prefix)
        roles = [role for role in self.order.roles if ROLES[role].in_record]
        if not roles:
            reason = "None of these roles has permissions in records"
            advice = AdviceKind.NAME_ROLES(roles=tuple([role.value for role in ROLES if ROLES[role].in_record]))
            raise InvalidRequest(ResponseCode.INVALID_VALUE, reason, advice)
        require_rights(context, stored, AdminPermission.MODIFY_ADMIN | AdminPermission.LIST_HANDLES, on_prefix=True)
        for role in roles:
            require_group(stored, role)
        return Plan(lambda _: None, reason=context.reasons[-1])


@dataclass(frozen=True, slots=True)
class _GrantWork:
    """Adds the groups to records, each once."""

    prepares_ahead: ClassVar[bool] = False
    order: GrantAll
    job: Job

    def pages(self, run: JobRun) -> Iterator[list[Entry]]:
        """Select all records of the prefix."""
        run.registry.do(_Start(self.order), run.identity, self.job.interface)
        at, end = key_range(f"{self.order.prefix}/")
        more = True
        while more:
            with run.registry.snapshot() as snapshot:
                entries, more = snapshot.reader.names_page(at, end, runner.CHUNK_SIZE)
            yield [entry for entry in entries if entry.state is not State.ABSENT]
            more = more and bool(entries)
            at = entries[-1].key + b"\0" if entries else end

    def decider(self, context: Context, _steps: JobSteps) -> Callable[[Entry], Iterator[Draft]]:
        _Start(self.order).decide(context)
        roles = [role for role in self.order.roles if ROLES[role].in_record]
        groups = [(role, ROLES[role].group(fold(self.order.prefix))) for role in roles]

        def add_groups(entry: Entry) -> Iterator[Draft]:
            """Yield the entry that adds the groups to a record, if one is needed and allowed."""
            stored = find_stored(context.snapshot, entry)
            missing = [] if stored is None else [each for each in groups if not names_group(stored, *each)]
            if stored is None or not missing:
                return
            values: Sequence[Value] = stored.values
            needed = AdminPermission.ADD_ADMIN
            for role, group in missing:
                needed |= ROLES[role].in_record
                values = add_administrator(values, stored.policy, group, ROLES[role].in_record)
            requirement = on_record(
                f"grant rights on {display_name(stored.handle)}", needed, stored.handle, Scope.TRANSFER
            )
            decision = context.check(requirement)
            if decision.allowed:
                context.reasons.append(decision.reason)
                yield context.draft(stored, Action.UPDATE, compose(context, stored, values), stored.state)

        return add_groups

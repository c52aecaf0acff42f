"""Migration from other servers: results, differences and the checklist, as `--json` prints them."""

from enum import StrEnum
from typing import Annotated

from .common import Doc, ResponseBody
from .records import ValueResponse


class MigrationSummary(ResponseBody, frozen=True, omit_defaults=False):
    """What a copy did."""

    source: Annotated[str, Doc("The source.")]
    created: Annotated[int, Doc("Number of records that were created here.")]
    updated: Annotated[int, Doc("Number of records that were updated here.")]
    deleted: Annotated[int, Doc("Number of records that were deleted here, because the source deleted them.")]
    unchanged: Annotated[int, Doc("Number of records that were the same.")]
    conflicts: Annotated[int, Doc("Number of records that were changed here, and so were not overwritten.")]
    rejected: Annotated[int, Doc("Number of records that cannot be stored.")]
    prefixes: Annotated[list[str], Doc("Prefixes that are hosted here since.")]
    job: Annotated[str | None, Doc("The job, if anything was changed.")]
    prefixes_not_hosted: Annotated[
        list[str],
        Doc("Prefixes of copied records that are not hosted here, if the source does not list its prefixes."),
    ]
    kept: Annotated[
        dict[str, int],
        Doc("Number of records that the source lacks and that stay, because they came from another source; by source."),
    ]


class MigrationIssue(ResponseBody, frozen=True, omit_defaults=False):
    """A record or prefix that was not migrated."""

    handle: Annotated[str, Doc("The handle.")]
    outcome: Annotated[str, Doc("`conflict` or `rejected`.")]
    reason: Annotated[str, Doc("Why.")]


class DifferenceKind(StrEnum):
    """How a record differs."""

    MISSING = "missing"
    """The source has it, the installation does not."""
    EXTRA = "extra"
    """The installation has it, the source does not."""
    DIFFERENT = "different"
    UNREADABLE = "unreadable"
    """It cannot be compared."""


class ValueDifference(ResponseBody, frozen=True, omit_defaults=False):
    """A value that differs."""

    index: Annotated[int, Doc("The index of the value.")]
    source: Annotated[ValueResponse | None, Doc("The value of the source; null if it has none.")]
    here: Annotated[ValueResponse | None, Doc("The value of the installation; null if it has none.")]


class RecordDifference(ResponseBody, frozen=True, omit_defaults=False):
    """A record that differs."""

    handle: Annotated[str, Doc("The handle.")]
    difference: Annotated[DifferenceKind, Doc("`missing`, `extra`, `different` or `unreadable`.")]
    values: Annotated[list[ValueDifference], Doc("The values that differ in any byte.")]
    reason: Annotated[str, Doc("Why it cannot be compared, or what differs besides values.")] = ""


class ComparisonSummary(ResponseBody, frozen=True, omit_defaults=False):
    """How a source and the installation differ."""

    source: Annotated[str, Doc("The source.")]
    records: Annotated[int, Doc("Number of records of the source.")]
    missing: Annotated[int, Doc("Number of records that are missing here.")]
    extra: Annotated[int, Doc("Number of records that only the installation has.")]
    different: Annotated[int, Doc("Number of records that differ, or cannot be compared.")]
    prefixes_not_hosted: Annotated[list[str], Doc("Prefixes of the source that are not hosted here.")]


class TakenIdentity(ResponseBody, frozen=True, omit_defaults=False):
    """The site information and key of another server, which this installation uses now."""

    serial: Annotated[int, Doc("The serial number of the site information.")]
    servers: Annotated[int, Doc("Number of servers of the site.")]
    position: Annotated[int, Doc("The position of this server, for the setting `site.position`; the first is 1.")]
    addresses: Annotated[list[str], Doc("The addresses of the servers.")]
    profile: Annotated[str, Doc("The profile for its prefixes: `free`, or `exact` if it was case-sensitive.")]
    database: Annotated[str, Doc("The SQL database of the other server, without user; empty if it has none.")]
    settings: Annotated[str, Doc("The settings of the other server, for perseid.toml.")]
    files: Annotated[list[str], Doc("The files that were written.")]


class ChecklistStep(ResponseBody, frozen=True, omit_defaults=False):
    """A step of the cut-over."""

    step: Annotated[int, Doc("The number of the step.")]
    phase: Annotated[str, Doc("`prepare`, `cut_over` or `fall_back`.")]
    text: Annotated[str, Doc("What to do.")]
    command: Annotated[str, Doc("The command that does it; empty if there is none.")] = ""

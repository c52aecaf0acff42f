"""`perseid mint` and `perseid reserve`: new identifiers. Each handle is printed on its own line when it is durable."""

import csv
import io
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from perseid.names.errors import quote_text
from perseid.names.uri import BYTE_ORDER_MARK
from perseid.records.encoding import to_base64

from ._arguments import (
    FILE_PREFIX,
    INTERFACE,
    STANDARD_INPUT,
    ActingAs,
    Directory,
    OpenInstallation,
    UrlOption,
    ValueOption,
    open_installation,
    parse_handle,
    parse_value,
    parse_value_ref,
    parse_values,
    print_warnings,
)
from ._common_options import REMOTE
from ._output import AsJson, InvalidTable, UnknownColumns, print_json, print_text, progress

if TYPE_CHECKING:  # loading them takes longer than showing help
    from perseid.records.record import Value
    from perseid.registry.commands.minting import Mint
    from perseid.registry.commands.records import PartialValue
    from perseid.registry.policy.policy import Policy
    from perseid.registry.results import MintResult
    from perseid.schema.records import MintedHandles

MAX_CELL: Final = 2_097_152
"""Characters of the longest cell of a CSV file: a value has at most half as many bytes, base64 needs more."""

Where: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PREFIX",
        help="The prefix; if the policy has no scheme, optionally the start of the suffix, as in `12345/report-`.",
    ),
]
MAX_COUNT: Final = 1_000_000_000
"""Identifiers of one command. A larger number is a typo, and the total of a job is stored in 64 bits."""

Count: TypeAlias = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=1, max=MAX_COUNT, help="The number of identifiers.")
]
Owner: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--owner", metavar="INDEX:HANDLE", help="The administrator of the identifiers. Default: see the policy."
    ),
]
Note: TypeAlias = Annotated[
    str,
    typer.Option("--note", metavar="TEXT", help="The reason; stored with each identifier, visible to administrators."),
]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a CSV file, as the values of records by number."""

    columns: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]
    """Line numbers in the file, and cells."""
    name: str
    common: "tuple[PartialValue, ...]"
    """Values that every record has."""

    def __len__(self) -> int:
        return len(self.lines)

    def values(self, ttl: int) -> "tuple[tuple[Value, ...], ...]":
        """The values of each record."""
        from perseid.registry.commands.records import assign_indexes  # noqa: PLC0415 - see above

        return tuple([assign_indexes((*self.common, *self.parse(number)), ttl=ttl) for number in range(len(self))])

    def parse(self, number: int) -> "list[PartialValue]":
        """Parse one row; empty cells are skipped."""
        line, cells = self.lines[number]
        try:
            return [
                parse_value(f"{column}={_escape_cell(cell)}")
                for column, cell in zip(self.columns, cells, strict=False)
                if cell
            ]
        except typer.BadParameter as problem:
            raise InvalidTable(f"{self.name}, line {line}: {problem.message}") from problem


def mint(  # noqa: PLR0913 - options
    prefix: Where,
    *,
    count: Count = None,
    url: UrlOption = None,
    value: ValueOption = None,
    reserve: Annotated[bool, typer.Option("--reserve", help="Only reserve the identifiers, without records.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE.csv",
            help="Mint one identifier for each row; the first row has the types. - is standard input.",
        ),
    ] = None,
    allow_type: Annotated[
        list[str] | None,
        typer.Option("--allow-type", metavar="TYPE", help="With --from: accept columns of this type; repeatable."),
    ] = None,
    with_metadata: Annotated[
        bool, typer.Option("--with-metadata", help="Also mint an identifier for each metadata record, and link them.")
    ] = False,
    metadata_url: Annotated[
        str | None, typer.Option("--metadata-url", metavar="URL", help="The target of the metadata record.")
    ] = None,
    unpublished: Annotated[bool, typer.Option("--unpublished", help="Hide them from all but administrators.")] = False,
    owner: Owner = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Mint new identifiers and create a record for each.

    Each handle is printed on its own line when it is durable. The policy of the namespace sets the form of suffixes; a
    suffix is never used twice. With `--from`, each row of a CSV file becomes a record; the columns are types, as in
    `URL` or `EMAIL!private`. A column that is neither a known type nor named by `--allow-type` is refused, and nothing
    is minted. With `--with-metadata`, two handles are printed for each resource. With `--json`, each line has the
    handles of one commit, in the order of the rows.

    For example:
        perseid mint 102.100.272 --url https://example.org/maps/1
        perseid mint 102.100.272 --count 3 --reserve
        perseid mint 102.100.272 --count 2 --value EMAIL!private=maps@example.org --json
    """
    from perseid.registry.commands.minting import Mint  # noqa: PLC0415 - see above
    from perseid.registry.commands.records import assign_indexes  # noqa: PLC0415

    values = parse_values(value, url)
    if source is not None and count is not None:
        raise typer.BadParameter("cannot be used with --from: each row gets one identifier", param_hint="--count")
    rows = None if source is None else _read_rows(source, values)
    if metadata_url is not None and not with_metadata:
        raise typer.BadParameter("requires --with-metadata", param_hint="--metadata-url")
    total = count or 1 if rows is None else len(rows)
    administrator = None if owner is None else parse_value_ref(owner, "--owner")
    if (connect := REMOTE.get()) is not None:
        from . import _remote_minting as remote  # noqa: PLC0415 - only for a server

        with connect() as client:
            if rows is not None:
                policy = remote.load_policy(client, prefix)
                _check_types(policy, rows, allow_type or (), partial(remote.is_known_type, client, policy))
            metadata = parse_values((), metadata_url) if with_metadata else None
            row = None if rows is None else rows.parse
            by = None if administrator is None else str(administrator)
            remote.RemoteOrder(prefix, total, values, row, metadata, reserve, not unpublished, by, note).mint(
                client, partial(_print_response, json=json)
            )
        return
    with open_installation(directory, acting_as) as session:
        ttl = _default_ttl(session, prefix)
        if rows is not None:
            from perseid.registry.policy.types import is_known_type  # noqa: PLC0415 - see above

            with session.registry.snapshot() as snapshot:
                policy = snapshot.policy(prefix.partition("/")[0])
                _check_types(policy, rows, allow_type or (), partial(is_known_type, snapshot, policy))
        order = Mint(
            prefix,
            total,
            values=assign_indexes(values, ttl=ttl),
            each=() if rows is None else rows.values(ttl),
            metadata=assign_indexes(parse_values((), metadata_url), ttl=ttl) if with_metadata else None,
            reserve=reserve,
            published=not unpublished,
            owner=administrator,
        )
        if total:
            _mint(session, order, note, json)


def reserve(
    where: Annotated[
        list[str], typer.Argument(metavar="PREFIX|HANDLE...", help="A prefix, for new identifiers; or handles.")
    ],
    *,
    count: Count = None,
    owner: Owner = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Reserve identifiers for later use: new ones under a prefix, or exactly the handles that you name.

    You can print or embed them now. They are not minted again, and they do not resolve until you create their records.
    All named handles are reserved, or none. For new identifiers whose suffix begins with a text, use
    `perseid mint 12345/report- --reserve`.

    For example:
        perseid reserve 102.100.272 --count 3
        perseid reserve 102.100.272/BCDFGHJKH 102.100.272/CDFGHJKLH
    """
    from perseid.registry.commands.minting import Mint, Reserve  # noqa: PLC0415 - see above

    administrator = None if owner is None else parse_value_ref(owner, "--owner")
    is_prefix = "/" not in where[0]
    if is_prefix and len(where) > 1:
        raise typer.BadParameter("use one prefix, or handles", param_hint="PREFIX|HANDLE")
    if not is_prefix and count is not None:
        message = (
            f"requires a prefix, not a handle; try: perseid mint {shlex.quote(where[0])} --reserve --count {count}"
        )
        raise typer.BadParameter(message, param_hint="--count")
    chosen = () if is_prefix else tuple([parse_handle(each, new=True) for each in where])
    if (connect := REMOTE.get()) is not None:
        from . import _remote_minting as remote  # noqa: PLC0415 - only for a server

        by = None if administrator is None else str(administrator)
        with connect() as client:
            if chosen:
                _print_response(client.reserve(handles=map(str, chosen), owner=by, note=note), json)
            else:
                order = remote.RemoteOrder(where[0], count or 1, reserve=True, owner=by, note=note)
                order.mint(client, partial(_print_response, json=json))
        return
    with open_installation(directory, acting_as) as session:
        if chosen:
            _print_minted(session.do(Reserve(chosen, administrator), note), 1, json)
            return
        _mint(session, Mint(where[0], count or 1, reserve=True, owner=administrator), note, json)


def _mint(session: OpenInstallation, order: "Mint", note: str, json: bool) -> None:
    from perseid.ledger.errors import LedgerError  # noqa: PLC0415 - see above
    from perseid.registry.commands.minting import mint as mint_in_steps  # noqa: PLC0415
    from perseid.registry.results import Refused  # noqa: PLC0415

    done = 0
    try:
        with (
            _start_job(session, order, note) as job,
            progress("minting", order.count, "identifiers", prints=True) as update,
        ):
            for result in mint_in_steps(session.registry, order, session.identity, INTERFACE, note, job_id=job):
                _print_minted(result, order.names_each, json)
                done += len(result.handles) // order.names_each
                update(done)
    except (Refused, LedgerError) as problem:
        if done:
            problem.add_note(f"The {done:,} of {order.count:,} identifiers that were printed are minted")
        raise


@contextmanager
def _start_job(session: OpenInstallation, order: "Mint", note: str) -> Iterator[str]:
    """Start a job for several identifiers, so that they can be undone; one is faster without a job."""
    from perseid.registry.jobs import runner  # noqa: PLC0415 - see above

    if order.count == 1:
        yield ""
        return
    parameters: dict[str, object] = {"prefix": order.where, "count": order.count, "reserve": order.reserve}
    job = runner.start_job(
        session.registry, "mint", parameters, session.identity, INTERFACE, note, total=order.count * order.names_each
    )
    try:
        yield job.id
    finally:
        runner.complete_or_discard(session.registry, job)


def _default_ttl(session: OpenInstallation, where: str) -> int:
    from perseid.registry.commands.namespaces import check_prefix  # noqa: PLC0415 - see above

    prefix = where.partition("/")[0]
    check_prefix(prefix)
    with session.registry.snapshot() as snapshot:
        return snapshot.policy(prefix).default_ttl


def _print_minted(result: "MintResult", handles_per_item: int, json: bool) -> None:
    if json:
        from perseid.registry.responses import to_minted  # noqa: PLC0415 - see above

        print_json(to_minted(result.handles, result.seq, handles_per_item, result.warnings))
    else:
        print_text("\n".join(map(str, result.handles)))
        print_warnings(result.warnings)


def _print_response(minted: "MintedHandles", json: bool) -> None:
    if json:
        print_json(minted)
    else:
        pairs = zip(minted.handles, minted.metadata, strict=True) if minted.metadata else None
        print_text("\n".join(minted.handles if pairs is None else chain.from_iterable(pairs)))
        print_warnings(minted.warnings)


# Files


def _read_rows(source: str, common: "tuple[PartialValue, ...]") -> Rows:
    """Read and check all rows of a CSV file, so that a file with an error mints nothing."""
    name = "standard input" if source == STANDARD_INPUT else source
    raw = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
    try:
        text = raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InvalidTable(f"{name} is not UTF-8 at byte {error.start + 1}") from None
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[int, tuple[str, ...]]] = []
    try:
        columns = tuple(column.strip() for column in next(reader, ()))
        for cells in reader:
            if len(cells) > len(columns):
                message = f"the row has {len(cells)} cells, but the first row has {len(columns)} columns"
                raise InvalidTable(f"{name}, line {reader.line_num}: {message}")
            if any(cells):
                lines.append((reader.line_num, tuple(cells)))
    except csv.Error as problem:
        raise InvalidTable(f"{name}, line {reader.line_num}: invalid CSV: {problem}") from None
    _check_columns(columns, name)
    rows = Rows(columns, tuple(lines), name, common)
    for number in range(len(rows)):
        rows.parse(number)
    return rows


def _check_columns(columns: tuple[str, ...], name: str) -> None:
    if not columns:
        raise InvalidTable(f"{name} is empty; the first row must contain the types of the columns, such as URL")
    for column in columns:
        if not column or "=" in column or "://" in column:
            message = f"{quote_text(column)} is not a type; the first row must contain the types, such as URL"
            raise InvalidTable(f"{name}: {message}")


def _check_types(policy: "Policy", rows: Rows, allowed: Sequence[str], is_known: Callable[[str], bool]) -> None:
    """Refuse columns that are not known types: a typo, or a column of another program, would be minted permanently."""
    from perseid.names.suggest import did_you_mean  # noqa: PLC0415 - see above
    from perseid.registry.policy.types import BUILT_IN_TYPES, nearest_type  # noqa: PLC0415

    types = [column.partition("!")[0].rpartition(":")[2].strip() for column in rows.columns]
    unknown = [type_ for type_ in types if type_ not in allowed and not is_known(type_)]
    if not unknown:
        return
    meant = [(type_, nearest_type(policy, type_)) for type_ in unknown]
    hints = [f"{quote_text(type_)}: {did_you_mean(known)}" for type_, known in meant if known]
    if any(type_.lower() in _HANDLE_COLUMNS for type_ in unknown):
        hints.append("mint generates the handles; to choose a handle, use: perseid create HANDLE")
    accepted = f"Accepted columns: {', '.join(sorted(BUILT_IN_TYPES))}, HS_…, TITLE and other types of citations"
    raise UnknownColumns(
        f"{rows.name}: unknown columns: {', '.join(map(quote_text, unknown))}; nothing was minted",
        *hints,
        f"{accepted}, types of the policy, registered types (perseid type list)",
        f"To use other types: {' '.join([f'--allow-type {shlex.quote(type_)}' for type_ in dict.fromkeys(unknown)])}",
    )


_HANDLE_COLUMNS: Final = frozenset({"handle", "identifier", "id", "pid", "doi"})
"""Columns with handles in the files of other programs."""


def _escape_cell(cell: str) -> str:
    """Escape `@` at the start of a cell: an untrusted CSV file must not read files of this machine."""
    return f"base64:{to_base64(cell.encode())}" if cell.startswith(FILE_PREFIX) else cell


commands: dict[str, Callable[..., None] | typer.Typer] = {"mint": mint, "reserve": reserve}

"""`perseid mint, reserve`: new names. Each is printed when it is durable, one a line, and nothing else is printed."""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.errors import LeaseClosed, LedgerError
from perseid.names.errors import quote_text
from perseid.names.handle import Handle
from perseid.names.uri import BYTE_ORDER_MARK
from perseid.records.encoding import to_base64
from perseid.records.errors import InvalidData
from perseid.records.value import DEFAULT_TTL, Value
from perseid.registry.commands.minting import Mint, MintInputs
from perseid.registry.commands.minting import mint as minted
from perseid.registry.commands.namespaces import check_prefix
from perseid.registry.commands.records import PartialValue, assign_indexes
from perseid.registry.jobs import runner
from perseid.registry.results import MintResult, Refused

from ._output import AsJson, print_json, progress
from ._installation import INTERFACE, ActingAs, Directory, OpenInstallation, open_installation, parse_value_ref
from ._restore import reopen_command
from ._values import FILE_PREFIX, STANDARD_INPUT, UrlOption, ValueOption, parse_value, parse_values

MAX_CELL: Final = 2_097_152
"""The longest cell of a CSV file in characters: a value has at most half as many octets, more in base64."""

Where: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PREFIX",
        help="The prefix; where the policy has no scheme also the beginning of the suffix, as in `12345/report-`.",
    ),
]
Count: TypeAlias = Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="How many names.")]
Owner: TypeAlias = Annotated[
    str | None,
    typer.Option("--owner", metavar="INDEX:HANDLE", help="Who administers the new names; default: as the policy says."),
]
Note: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why; kept with each name, for administrators.")
]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file: what the record of each name holds, by number."""

    columns: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]
    """The number of each line in the file, and its cells."""
    name: str
    common: tuple[PartialValue, ...]
    """What every record holds besides."""
    ttl: int = DEFAULT_TTL

    def __len__(self) -> int:
        return len(self.lines)

    def __call__(self, _handle: Handle, number: int) -> Sequence[Value]:
        """The values of one record."""
        return assign_indexes((*self.common, *self.given(number)), ttl=self.ttl)

    def given(self, number: int) -> list[PartialValue]:
        """What one row says; an empty cell says nothing."""
        line, cells = self.lines[number]
        try:
            return [
                parse_value(f"{column}={_escape_cell(cell)}")
                for column, cell in zip(self.columns, cells, strict=False)
                if cell
            ]
        except typer.BadParameter as problem:
            raise InvalidData(f"{self.name}, line {line}: {problem.message}") from problem


def mint(  # noqa: PLR0913 - options
    prefix: Where,
    *,
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", min=1, help="How many names.")] = None,
    url: UrlOption = None,
    value: ValueOption = None,
    reserve: Annotated[
        bool, typer.Option("--reserve", help="Only reserve the names: they stand for nothing yet.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE.csv",
            help="A name for each row; the first row has the types of the columns. `-` is standard input.",
        ),
    ] = None,
    with_metadata: Annotated[
        bool, typer.Option("--with-metadata", help="Also a name for the metadata record of each thing, linked with it.")
    ] = False,
    metadata_url: Annotated[
        str | None, typer.Option("--metadata-url", metavar="URL", help="Where the metadata record is.")
    ] = None,
    unpublished: Annotated[
        bool, typer.Option("--unpublished", help="Let nobody but administrators see them yet.")
    ] = False,
    owner: Owner = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Make new names, and a record for each.

    A name is printed when it is durable, one a line. How names look is the policy's matter; nobody ever had them
    before. With `--from` the rows of a table become records: a column `URL` holds URLs, `EMAIL!private` what only
    administrators read. With `--with-metadata` there are two names to a thing, one line after the other.

    For example:
        perseid mint 102.100.272 --url https://example.org/maps/1
        perseid mint 102.100.272 --count 3 --reserve
        perseid mint 102.100.272 --count 2 --value EMAIL!private=maps@example.org --json
    """
    given = parse_values(value, url)
    if source is not None and count is not None:
        raise typer.BadParameter("there is a name for each row of the file; leave it out", param_hint="--count")
    rows = None if source is None else _read_rows(source, given)
    if metadata_url is not None and not with_metadata:
        raise typer.BadParameter("only with --with-metadata is there such a record", param_hint="--metadata-url")
    total = count or 1 if rows is None else len(rows)
    administrator = None if owner is None else parse_value_ref(owner, "--owner")
    with open_installation(directory, acting_as) as session:
        ttl = _default_ttl(session, prefix)
        order = Mint(
            MintInputs.of(session.registry),
            prefix,
            total,
            values=assign_indexes(given, ttl=ttl) if rows is None else replace(rows, ttl=ttl),
            metadata=assign_indexes(parse_values((), metadata_url), ttl=ttl) if with_metadata else None,
            reserve=reserve,
            published=not unpublished,
            owner=administrator,
        )
        if total:
            _mint(session, order, note, json)


def reserve(
    prefix: Where,
    count: Count = 1,
    owner: Owner = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Make names for later, which stand for nothing yet.

    They can be printed on paper or put into files now. Nobody else gets them, and nobody can resolve them until they
    are created with their values.

    For example:
        perseid reserve 102.100.272 --count 3
    """
    administrator = None if owner is None else parse_value_ref(owner, "--owner")
    with open_installation(directory, acting_as) as session:
        _mint(
            session, Mint(MintInputs.of(session.registry), prefix, count, reserve=True, owner=administrator), note, json
        )


def _mint(session: OpenInstallation, order: Mint, note: str, json: bool) -> None:
    done = 0
    try:
        with _start_job(session, order, note) as job, progress("minting", order.count, "names", prints=True) as update:
            for made in minted(session.registry, order, session.identity, INTERFACE, note, job_id=job):
                _print_minted(made, order, done, json)
                done += len(made.handles) // order.names_each
                update(done)
    except LeaseClosed as problem:
        raise LedgerError(f"{problem}: {reopen_command(order.where.partition('/')[0])}") from problem
    except Refused as refused:
        advice = "; ".join(filter(None, (refused.advice, _partial_advice(done, order))))
        raise Refused(refused.code, refused.reason, advice, refused.rule) from refused
    except LedgerError as problem:
        raise LedgerError("; ".join(filter(None, (str(problem), _partial_advice(done, order))))) from problem


@contextmanager
def _start_job(session: OpenInstallation, order: Mint, note: str) -> Iterator[str]:
    """Many names are one operation, which can be undone; one is made quicker without."""
    if order.count == 1:
        yield ""
        return
    asked: dict[str, object] = {"prefix": order.where, "count": order.count, "reserve": order.reserve}
    job = runner.start_job(
        session.registry, "mint", asked, session.identity, INTERFACE, note, total=order.count * order.names_each
    )
    try:
        yield job.id
    finally:
        runner.complete_or_discard(session.registry, job)


def _partial_advice(done: int, order: Mint) -> str:
    """What is to be said of a job that ended half-way."""
    return f"the {done:,} of {order.count:,} that were printed by then are made, and stay so" if done else ""


def _default_ttl(session: OpenInstallation, where: str) -> int:
    """How long caches may keep values in a namespace."""
    prefix = where.partition("/")[0]
    check_prefix(prefix)
    with session.registry.snapshot() as snapshot:
        return snapshot.policy(prefix).default_ttl


def _print_minted(made: MintResult, order: Mint, number: int, json: bool) -> None:
    """Print names that are durable."""
    if not json:
        typer.echo("\n".join(map(str, made.handles)))
        return
    each = order.names_each
    for at in range(0, len(made.handles), each):
        document: dict[str, object] = {"handle": str(made.handles[at]), "seq": made.seq + at}
        if each > 1:
            document["metadata"] = str(made.handles[at + 1])
        if isinstance(order.values, Rows):
            document["line"] = order.values.lines[number + at // each][0]
        print_json(document)


# Files


def _read_rows(source: str, common: tuple[PartialValue, ...]) -> Rows:
    """The rows of a CSV file, all of them readable: a file with a mistake in it makes no names at all."""
    name = "standard input" if source == STANDARD_INPUT else source
    raw = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
    try:
        text = raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InvalidData(f"{name}: octet {error.start + 1} is not UTF-8") from None
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[int, tuple[str, ...]]] = []
    try:
        columns = tuple(column.strip() for column in next(reader, ()))
        for cells in reader:
            if len(cells) > len(columns):
                message = f"there are {len(cells)} cells, and {len(columns)} columns have a name"
                raise InvalidData(f"{name}, line {reader.line_num}: {message}")
            if any(cells):
                lines.append((reader.line_num, tuple(cells)))
    except csv.Error as problem:
        raise InvalidData(f"{name}, line {reader.line_num}: this is not CSV: {problem}") from None
    _check_columns(columns, name)
    rows = Rows(columns, tuple(lines), name, common)
    for number in range(len(rows)):
        rows.given(number)
    return rows


def _check_columns(columns: tuple[str, ...], name: str) -> None:
    if not columns:
        raise InvalidData(f"{name}: it is empty; the first row has the types of the columns, such as URL")
    for column in columns:
        if not column or "=" in column or "://" in column:
            message = f"{quote_text(column)} is no type; the first row has the types of the columns, such as URL"
            raise InvalidData(f"{name}: {message}")


def _escape_cell(cell: str) -> str:
    """A cell as data: a file may come from anybody, and must not be able to name files of ours."""
    return f"base64:{to_base64(cell.encode())}" if cell.startswith(FILE_PREFIX) else cell


commands: dict[str, Callable[..., None] | typer.Typer] = {"mint": mint, "reserve": reserve}

"""`perseid import`: create or change the records of a file, as one job."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, TypeAlias

import msgspec
import typer

from perseid.bulk.export import open_atomically
from perseid.bulk.formats import Format, Profile
from perseid.bulk.imports import find_credential, find_secret
from perseid.registry.advice import to_sentence
from perseid.schema.imports import ImportQuery, ImportResponse, ImportResult, OnExisting, RowOutcome, has_changes
from perseid.schema.jobs import JobResponse
from perseid.schema.problems import PROBLEM_TYPES

from ._advice import phrase_problem, render_problem
from ._arguments import STANDARD_INPUT, ActingAs, Directory, Note, print_warnings, printable
from ._common_options import REMOTE
from ._local_imports import LocalImports, authenticate
from ._output import (
    AsJson,
    CommandFailed,
    confirm,
    is_terminal,
    pluralize,
    print_fields,
    print_json,
    print_message,
    print_text,
    progress,
)
from ._row_problems import MAX_RANGES_SHOWN, group_problems
from ._target import LocalTarget, Target, open_target
from .jobs import print_planned
from .lifecycle import Yes, run_job

if TYPE_CHECKING:
    from perseid.client import Client

MAX_SHOWN: Final = 10
"""Changes of existing records that are shown before the prompt; `--dry-run` shows more."""

MAX_PROBLEMS: Final = 50
"""Different problems that are shown on a terminal; a file or pipe gets all."""

TEMPLATE: Final = (
    "handle,URL,TITLE\n"
    "12345/map-1,https://example.org/maps/1,First map\n"
    "12345/map-2,https://example.org/maps/2,Second map\n"
)
MINT_TEMPLATE: Final = "URL,TITLE\nhttps://example.org/maps/1,First map\nhttps://example.org/maps/2,Second map\n"

_ACTIONS: Final = {
    RowOutcome.CREATED: "created",
    RowOutcome.MINTED: "minted",
    RowOutcome.UPDATED: "updated",
    RowOutcome.DELETED: "deleted",
}
_FAMILIAR: Final = (Format.CSV, Format.XLSX, Format.ODS, Format.JSONL, Format.BATCH)


class CredentialInFile(CommandFailed):
    """A file that is meant for a server contains a secret."""

    problem_type = "invalid-value"
    is_usage = True


UNREADABLE: Final = ("invalid-value", "unknown-columns")
"""Types of problems of files that cannot be read."""


class InvalidRows(CommandFailed):
    """Some rows of a file are invalid, so nothing was changed."""

    problem_type = "invalid-value"
    is_refusal = True


class RefusedFile(CommandFailed):
    """A server does not import a file."""

    is_refusal = True

    def __init__(self, checked: ImportResponse) -> None:
        advice = render_problem(checked)
        super().__init__(checked.problem, *([to_sentence(advice)] if advice else []))
        if checked.problem_type in PROBLEM_TYPES:  # not one of a newer server
            self.problem_type = checked.problem_type


class UnreadableFile(RefusedFile):
    """A file has to be corrected, or needs other options, before its rows can be read."""

    is_usage = True


Imports: TypeAlias = "Client | LocalImports"


def import_file(  # noqa: PLR0913 - options
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The file; - is standard input.", show_default=False)
    ] = None,
    *,
    format_: Annotated[
        Format | None,
        typer.Option("--format", metavar="FORMAT", help=f"{', '.join(_FAMILIAR)} … Default: detected."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="PREFIX", help="Where to mint; also the prefix of handles without one.")
    ] = "",
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=TYPE",
            help="The meaning of a column: a type, `handle`, `state`, or `-` to ignore it; repeatable.",
        ),
    ] = None,
    mint: Annotated[bool, typer.Option("--mint", help="Mint an identifier for each row.")] = False,
    mint_again: Annotated[
        bool, typer.Option("--mint-again", help="Mint although this file was minted before: each row gets another one.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="With --mint: the file with the handles beside each row."),
    ] = None,
    handles_of: Annotated[
        str | None,
        typer.Option("--handles-of", metavar="JOB", help="Only write the file with the handles that a job has minted."),
    ] = None,
    on_existing: Annotated[
        OnExisting,
        typer.Option("--on-existing", metavar="ACTION", help="If a handle exists: fail, skip or update."),
    ] = OnExisting.FAIL,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Import the valid rows only.")] = False,
    preserve_dates: Annotated[
        bool,
        typer.Option("--preserve-dates", help="Keep dates, owners and timestamps; for server administrators."),
    ] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", metavar="C", help="The character between cells. Default: detected.")
    ] = "",
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="NAME", help="The encoding, such as cp1252. Default: detected.")
    ] = "",
    sheet: Annotated[
        str, typer.Option("--sheet", metavar="NAME", help="The sheet of a spreadsheet. Default: the first.")
    ] = "",
    profile: Annotated[
        Profile | None, typer.Option("--profile", metavar="NAME", help="The columns of another service: ezid, arklet.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keep the ' that exports put before formulas.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what will change, but change nothing.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the invalid rows and their problems here.")
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a CSV file to start with.")] = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Create the records of a file: a CSV file, a spreadsheet, JSON lines or a Handle batch file.

    Every row is checked before anything is changed. If a row is invalid, nothing is changed and each problem is printed
    with the lines that have it; `--report` writes the invalid rows with their problems to a file that you can correct
    and import.

    A column is named after its type, as in `URL` or `EMAIL!private`. Other columns are refused, unless `--map` says
    what they mean. Cells are stored as they are.

    AUTHENTICATE in a batch file has the effect of `--as`, if its secret or key is right.

    The import is one job: `perseid jobs resume` resumes it, and `perseid undo` undoes it. If nothing changes, no job is
    created. With `--mint`, the file is written again with a handle in each row, beside the original (FILE.minted.csv)
    or to `--output`; with `--skip-invalid` too, the invalid rows go to FILE.invalid.csv unless `--report` names a file.

    For example:
        perseid import --template
        perseid import maps.csv --dry-run
        perseid import maps.csv --on-existing update --report problems.csv --yes
        perseid import new.csv --mint --prefix 102.100.272 --yes --json
    """
    if template:
        typer.echo(MINT_TEMPLATE if mint else TEMPLATE, nl=False)
        return
    if file is None:
        raise typer.BadParameter("name the file, or - for standard input", param_hint="FILE")
    _refuse_useless(
        {
            "--output": "" if output is None or mint or handles_of else "requires --mint or --handles-of",
            "--mint-again": "requires --mint" if mint_again and not mint else "",
            "--preserve-dates": _find_no_dates(mint) if preserve_dates else "",
        }
    )
    query = ImportQuery(
        name="" if file == STANDARD_INPUT else Path(file).name,
        format=format_ or "",
        delimiter=delimiter,
        encoding=encoding,
        sheet=sheet,
        prefix=prefix,
        map=tuple(mapping or ()),
        profile=profile or "",
        raw=raw,
        mint=mint,
        mint_again=mint_again,
        on_existing=on_existing,
        skip_invalid=skip_invalid,
    )
    minted = _choose_output(file, output) if (mint and not dry_run) or handles_of else None
    default_report = _name_report(file, minted) if skip_invalid and mint else None
    with _open_source(file) as source, open_target(directory, acting_as) as opened:
        target = opened if acting_as and isinstance(opened, LocalTarget) else _sign_in(opened, source, query)
        imports: Imports = LocalImports(target) if isinstance(target, LocalTarget) else target
        if minted is not None and handles_of is not None:
            _write_minted(imports, handles_of, source, query, minted)
            return
        signed_in = str(target.session.identity) if isinstance(target, LocalTarget) and target is not opened else ""
        command = _Import(imports, source, query, preserve_dates, signed_in, json)
        checked = command.check()
        _remark_identity(checked, acting_as)
        try:
            command.show(checked, dry_run=dry_run)
            command.report(checked, report, default_report)
            if dry_run or not has_changes(checked.outcomes):
                if not dry_run:  # no error, as in `rewrite`: the command may have been run before
                    _print_unchanged(checked, json=json)
                imports.discard_import(checked.id)
                return
            if not yes:
                confirm(_describe_changes(checked))
            command.write_default_report(checked)
            job = imports.apply_import(checked.id, note=note, check=checked.check)
        except BaseException:
            imports.discard_import(checked.id)
            raise
        ended = run_job(target, job)
        if minted is not None:
            try:
                _write_minted(imports, ended.job, source, query, minted)
            except BaseException as error:
                error.add_note(f"The handles are minted. To write them: perseid import FILE --handles-of {ended.job}")
                raise
    _print_result(ended, checked, minted, json=json)


def _find_no_dates(mint: bool) -> str:
    """Return why an import cannot keep dates; empty if it can."""
    if mint:
        return "cannot be used with --mint: new identifiers have no earlier dates"
    return "works on a local installation only" if REMOTE.get() is not None else ""


def _refuse_useless(reasons: dict[str, str]) -> None:
    """Refuse options that have no effect, for reasons by option."""
    for option, reason in reasons.items():
        if reason:
            raise typer.BadParameter(reason, param_hint=option)


def _sign_in(target: Target, source: BinaryIO, query: ImportQuery) -> Target:
    """Act as the identity of a batch file. Its secret is never sent to a server."""
    if not isinstance(target, LocalTarget):
        if line := find_secret(source, query):
            reason = f"Line {line} has the secret, key or passphrase of an identity, which is not sent to a server"
            sign_in = "--as with --secret-file or --key-file, or a saved server (perseid login)"
            raise CredentialInFile(
                reason, f"Remove AUTHENTICATE and SESSIONSETUP with the lines after them, and use {sign_in}"
            )
        return target
    credential = find_credential(source, query)
    if credential is None:
        return target
    session = authenticate(target.session, credential)
    print_message(f"Line {credential.line}: acting as {printable(str(session.identity))}")
    return LocalTarget(session)


def _remark_identity(checked: ImportResponse, acting_as: str | None) -> None:
    if acting_as and checked.detected.get("authentication"):
        print_message("AUTHENTICATE has no effect with --as")


class _Import:
    """An import of one file."""

    def __init__(
        self,
        imports: Imports,
        source: BinaryIO,
        query: ImportQuery,
        preserve_dates: bool,
        signed_in: str,
        json: bool,
    ) -> None:
        """`signed_in` is the identity of a batch file that signs in."""
        self._imports, self._source, self._query, self._json = imports, source, query, json
        self._preserve_dates, self._signed_in = preserve_dates, signed_in
        self._default_report: Path | None = None

    def check(self) -> ImportResponse:
        """Check all rows."""
        with progress("checking", None, "rows") as update:
            if isinstance(self._imports, LocalImports):
                return self._imports.check_import(
                    self._source, self._query, update, preserve_dates=self._preserve_dates
                )
            checked = self._imports.check_import(self._source, self._query, update)
        if checked.problem is not None:
            self._imports.discard_import(checked.id)
            raise UnreadableFile(checked) if checked.problem_type in UNREADABLE else RefusedFile(checked)
        return checked

    def show(self, checked: ImportResponse, *, dry_run: bool) -> None:
        """Show what was found, and what will change."""
        if self._json:
            if dry_run:
                print_json(checked)
                for planned in self._imports.import_changes(checked.id):
                    print_json(planned)
            return
        detected = checked.detected
        format_ = ", ".join([text for name in ("format", "encoding", "line_ends") if (text := detected.get(name))])
        delimiter = detected.get("delimiter")
        lines = {
            "file": printable(checked.name) or None,
            "format": format_ + (f", delimiter {delimiter!a}" if delimiter else ""),
            "columns": _describe_columns(checked) or None,
            "rows": f"{checked.checked:,}",
            **{name: f"{count:,}" for name, count in checked.outcomes.items()},
            "invalid": f"{checked.invalid:,}" if checked.invalid else None,
            "sample": (", ".join(map(printable, checked.sample)) or None) if dry_run and not self._query.mint else None,
        }
        print_lines = print_fields if dry_run else _print_hints
        print_lines(lines)
        if detected.get("session_setup"):
            print_message("SESSIONSETUP has no effect")
        if not checked.checked:
            print_message("The file has no rows")
        print_warnings(checked.warnings)
        self._show_changes(checked, dry_run)

    def _show_changes(self, checked: ImportResponse, dry_run: bool) -> None:
        for number, planned in enumerate(self._imports.import_changes(checked.id)):
            if not dry_run and number == MAX_SHOWN:
                break
            print_planned(planned)
        if not dry_run and checked.changes > MAX_SHOWN:
            print_message(f"… and {checked.changes - MAX_SHOWN:,} more; --dry-run shows them")

    def write_default_report(self, checked: ImportResponse) -> None:
        """Write the file that `report` has announced, if any."""
        if self._default_report is not None:
            self._write_report(checked, self._default_report)

    def _write_report(self, checked: ImportResponse, path: Path) -> None:
        with open_atomically(path) as to:
            self._imports.write_import_report(checked.id, to)

    def report(self, checked: ImportResponse, path: Path | None, default: Path | None) -> None:
        """Report invalid rows; fail unless they are skipped. `default` is written when the import is confirmed."""
        if not checked.invalid:
            return
        if path is not None:
            self._write_report(checked, path)
        else:
            self._print_problems(checked)
            if default is not None and has_changes(checked.outcomes):
                if default.exists():
                    raise CommandFailed(f"{default} exists", "Choose another file for the invalid rows with --report")
                path = self._default_report = default
        if checked.advice_kind and not self._json:
            print_message(to_sentence(render_problem(checked)))
        them = "it" if checked.invalid == 1 else "them"
        where = f"To write {them} to a file: --report FILE"
        if path is not None:
            where = f"Correct {them} in {path} and import that file{self._describe_repeated()}"
        rows = f"{checked.invalid:,} of {pluralize(checked.checked, 'row')} {'is' if checked.invalid == 1 else 'are'}"
        if self._query.skip_invalid and checked.valid:
            print_message(f"{rows} invalid. {where}")
            return
        valid = f"{checked.valid:,} rows" if checked.valid > 1 else "row"
        others = f". To import the other {valid}: --skip-invalid" if checked.valid else ""
        raise InvalidRows(f"{rows} invalid; nothing was changed", f"{where}{others}")

    def _print_problems(self, checked: ImportResponse) -> None:
        found = self._imports.import_problems(checked.id)
        problems = found if isinstance(self._imports, LocalImports) else map(phrase_problem, found)
        if self._json:
            for problem in problems:
                print_json(problem)
            return
        is_short, shown = is_terminal(sys.stdout), 0
        for group in group_problems(problems, checked, MAX_PROBLEMS if is_short else None):
            print_text(group.describe(MAX_RANGES_SHOWN if is_short else None))
            shown += group.count
        if shown < checked.invalid:
            print_message(f"… and {checked.invalid - shown:,} more")

    def _describe_repeated(self) -> str:
        """Say which options a report needs, too. It is in UTF-8, and that of a spreadsheet is CSV."""
        query = self._query
        given = {
            "--prefix": query.prefix,
            "--map": query.map,
            "--profile": query.profile,
            "--delimiter": query.delimiter,
            "--raw": query.raw,
            "--mint": query.mint,
            "--on-existing": query.on_existing is not OnExisting.FAIL,
            "--preserve-dates": self._preserve_dates,
        }
        same = ", ".join([option for option, value in given.items() if value])
        options = [f"--as {printable(self._signed_in)}"] if self._signed_in else []
        options += [f"the same {same}"] if same else []
        return f" with {' and '.join(options)}" if options else ""


def _print_hints(fields: dict[str, str | None]) -> None:
    """Print labeled values on standard error."""
    print_message("; ".join([f"{label} {value}" for label, value in fields.items() if value]))


def _describe_columns(checked: ImportResponse) -> str:
    columns = checked.detected.get("columns", ())
    shown = [
        printable(each["header"] if each["header"] == each["meaning"] else f"{each['header']} ({each['meaning']})")
        for each in columns
    ]
    return ", ".join(shown)


def _describe_changes(checked: ImportResponse) -> str:
    counts = [
        f"{checked.outcomes[outcome]:,} {verb}" for outcome, verb in _ACTIONS.items() if checked.outcomes.get(outcome)
    ]
    skipped = f"; {pluralize(checked.invalid, 'invalid row')} will be skipped" if checked.invalid else ""
    return f"Records will change: {', '.join(counts) or 'none'}{skipped}"


def _print_unchanged(checked: ImportResponse, *, json: bool) -> None:
    if json:
        print_json(checked)
    elif checked.valid:
        print_message("Nothing changes: the records are as the file says, or are skipped. No job was created")
        print_fields(_count_rows(checked))


def _count_rows(checked: ImportResponse) -> dict[str, object]:
    invalid = {"invalid": f"{checked.invalid:,}"} if checked.invalid else {}
    return {
        "rows": f"{checked.checked:,}",
        **{name: f"{count:,}" for name, count in checked.outcomes.items()},
        **invalid,
    }


def _print_result(ended: JobResponse, checked: ImportResponse, minted: Path | None, *, json: bool) -> None:
    if json:
        result = ImportResult(
            **msgspec.structs.asdict(ended),
            checked=checked.checked,
            valid=checked.valid,
            invalid=checked.invalid,
            outcomes=checked.outcomes,
            handles=None if minted is None else str(minted),
            warnings=checked.warnings,
        )
        print_json(result)
        return
    handles = {} if minted is None else {"handles": printable(str(minted))}
    print_fields({"job": ended.job, **_count_rows(checked), **handles})


# Files


@contextmanager
def _open_source(file: str) -> Iterator[BinaryIO]:
    """Open the file; standard input is copied, because the file is read several times."""
    if file != STANDARD_INPUT:
        with Path(file).open("rb") as source:
            yield source
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        yield copy


def _choose_output(file: str, output: Path | None) -> Path:
    """Return where the minted handles go; fail if that exists."""
    if output is None:
        if file == STANDARD_INPUT:
            raise typer.BadParameter("is required with standard input", param_hint="--output")
        output = _name_beside(Path(file), "minted")
    if output.exists():
        raise CommandFailed(f"{output} exists", "Choose another file with --output")
    return output


def _name_report(file: str, minted: Path | None) -> Path | None:
    """Return where invalid rows go by default: a file is minted once, so they could not be asked for later."""
    beside = minted if file == STANDARD_INPUT else Path(file)
    return None if minted is None or beside is None else _name_beside(beside, "invalid")


def _name_beside(path: Path, kind: str) -> Path:
    suffix = path.suffix if path.suffix in (".jsonl", ".ndjson") else ".csv"
    return path.with_name(f"{path.stem}.{kind}{suffix}")


def _write_minted(imports: Imports, job: str, source: BinaryIO, query: ImportQuery, path: Path) -> None:
    with open_atomically(path) as to:
        if isinstance(imports, LocalImports):
            imports.write_minted(job, source, query, to)
        else:
            imports.write_minted(job, to)
    print_message(f"The handles are in {path}")


commands: dict[str, Callable[..., None] | typer.Typer] = {"import": import_file}

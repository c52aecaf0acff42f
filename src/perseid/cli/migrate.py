"""`perseid migrate`: move from a Handle server to an installation."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

from perseid.bulk.formats import Format
from perseid.bulk.migration.checklist import TITLES, Phase, make_checklist
from perseid.bulk.migration.copying import Copy, CopyOptions, CopyResult, compare
from perseid.bulk.migration.mirror import MirrorSource, MirrorState, apply_transactions, load_state, save_state
from perseid.bulk.migration.opening import SourceOptions, open_source
from perseid.bulk.migration.server_directory import read_server_directory
from perseid.bulk.migration.source import Source, SourceError, SourceUnreachable
from perseid.client.errors import Unreachable
from perseid.client.remotes import InvalidRemote, read_private_file, read_secret
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey, read_private_key
from perseid.records.site import address_to_json
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.installation.installation import load_settings
from perseid.registry.installation.site import replace_identity
from perseid.registry.jobs.migration import MigrationProblem
from perseid.registry.policy.policy import PROFILES
from perseid.schema.migration import (
    ComparisonSummary,
    TakenIdentity,
)
from perseid.server.state.runtime import WRITER_LINK

from ._arguments import Note, OpenInstallation, open_installation, parse_value_ref, printable
from ._commands import Group, register_command
from ._common_options import Directory, resolve_directory
from ._errors import REFUSED
from ._migrate_output import Problems, open_report, print_summary, show_difference
from ._output import (
    AsJson,
    CommandFailed,
    confirm,
    pluralize,
    print_fields,
    print_json,
    print_message,
    print_text,
    progress,
    to_json,
)
from .lifecycle import Yes

DEFAULT_INTERVAL: Final = 30
"""Seconds between two passes with `--follow`, as mirrors of deployed servers wait."""


class MigrateGroup(Group):
    """The commands of `migrate`, and `migrate SOURCE` as a short form of `migrate copy SOURCE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and (set("/:.") & set(args[0]) or Path(args[0]).exists()):
            args = ["copy", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=MigrateGroup,
    help="Move from a Handle server: copy, follow and compare its records.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

SourceArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A running server (HOST:PORT), its database (mysql://USER@HOST/DATABASE or postgresql://…), or a file.",
    ),
]
PrefixOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--prefix", metavar="PREFIX", help="Only this prefix; repeatable.")
]
SourceIdentity: TypeAlias = Annotated[
    str | None, typer.Option("--as", metavar="INDEX:HANDLE", help="Your identity at the server that you leave.")
]
SourceSecret: TypeAlias = Annotated[
    Path | None, typer.Option("--secret-file", metavar="FILE", help="With --as: a file with the secret.")
]
SourceKey: TypeAlias = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="With --as: the private key.")
]
ServerKey: TypeAlias = Annotated[
    Path | None,
    typer.Option("--server-key", metavar="FILE", help="The public key that the server must have, such as pubkey.bin."),
]
MirrorOption: TypeAlias = Annotated[
    bool, typer.Option("--mirror", help="Read a running server over the replication protocol, as a mirror does.")
]
PasswordFile: TypeAlias = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the password of the database.")
]
FormatOption: TypeAlias = Annotated[
    Format | None, typer.Option("--format", metavar="FORMAT", help="The format of a file. Default: detected.")
]
ReportOption: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write every record that differs or fails, as JSON.")
]


@register_command(app, "copy")
def copy(  # noqa: PLR0913 - options
    source: SourceArgument,
    *,
    prefix: PrefixOption = None,
    profile: Annotated[
        str, typer.Option("--profile", help="Of prefixes that are new here: free, or exact to tell case apart.")
    ] = "free",
    source_identity: SourceIdentity = None,
    secret_file: SourceSecret = None,
    key_file: SourceKey = None,
    server_key: ServerKey = None,
    mirror: MirrorOption = False,
    full: Annotated[
        bool, typer.Option("--full", help="With --mirror: read everything again, not only what has changed.")
    ] = False,
    password_file: PasswordFile = None,
    format_: FormatOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue to copy changes until you interrupt the command.")
    ] = False,
    interval: Annotated[
        int, typer.Option("--interval", metavar="SECONDS", min=1, help="With --follow: the time between two passes.")
    ] = DEFAULT_INTERVAL,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also overwrite records that were changed here.")
    ] = False,
    delete_many: Annotated[
        bool, typer.Option("--delete-many", help="Confirm that many records were deleted at the source.")
    ] = False,
    continues: Annotated[
        list[str] | None,
        typer.Option(
            "--continue",
            metavar="SOURCE",
            help="An earlier source that this one replaces: its records are deleted if they are missing; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be copied, but change nothing.")] = False,
    report: ReportOption = None,
    note: Note = "",
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Copy the records and hosted prefixes of a Handle server into the installation.

    Records are kept exactly as they are: every value with its permissions, TTL, timestamp and references, and handles
    that today's rules would not allow. The server that you leave can be in use meanwhile. Run the command again to copy
    what has changed since, or after an interruption: only differences are stored. Records that were changed here are
    reported and not overwritten.

    For example:
        perseid migrate copy mysql://handle@db.example.org/handles --password-file db.password
        perseid migrate copy old.example.org:2641 --as 300:0.NA/12345 --key-file admpriv.bin --follow
    """
    if profile not in ("free", "exact"):
        raise typer.BadParameter("use free or exact", param_hint="--profile")
    earlier = tuple([each if "://" in each else os.path.abspath(each) for each in continues or ()])  # noqa: PTH100
    options = CopyOptions(tuple(prefix or ()), PROFILES[profile], overwrite, delete_many, earlier, dry_run, note)
    found = _read_options(prefix, source_identity, secret_file, key_file, server_key, password_file)
    with (
        open_installation(directory) as session,
        _open(source, replace(found, mirror=mirror, format=format_, folder=session.installation.directory)) as opened,
        open_report(report) as file,
    ):
        problems = Problems(file, json)
        copy_once: Callable[[], CopyResult] = partial(_copy_once, session, opened, options, problems)
        if isinstance(opened, MirrorSource):
            copy_once = _Mirroring(session, opened, options, problems, full=full).run
        result = _follow(copy_once, interval, opened.label, json) if follow else copy_once()
    problems.finish()
    print_summary(opened.label, result, json)
    if result.counts.conflicts or result.counts.rejected:
        raise typer.Exit(REFUSED)


@register_command(app, "compare")
def compare_(  # noqa: PLR0913 - options
    source: SourceArgument,
    *,
    prefix: PrefixOption = None,
    source_identity: SourceIdentity = None,
    secret_file: SourceSecret = None,
    key_file: SourceKey = None,
    server_key: ServerKey = None,
    mirror: MirrorOption = False,
    password_file: PasswordFile = None,
    format_: FormatOption = None,
    report: ReportOption = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Compare every record of a Handle server with the installation, byte for byte. Nothing is changed.

    Every difference is printed: records that are missing here, that only the installation has, and values that differ.
    The exit code is 4 if there are any.

    For example:
        perseid migrate compare mysql://handle@db.example.org/handles --password-file db.password --report report.jsonl
    """
    found = _read_options(prefix, source_identity, secret_file, key_file, server_key, password_file)
    with (
        open_installation(directory) as session,
        _open(source, replace(found, mirror=mirror, format=format_, folder=session.installation.directory)) as opened,
        open_report(report) as file,
        progress("comparing", unit="records", prints=True) as update,
        _translate_errors(),
    ):
        show = partial(show_difference, file=file, json=json)
        folder, prefixes = session.installation.directory, tuple(prefix or ())
        result = compare(session.registry, opened, folder, prefixes, show, update)
    if json:
        print_json(
            ComparisonSummary(
                opened.label, result.records, result.missing, result.extra, result.different, result.prefixes
            )
        )
    else:
        fields = {"source": opened.label, "records": result.records, "missing": result.missing, "extra": result.extra}
        fields |= {"different": result.different}
        print_fields(fields | {"not hosted here": ", ".join(map(printable, result.prefixes)) or None})
    if result.has_differences:
        raise typer.Exit(REFUSED)


@register_command(app, "keys")
def keys(
    old_directory: Annotated[
        Path, typer.Argument(metavar="OLD_DIRECTORY", help="The directory of the Handle server, or a copy of it.")
    ],
    *,
    passphrase_file: Annotated[
        Path | None, typer.Option("--passphrase-file", metavar="FILE", help="The passphrase of the old private key.")
    ] = None,
    yes: Yes = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Take over the site information and the key of a Handle server.

    Clients then accept the installation at the address of the old server, and prefix handles need no change. The files
    that were in use before are kept. Nothing is changed in the old directory. The settings that matter are printed, for
    `perseid.toml`: administrators of the server, and the profile and database for `perseid migrate copy`.

    For example:
        perseid migrate keys svr_1 --yes
    """
    folder = resolve_directory(directory)
    config = load_settings(folder)
    try:
        passphrase = None if passphrase_file is None else read_secret(passphrase_file, any_lines=True).encode()
    except InvalidRemote as problem:
        raise CommandFailed(str(problem)) from problem
    with _translate_errors():
        found = read_server_directory(old_directory, passphrase)
    if (folder / WRITER_LINK).is_symlink():
        raise CommandFailed("A server is running on this installation", "Stop it first")
    if not yes:
        confirm("The site information and the key of this installation will be replaced")
    paths = replace_identity(folder, config, found.site, found.key)
    addresses = [address_to_json(server.address) for server in found.site.servers]
    lines = [
        f"[site]\nposition = {found.position + 1}" if found.position else "",
        "[administrators]",
        f"server = {_format_list(found.administrators)}",
        f"replication = {_format_list(found.replication_administrators)}",
        f"full_access = {'true' if found.full_access else 'false'}",
    ]
    taken = TakenIdentity(
        found.site.serial,
        len(found.site.servers),
        found.position + 1,
        addresses,
        found.profile,
        found.database,
        "\n".join(line for line in lines if line),
        [str(path) for path in paths],
    )
    if json:
        print_json(taken)
        return
    fields: dict[str, object] = {"site": f"serial {taken.serial}, {pluralize(taken.servers, 'server')}"}
    fields |= {"addresses": ", ".join(addresses), "profile": taken.profile, "database": printable(taken.database)}
    print_fields(fields)
    print_message("The settings of the old server, for perseid.toml:")
    for line in taken.settings.splitlines():
        print_text(printable(line))


@register_command(app, "checklist")
def checklist(  # noqa: PLR0913 - options
    source: Annotated[
        str, typer.Argument(metavar="[SOURCE]", help="The source, as you give it to `perseid migrate copy`.")
    ] = "SOURCE",
    *,
    prefix: PrefixOption = None,
    source_identity: SourceIdentity = None,
    secret_file: SourceSecret = None,
    key_file: SourceKey = None,
    server_key: ServerKey = None,
    mirror: MirrorOption = False,
    password_file: PasswordFile = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Print the steps of the cut-over, with the commands for this installation, and how to fall back.

    The commands have the options of the source that you give here.

    For example:
        perseid migrate checklist old.example.org:2641 --as 300:0.NA/12345 --key-file admpriv.bin
    """
    options: list[object] = [source]
    for name in prefix or ():
        options += ["--prefix", name]
    if source_identity is not None:
        options += ["--as", parse_value_ref(source_identity, "--as")]
    files = {"--secret-file": secret_file, "--key-file": key_file, "--server-key": server_key}
    for option, path in {**files, "--password-file": password_file}.items():
        options += [option, path] if path is not None else []
    options += ["--mirror"] if mirror else []
    folder = resolve_directory(directory)
    with open_installation(directory) as session, session.registry.snapshot() as snapshot:
        prefixes = [name for name in namespaces(snapshot.reader) if snapshot.is_homed(f"{PREFIX_OF_PREFIXES}/{name}")]
    steps = make_checklist(join(map(str, options)), quote(str(folder)), prefixes)
    phase = ""
    for step in steps:
        if json:
            print_json(step)
            continue
        if step.phase != phase:
            phase = step.phase
            print_text(f"{TITLES[Phase(phase)]}:")
        print_text(f"{step.step:>3}. {printable(step.text)}")
        if step.command:
            print_text(f"     {printable(step.command)}")


def _format_list(identities: tuple[str, ...]) -> str:
    return "[" + ", ".join(to_json(identity) for identity in identities) + "]"


def _read_options(
    prefixes: list[str] | None,
    identity: str | None,
    secret_file: Path | None,
    key_file: Path | None,
    server_key: Path | None,
    password_file: Path | None,
) -> SourceOptions:
    """Read the files with secrets."""
    if secret_file is not None and key_file is not None:
        raise typer.BadParameter("use only one of --secret-file and --key-file")
    if (identity is None) != (secret_file is None and key_file is None):
        raise typer.BadParameter("use --as INDEX:HANDLE together with --secret-file or --key-file", param_hint="--as")
    if identity is not None:
        identity = str(parse_value_ref(identity, "--as"))
    try:
        key: PrivateKey | str | None = None if secret_file is None else read_secret(secret_file)
        if key_file is not None:
            key = read_private_key(read_private_file(key_file))
        expected = None if server_key is None else PublicKey.from_file(_read_public_file(server_key))
        password = "" if password_file is None else read_secret(password_file)
    except (InvalidRemote, InvalidData, OSError) as problem:
        raise CommandFailed(str(problem)) from problem
    return SourceOptions(tuple(prefixes or ()), identity, key, expected, password)


def _read_public_file(path: Path) -> bytes:
    """Read a public key, which anybody may read."""
    with path.open("rb") as file:
        return file.read(_MAX_KEY_BYTES)


_MAX_KEY_BYTES: Final = 65_536


@contextmanager
def _open(text: str, options: SourceOptions) -> Iterator[Source]:
    with _translate_errors():
        source = open_source(text, options)
        with closing(source):
            yield source


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except SourceUnreachable as error:
        raise Unreachable(printable(str(error)), advice=error.advice) from error
    except SourceError as error:
        raise CommandFailed(printable(str(error)), *filter(None, (error.advice,))) from error


def _copy_once(
    session: OpenInstallation, source: Source, options: CopyOptions, problems: Callable[[MigrationProblem], None]
) -> CopyResult:
    with progress("copying", unit="records") as update, _translate_errors():
        folder = session.installation.directory
        return Copy(session.registry, session.identity, source, folder, options, problems, update).run()


class _Mirroring:
    """Reads everything once, and then only what has changed."""

    def __init__(
        self,
        session: OpenInstallation,
        source: MirrorSource,
        options: CopyOptions,
        problems: Callable[[MigrationProblem], None],
        *,
        full: bool,
    ) -> None:
        self._session, self._source, self._options, self._problems = session, source, options, problems
        self._directory = session.installation.directory
        # What was changed here is in no transaction, so only a dump can overwrite it.
        reads_all = full or options.overwrite
        self._state = None if reads_all else load_state(self._directory, source.label, options.prefixes)

    def run(self) -> CopyResult:
        """Copy the transactions since the last state, or everything if there is none."""
        if self._state is not None:
            with _translate_errors():
                session, folder = self._session, self._directory
                copy = Copy(session.registry, session.identity, self._source, folder, self._options, self._problems)
                state = apply_transactions(self._source, copy, self._state)
                copy.end()
            if state is not None:
                self._keep(state)
                return copy.result
        result = _copy_once(self._session, self._source, self._options, self._problems)
        if self._source.state is not None:
            self._keep(self._source.state)
        return result

    def _keep(self, state: MirrorState) -> None:
        if not self._options.dry_run:
            self._state = msgspec.structs.replace(state, prefixes=self._options.prefixes)
            save_state(self._directory, self._state)


def _follow(copy_once: Callable[[], CopyResult], interval: int, label: str, json: bool) -> CopyResult:
    """Copy again and again until a signal; the last result is returned. A second signal interrupts the last pass."""
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, _: object) -> None:
        ended.set()
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, end)
        result = copy_once()
        while not ended.is_set():
            if result.counts.has_changes or result.prefixes:
                print_summary(label, result, json)
            ended.wait(interval)
            if not ended.is_set():
                try:
                    result = copy_once()
                except Unreachable as error:  # the old server may be restarted
                    print_message(f"{error.detail}. Retrying in {interval} s")
                    result = CopyResult()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return result


commands: dict[str, Callable[..., None] | typer.Typer] = {"migrate": app}

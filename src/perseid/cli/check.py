"""`perseid check`: find problems of an installation, each with its fix.

Each part is checked on its own, so that one problem does not hide the others.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.ledger.errors import CorruptView, LedgerError
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import CHUNK
from perseid.ledger.log.signing import find_branch
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import prepare
from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.proof.verifier import InvalidProof, open_checkpoint
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    NEXT_CHECKPOINT_KEY,
    Installation,
    NoInstallation,
)
from perseid.registry.installation.settings import FILE_NAME, Config, InvalidConfig
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.policy.types import check_definitions, check_types
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot

from ._installation import Directory, OpenInstallation, open_installation, resolve_directory
from ._output import AsJson, print_json, progress
from ._values import printable
from .backup import counters, reopen_command
from .check_server import Finding, Level, has_errors, http_findings, port_findings, server_findings, token_findings
from .keys import find_pending_key, list_keys

_GROUP_AND_OTHERS: Final = 0o077


def check(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that read the whole ledger.")] = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Check an installation and show how to fix problems.

    The checks cover the directory, the settings, the server's key and site information, the HTTPS certificate, the
    ports, the clock, the keys of the ledger, the ledger, its views, the policies and the tokens. Records that their
    policy no longer allows are listed too. The exit code is 1 if there is an error. A server may be running.

    For example:
        perseid check
        perseid check --quick --json
    """
    folder = resolve_directory(directory).resolve()
    if not (folder / FILE_NAME).exists():
        raise NoInstallation(folder)
    results = []
    for finding in findings(folder, quick=quick):
        results.append(finding)
        if not json:
            typer.echo(f"{finding.level.value:<5}  {finding.about:<9}  {printable(finding.message)}")
            if finding.advice:
                typer.echo(f"{'':<18}{printable(finding.advice)}")
    failed = has_errors(results)
    if json:
        plain = [{"about": f.about, "level": f.level.value, "message": f.message, "advice": f.advice} for f in results]
        print_json({"ok": not failed, "findings": plain})
    if failed:
        raise typer.Exit(1)


def findings(directory: Path, *, quick: bool) -> Iterator[Finding]:
    """Yield the findings about an installation."""
    permissions = list(_directory_findings(directory))
    yield from permissions
    settings = list(_settings_findings(directory))
    yield from settings
    if not has_errors([*permissions, *settings]):
        config = Config.load(directory, os.environ)
        yield from server_findings(directory, config)
        yield from http_findings(directory, config)
        yield from port_findings(config)
    try:
        with Installation.open(directory, writable=False) as installation:
            yield from _clock_findings(installation)
            yield from _key_findings(installation)
            ledger = list(_ledger_findings(installation, quick=quick))
            yield from ledger
    except (LedgerError, InvalidConfig) as problem:
        if not has_errors([*permissions, *settings]):
            yield Finding("ledger", Level.ERROR, str(problem))
        return
    if has_errors(ledger):
        yield Finding("views", Level.NOTE, "not checked: the ledger they are built from has errors")
        return
    try:
        with open_installation(directory) as session:
            yield from _answers_findings(session, quick=quick)
            yield from _counter_findings(session)
            yield from _policy_findings(session, quick=quick)
            yield from token_findings(session)
    except LedgerError as problem:
        if not has_errors(permissions):
            yield Finding("views", Level.ERROR, str(problem))


# Files


def _directory_findings(directory: Path) -> Iterator[Finding]:
    try:
        prepare(directory)
    except LedgerError as problem:
        yield Finding("directory", Level.ERROR, str(problem))
        return
    mode = stat.S_IMODE(directory.stat().st_mode)
    is_private = not mode & _GROUP_AND_OTHERS
    open_files = [path for path in _iter_files(directory) if not is_private or path.parent.name == KEYS_NAME]
    exposed = [path for path in open_files if path.stat().st_mode & _GROUP_AND_OTHERS]
    if exposed:
        names = ", ".join(str(path.relative_to(directory)) for path in exposed[:3])
        message = f"other users can read {names}, which contain secrets"
        yield Finding("directory", Level.ERROR, message, f"restrict access with: chmod -R go= {directory}")
    else:
        yield Finding("directory", Level.OK, f"only you can read {directory} (mode {mode:04o})")


def _iter_files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        yield from (Path(folder) / name for name in names)


def _settings_findings(directory: Path) -> Iterator[Finding]:
    try:
        config = Config.load(directory, os.environ)
    except (InvalidConfig, OSError) as problem:
        yield Finding("settings", Level.ERROR, str(problem), f"correct it in {directory / FILE_NAME}")
        return
    for remark in config.remarks:
        yield Finding("settings", Level.NOTE, remark)
    changed = sum(source != "default" for source in config.sources.values())
    yield Finding("settings", Level.OK, f"{changed} of {len(config.sources)} are set; perseid config shows them")


# The ledger


def _clock_findings(installation: Installation) -> Iterator[Finding]:
    with installation.log.open_reader() as reader:
        size = reader.size
        last = reader.entry(size).at if size else None
    try:
        installation.log.clock.date(last)
    except LedgerError as problem:
        yield Finding(
            "clock", Level.ERROR, str(problem), "set the clock of this machine; until then every change is refused"
        )
    else:
        yield Finding("clock", Level.OK, "agrees with the last entry")


def _key_findings(installation: Installation) -> Iterator[Finding]:
    path = installation.directory / KEYS_NAME / CHECKPOINT_KEY
    advice = (
        "restore the key from your copy; without one, run perseid backup and perseid restore, which creates a new key"
    )
    try:
        signer = Signer.from_bytes(path.read_bytes())
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is damaged"
        yield Finding("keys", Level.ERROR, f"{path} cannot be read: {reason}", advice)
        return
    current = list_keys(installation)[-1]
    if find_pending_key(installation) is not None:
        message = "the rotation of the checkpoint key was interrupted"
        yield Finding("keys", Level.ERROR, message, "finish it with: perseid key rotate checkpoint")
        return
    if (path.parent / NEXT_CHECKPOINT_KEY).exists():
        message = f"{path.parent / NEXT_CHECKPOINT_KEY} is left over from an interrupted rotation and was never used"
        yield Finding("keys", Level.NOTE, message, "the next rotation removes it")
    if signer.public != current or not _has_signed(installation, signer):
        yield Finding("keys", Level.ERROR, "the checkpoint key is not the one named in the ledger", advice)
    else:
        yield Finding("keys", Level.OK, f"checkpoints are signed as {signer.name}")


def _has_signed(installation: Installation, signer: Signer) -> bool:
    """Whether this key signed the latest checkpoint; true also without a checkpoint, or if keys were rotated."""
    with installation.log.open_reader() as reader:
        note = reader.checkpoint()
    if note is None:
        return True
    try:
        open_checkpoint(note, signer.public)
    except InvalidProof:
        return len(list_keys(installation)) > 1
    return True


def _ledger_findings(installation: Installation, *, quick: bool) -> Iterator[Finding]:
    log = installation.log
    if (branch := find_branch(log)) is not None:
        old = branch.predecessor
        message = f"restored from a backup: continues {old.origin} after entry {old.size:,} as {branch.new.name}"
        yield Finding("ledger", Level.NOTE, message, "send the new key to users of the old one: perseid key list")
    with log.open_reader() as reader:
        size = reader.size
    if quick:
        yield Finding("ledger", Level.OK, f"{size:,} entries, not verified (--quick)")
        return
    try:
        with progress("checking entries", size) as update:
            report = verify(log, update)
    except LedgerError as problem:
        in_view = isinstance(problem, CorruptView)
        fix = "perseid rebuild" if in_view else "restore the last good backup: perseid restore"
        yield Finding("ledger", Level.ERROR, str(problem), fix)
        return
    redacted = f", {report.redacted:,} values redacted" if report.redacted else ""
    yield Finding("ledger", Level.OK, f"{report.entries:,} entries are valid{redacted}")


def _answers_findings(session: OpenInstallation, *, quick: bool) -> Iterator[Finding]:
    ledger = session.registry.ledger
    fix = "rebuild the view with: perseid rebuild answers"
    if not ledger.answers.catch_up(ledger.open_reader):
        yield Finding("answers", Level.ERROR, "the view cannot follow the ledger", f"free disk space, then {fix}")
        return
    if quick:
        yield Finding("answers", Level.OK, f"up to entry {ledger.answers.applied:,}")
        return
    with progress("comparing answers", unit="records"):
        difference = ledger.answers.differences(ledger.open_reader)
    if difference is not None:
        yield Finding("answers", Level.ERROR, f"the view differs from the ledger at {difference}", fix)
    else:
        yield Finding("answers", Level.OK, "agrees with the ledger")


# Namespaces


def _counter_findings(session: OpenInstallation) -> Iterator[Finding]:
    for counter in counters(session):
        if counter.closed:
            message = f"minting under {counter.prefix} is closed: the last suffix before the restore is not known"
            known = f" (in the backup: {counter.last_handle})" if counter.last_handle else ""
            advice = f"find out which was the last{known}, then: {reopen_command(counter.prefix)}"
            yield Finding("minting", Level.ERROR, message, advice)


def _policy_findings(session: OpenInstallation, *, quick: bool) -> Iterator[Finding]:
    with session.registry.snapshot() as snapshot:
        prefixes = list(namespaces(snapshot.reader))
        valid = 0
        for prefix in prefixes:
            try:
                policy = snapshot.policy(prefix)
                policy.suffix_scheme()
            except InvalidPolicy as problem:
                advice = f"replace it: perseid namespace policy {prefix} --file FILE"
                yield Finding("policy", Level.ERROR, f"{prefix}: {problem}", advice)
                continue
            valid += 1
            if not quick:
                yield from _record_findings(snapshot, prefix, policy)
    yield Finding("policy", Level.OK, f"{valid} of {len(prefixes)} namespaces have a valid policy")


def _record_findings(snapshot: Snapshot, prefix: str, policy: Policy) -> Iterator[Finding]:
    """Report the records that the policy of their namespace no longer allows."""
    count, first = 0, ""
    with progress(f"checking {prefix}", unit="records") as update:
        for number, entry in enumerate(snapshot.reader.all_names(f"{prefix}/"), 1):
            if number % CHUNK == 0:
                update(number)
            if problem := _policy_problem(snapshot, policy, entry):
                count += 1
                first = first or f"{entry.handle}: {problem}"
    if count:
        message = f"{count:,} records of {prefix} violate the current policy; the first is {first}"
        yield Finding("policy", Level.NOTE, message, "they stay unchanged; the next change has to follow the policy")


def _policy_problem(snapshot: Snapshot, policy: Policy, entry: Entry) -> str:
    """Return why the policy refuses a handle or its record; empty if it does not."""
    if entry.state is State.ABSENT:
        return ""
    complete = entry.state not in (State.RESERVED, State.TOMBSTONE)
    values = entry.record()
    try:
        check_definitions((), values)  # the rules may have become stricter since
    except Refused as problem:
        return problem.reason
    refusals = [
        *policy.check_name(Handle.parse_lenient(entry.handle)),
        *policy.check_values(values, complete=complete),
        *check_types(snapshot, policy, values),
    ]
    return refusals[0].message if refusals else ""


commands: dict[str, Callable[..., None] | typer.Typer] = {"check": check}

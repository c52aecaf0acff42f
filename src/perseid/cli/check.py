"""`perseid check`: find problems of an installation, each with its fix.

Each part is checked on its own, so that one problem does not hide the others.
"""

import ipaddress
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.client.remotes import others_have_access
from perseid.compiled import ABSENT, PROBLEM, describe, native
from perseid.ledger.errors import ClockError, CorruptView, LedgerError, ReadOnlyMode, StorageFull
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import CHUNK
from perseid.ledger.log.signing import find_branch
from perseid.ledger.merkle import Signer
from perseid.ledger.store.directory import prepare
from perseid.ledger.store.node_reports import NodeReport, read_reports
from perseid.ledger.verify import verify
from perseid.names.handle import Handle
from perseid.proof.verifier import InvalidProof, open_checkpoint
from perseid.records.site import Server, Transport
from perseid.registry.access.tokens import DAY, TokenStatus
from perseid.registry.commands.namespaces import namespaces
from perseid.registry.installation.certificates import EXPIRY_WARNING, Credentials, find_certificate
from perseid.registry.installation.files import has_several_servers
from perseid.registry.installation.installation import (
    CHECKPOINT_KEY,
    KEYS_NAME,
    NEXT_CHECKPOINT_KEY,
    Installation,
    InstallationError,
    NoInstallation,
    check_origin,
)
from perseid.registry.installation.settings import FILE_NAME, Config, InvalidConfig
from perseid.registry.installation.site import (
    NEXT_SERVER_KEY,
    PUBLIC_KEY,
    ROTATE_COMMAND,
    SITE_BINARY,
    SITE_JSON,
    ServerIdentity,
    load_server_identity,
)
from perseid.registry.policy.policy import Policy, find_url_problems
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.policy.types import check_definitions, check_types
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot

from ._arguments import Directory, OpenInstallation, open_installation, printable, resolve_directory
from ._findings import Finding, Level, has_errors
from ._output import AsJson, pluralize, print_json, print_row, progress
from ._ports import port_findings
from ._target import list_all_tokens
from .backup import counters, reopen_command
from .keys import find_pending_key, list_keys

UNUSED_DAYS: Final = 60
"""Days without use after which a token is reported: most programs do not pause for two months."""

_INDENT: Final = 18  # of messages
_MAX_IDS: Final = 5


def token_findings(session: OpenInstallation) -> Iterator[Finding]:
    """Yield the findings about tokens; none if there are no tokens."""
    now = session.registry.now()
    tokens = list(list_all_tokens(session))
    if not tokens:
        return
    active = [item for item in tokens if item.is_active(now)]
    unused = [item for item in active if now - max(item.used or 0, item.token.created) >= UNUSED_DAYS * DAY]
    if unused:
        message = f"not used for {UNUSED_DAYS} days: {_format_ids(unused)}"
        yield Finding("tokens", Level.NOTE, message, "revoke tokens that are not needed: perseid token revoke TOKEN")
    branch = find_branch(session.registry.ledger.log)
    older = [] if branch is None else [item for item in active if item.seq <= branch.predecessor.size]
    if older:
        message = f"restored from a backup: {_format_ids(older)}; tokens revoked after the backup are active again"
        yield Finding("tokens", Level.NOTE, message, "review them with perseid token list, and revoke them again")
    expired = sum(item.state(now) == "expired" for item in tokens)
    yield Finding("tokens", Level.OK, f"{len(active):,} active" + (f", {expired:,} expired" if expired else ""))


def _format_ids(items: Sequence[TokenStatus]) -> str:
    ids = ", ".join([item.token.id for item in items[:_MAX_IDS]])
    return ids if len(items) <= _MAX_IDS else f"{ids} and {len(items) - _MAX_IDS:,} more"


_HTTP = "http"


def http_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Yield the findings about HTTP and the certificate for HTTPS."""
    if not config.http.enabled:
        yield Finding(_HTTP, Level.OK, "disabled (http.enabled is false)")
        return
    if config.http.listen == "http":
        yield from _proxy_findings(config)
        yield Finding(_HTTP, Level.OK, "plain HTTP only, so no certificate is needed (http.listen is http)")
        return
    try:
        credentials = find_certificate(directory, config, load_server_identity(directory, config).key)
    except InstallationError as problem:
        yield Finding(_HTTP, Level.ERROR, str(problem))
        return
    if credentials is None:
        message = "there is no self-signed certificate for the current key and hosts"
        yield Finding(_HTTP, Level.NOTE, message, "the server creates one when it starts, or on SIGHUP")
        return
    yield from _certificate_findings(credentials, config)
    yield from _key_file_findings(directory, config)


def _certificate_findings(credentials: Credentials, config: Config) -> Iterator[Finding]:
    now = datetime.now(UTC)
    leaf = credentials.chain[0]
    end = leaf.not_valid_after_utc
    for remark in credentials.remarks(config, now):
        yield Finding(_HTTP, Level.ERROR if now > end else Level.NOTE, remark)
    if now > end:
        return
    if credentials.is_own:
        yield Finding(_HTTP, Level.OK, f"HTTPS uses a self-signed certificate: {credentials.path}")
    elif now <= end - EXPIRY_WARNING:
        days = (end - now).days
        yield Finding(
            _HTTP, Level.OK, f"the certificate in {credentials.path} is valid for another {pluralize(days, 'day')}"
        )


def _key_file_findings(directory: Path, config: Config) -> Iterator[Finding]:
    path = directory / (config.http.key_file or config.http.certificate_file)
    with suppress(OSError):
        if config.http.certificate_file and path.stat().st_mode & stat.S_IROTH:
            message = f"all users can read {path}, which contains the private key for HTTPS"
            yield Finding(_HTTP, Level.NOTE, message, f"restrict access with: chmod o= {path}")


def _proxy_findings(config: Config) -> Iterator[Finding]:
    if config.http.public_url.lower().startswith("https:") and not config.http.trusted_proxies:
        message = "http.public_url is an https address but http.listen is http, so a proxy must be in front"
        advice = "list the proxy in http.trusted_proxies; otherwise authentication over HTTP is refused"
        yield Finding(_HTTP, Level.NOTE, message, advice)


_NATIVE_TRANSPORTS = (Transport.TCP, Transport.UDP)
_EDIT_ADVICE = f"correct {SITE_JSON}, raise its serialNumber by one, and remove {SITE_BINARY}; or correct the settings"


def server_findings(directory: Path, config: Config) -> Iterator[Finding]:
    """Yield the findings about the server's key and site information."""
    try:
        identity = load_server_identity(directory, config)
    except InstallationError as problem:
        yield Finding("server", Level.ERROR, str(problem))
        return
    yield from _rotation_findings(directory, identity)
    yield from _passphrase_findings(directory, config)
    for remark in identity.remarks:
        yield Finding("server", Level.NOTE, remark)
    with suppress(OSError):
        if (directory / KEYS_NAME / PUBLIC_KEY).read_bytes() != identity.key.public.to_bytes():
            message = f"{KEYS_NAME}/{PUBLIC_KEY} is not the public key of the server; Perseid does not read it"
            yield Finding("server", Level.NOTE, message, "remove it; the site information contains the public key")
    if not identity.site.is_primary:
        message = f"{identity.site_path} describes a site that is not primary, so the server refuses changes"
        yield Finding("server", Level.NOTE, message)
    server = identity.site.servers[identity.position]
    yield from _interface_findings(server, identity, config)
    yield from _address_findings(server, identity, config)
    about = f"signs as server {identity.position + 1} of {identity.site_path.name}"
    serial = f"serial number {identity.site.serial}"
    yield Finding("server", Level.OK, f"{about} ({serial}) with {identity.key.public.fingerprint}")


def _rotation_findings(directory: Path, identity: ServerIdentity) -> Iterator[Finding]:
    next_key = directory / KEYS_NAME / NEXT_SERVER_KEY
    if identity.key_path == next_key:
        message = "the rotation of the server's key was interrupted"
        yield Finding("server", Level.ERROR, message, f"finish it with: {ROTATE_COMMAND}")
    elif next_key.exists():
        message = f"{next_key} is left over from an interrupted rotation and was never used"
        yield Finding("server", Level.NOTE, message, "the next rotation removes it")


def _passphrase_findings(directory: Path, config: Config) -> Iterator[Finding]:
    path = directory / config.keys.passphrase_file
    with suppress(OSError):
        if config.keys.passphrase_file and others_have_access(path, path.stat().st_mode):
            message = f"other users can read {path}, which contains the passphrase of the server's key"
            yield Finding("server", Level.NOTE, message, f"restrict access with: chmod 0600 {path}")


def _interface_findings(server: Server, identity: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Compare the ports of the site information with those of the settings."""
    over_http = Transport.HTTPS if config.http.listen == "https" else Transport.HTTP
    for setting, port, transports in (
        ("native.port", config.native.port, _NATIVE_TRANSPORTS),
        ("http.port", config.http.port if config.http.enabled else 0, (over_http,)),
    ):
        listed = {one: sorted({each.port for each in server.interfaces if each.transport == one}) for one in transports}
        others = [f"{one.name} {' and '.join(map(str, ports))}" for one, ports in listed.items() if port not in ports]
        if port and others and all(listed.values()):
            message = f"{identity.site_path} sends clients to {', '.join(others)}, but {setting} is {port}"
            yield Finding("server", Level.NOTE, message, f"unless ports are forwarded: {_EDIT_ADVICE}")
        for one in [one for one in transports if not listed[one] and one in _NATIVE_TRANSPORTS]:
            message = f"{identity.site_path} lists no {one.name} interface of this server, so clients use none"
            yield Finding("server", Level.NOTE, message, _EDIT_ADVICE)


def _address_findings(server: Server, identity: ServerIdentity, config: Config) -> Iterator[Finding]:
    """Compare the address of the site information with the setting."""
    try:
        host = ipaddress.ip_address(config.native.host)
    except ValueError:
        return
    listed = server.ip
    only_local = host.is_unspecified and listed.is_loopback
    if only_local or not (host.is_unspecified or listed.is_unspecified or listed == host):
        message = f"{identity.site_path} sends clients to {listed}, but native.host is {host}"
        yield Finding("server", Level.NOTE, message, f"unless addresses are translated: {_EDIT_ADVICE}")


def resolution_finding(config: Config, several_servers: bool) -> Finding:
    """Return whether the compiled module serves public resolution over UDP and TCP."""
    enabled, networks = config.native.compiled, len(config.limits.exempt_networks)
    how = describe(enabled=enabled, exempt_networks=networks, several_servers=several_servers)
    message = f"public resolution over UDP and TCP runs {how}"
    if not enabled or (several_servers and not PROBLEM):
        return Finding("compiled", Level.OK, message)
    if PROBLEM == ABSENT:
        advice = "install a wheel that has it: in a checkout, make wheel COMPILED=1 builds one"
    elif PROBLEM:
        advice = "install the Debian package liblmdb0"
    elif networks > native.MAX_NETWORKS:
        advice = "combine networks in limits.exempt_networks"
    else:
        return Finding("compiled", Level.OK, message)
    return Finding("compiled", Level.NOTE, message, f"{advice}; to do without it, set native.compiled to false")


_GROUP_AND_OTHERS: Final = 0o077


def check(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that read the whole ledger.")] = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Check an installation and show how to fix problems.

    The checks cover the directory, the settings, the server's key and site information, the HTTPS certificate, the
    ports, the clock, the nodes, the keys of the ledger, the ledger, its views, the policies and the tokens. Records
    that their policy no longer allows are listed too. The exit code is 1 if there is an error. A server may be running.

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
            print_row(f"{finding.level.value:<5}  {finding.about:<9}  {printable(finding.message)}", _INDENT)
            if finding.advice:
                print_row(f"{'':<{_INDENT}}{printable(finding.advice)}", _INDENT)
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
        yield from port_findings(directory, config)
        yield resolution_finding(config, has_several_servers(directory))
    try:
        with Installation.open(directory, writable=False) as installation:
            yield from _clock_findings(installation)
            yield from _space_findings(installation)
            yield from _mode_findings(installation)
            yield from _key_findings(installation)
            if installation.log.store.is_remote:
                yield from _host_findings(installation)
                yield from node_findings(read_reports(installation.log.store))
            ledger = list(_ledger_findings(installation, quick=quick))
            yield from ledger
    except (LedgerError, InvalidConfig) as problem:
        if not has_errors([*permissions, *settings]):
            advice = "free disk space; until then a server resolves only" if isinstance(problem, StorageFull) else ""
            yield Finding("ledger", Level.ERROR, str(problem), advice)
        return
    if has_errors(ledger):
        yield Finding("views", Level.NOTE, "not checked: the ledger they are built from has errors")
        return
    try:
        with open_installation(directory, maintains=True) as session:
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
    try:
        installation.log.check_clock()
    except ClockError as problem:
        advice = "set the clock, or run: perseid serve --accept-clock; until then every change is refused"
        yield Finding("clock", Level.ERROR, str(problem), advice)
    else:
        yield Finding("clock", Level.OK, "agrees with the last entry")


def _space_findings(installation: Installation) -> Iterator[Finding]:
    try:
        installation.log.store.check_space(thorough=True)
    except StorageFull as problem:
        yield Finding("disk", Level.ERROR, str(problem), "free disk space; until then changes are refused")


def _mode_findings(installation: Installation) -> Iterator[Finding]:
    try:
        installation.log.check_mode()
    except ReadOnlyMode as problem:
        yield Finding("read-only", Level.ERROR, str(problem), "to accept changes again: perseid read-only off")


UNRESPONSIVE_SECONDS: Final = 60.0
"""Seconds without a report after which a node is unresponsive: six reports."""

MAX_CLOCK_DIFFERENCE: Final = 1.0
"""Seconds that clocks may differ: NTP keeps them within milliseconds, and each node dates its changes."""

MAX_BEHIND: Final = 1000
"""Entries that a node may be behind: what a busy node writes in a second."""


def node_findings(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """Yield the findings about the nodes that share the database."""
    running = [node for node in reports if node.age <= UNRESPONSIVE_SECONDS]
    for node in reports:
        if node not in running:
            message = f"{node.name} is unresponsive: its last report is {node.age:.0f} s old"
            advice = "start it with: perseid serve; a node that does not come back is forgotten after a week"
            yield Finding("nodes", Level.ERROR, message, advice)
    for node in running:
        if abs(node.clock_difference) > MAX_CLOCK_DIFFERENCE:
            direction = "ahead of" if node.clock_difference > 0 else "behind"
            message = f"the clock of {node.name} is {abs(node.clock_difference):.1f} s {direction} the database's"
            yield Finding("nodes", Level.ERROR, message, "synchronize the clocks of all machines with NTP")
        if node.behind > MAX_BEHIND:
            message = f"{node.name} was {node.behind:,} entries behind the ledger, so it gives old answers"
            yield Finding("nodes", Level.ERROR, message, "see its log and the load of its machine")
    if len({node.version for node in running}) > 1:
        message = "different versions: " + ", ".join(f"{node.name} has {node.version}" for node in running)
        yield Finding("nodes", Level.NOTE, message, "upgrade the others soon")
    if not running:
        yield Finding("nodes", Level.OK, "no node is running")
        return
    lag = max(node.behind for node in running)
    text = pluralize(lag, "entry", "entries")
    yield Finding("nodes", Level.OK, f"{pluralize(len(running), 'node')} running, at most {text} behind the ledger")


def _host_findings(installation: Installation) -> Iterator[Finding]:
    """Yield whether each of several database servers can be used, before one of them must take over."""
    hosts = list(installation.log.store.check_hosts())
    advice = "nodes could not use it after a fail-over: start it, allow access, or correct the password file"
    for host, _, problem in hosts:
        if problem:
            yield Finding("database", Level.ERROR, f"cannot connect to {host}: {problem}", advice)
    primaries = [host for host, is_primary, _ in hosts if is_primary]
    if len(primaries) > 1:
        message = f"{' and '.join(primaries)} accept changes; there must be one primary"
        yield Finding("database", Level.ERROR, message, "stop the old primary, and make it a standby of the other one")
    elif hosts and not any(problem for *_, problem in hosts):
        yield Finding("database", Level.OK, f"all {len(hosts)} servers in ledger.database can be used")


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
    check_origin(installation.directory, installation.log, installation.config, signer)
    current = list_keys(installation)[-1]
    if find_pending_key(installation) is not None:
        message = "the rotation of the checkpoint key was interrupted"
        yield Finding("keys", Level.ERROR, message, "finish it with: perseid key rotate checkpoint")
        return
    if (path.parent / NEXT_CHECKPOINT_KEY).exists():
        message = f"{path.parent / NEXT_CHECKPOINT_KEY} is left over from an interrupted rotation and was never used"
        yield Finding("keys", Level.NOTE, message, "the next rotation removes it")
    if signer.public != current and installation.log.store.is_remote:
        advice = (
            "if another node has rotated it, take the keys of that node: perseid node export there, perseid node join "
            f"into a new directory here, copy its {KEYS_NAME}; otherwise {advice}"
        )
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
    redacted = f", {pluralize(report.redacted, 'value')} redacted" if report.redacted else ""
    verb = "is" if report.entries == 1 else "are"
    yield Finding("ledger", Level.OK, f"{pluralize(report.entries, 'entry', 'entries')} {verb} valid{redacted}")


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
    remark = "; their records and URLs were not checked (--quick)" if quick else ""
    yield Finding("policy", Level.OK, f"{valid} of {len(prefixes)} namespaces have a valid policy{remark}")


MAX_LISTED: Final = 10
"""Records that a finding lists."""


def _record_findings(snapshot: Snapshot, prefix: str, policy: Policy) -> Iterator[Finding]:
    """Report the records that the policy of their namespace no longer allows."""
    count, first, listed = 0, "", list[str]()
    urls, first_url, listed_urls = 0, "", list[str]()
    copies = 0
    with progress(f"checking {prefix}", unit="records") as update:
        for number, entry in enumerate(snapshot.reader.all_names(f"{prefix}/"), 1):
            if number % CHUNK == 0:
                update(number)
            if snapshot.is_misplaced(entry.handle):
                copies += entry.state is not State.ABSENT
                continue
            if problem := _policy_problem(snapshot, policy, entry):
                count += 1
                _list_handle(entry.handle, listed)
                first = first or f"{entry.handle}: {problem}"
            if not policy.url_schemes:
                for value, wrong in find_url_problems(entry.record(), (), snapshot.rules.url_schemes):
                    urls += 1
                    _list_handle(entry.handle, listed_urls)
                    first_url = first_url or f"value {value.index} of {entry.handle}, which {wrong.reason}"
    if copies:
        message = f"{prefix}: {pluralize(copies, 'record')} left from before the site was divided, of other servers"
        advice = "list them with: perseid site misplaced; remove one that its server has: perseid delete HANDLE"
        yield Finding("site", Level.NOTE, message, advice)
    if urls:
        what = "URL value is not a URL" if urls == 1 else "URL values are not URLs"
        message = f"{prefix}: {urls:,} {what} to redirect to; the first is {first_url}{_format_others(listed_urls)}"
        advice = "fix them with: perseid set; the policy key url_schemes refuses new ones"
        yield Finding("urls", Level.NOTE, message, advice)
    if count:
        what = "record violates" if count == 1 else "records violate"
        message = f"{prefix}: {count:,} {what} the current policy; the first is {first}{_format_others(listed)}"
        advice = "they stay as they are; a change must follow the policy, but URLs that it does not change may stay"
        yield Finding("policy", Level.NOTE, message, advice)


def _list_handle(handle: str, listed: list[str]) -> None:
    """Add a handle to those listed; one more shows that there are others."""
    if handle not in listed and len(listed) <= MAX_LISTED:
        listed.append(handle)


def _format_others(handles: Sequence[str]) -> str:
    """List the records after the first one."""
    others = [*handles[1:MAX_LISTED], *(["…"] if len(handles) > MAX_LISTED else ())]
    return f"; others: {', '.join(others)}" if others else ""


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

"""`perseid user`, `grant`, `revoke` and `access`: users, their rights, and who can do what."""

from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, TypeAlias

import typer

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.records.binary import MAX_BYTES
from perseid.records.data_types import BASE64_PREFIX
from perseid.records.encoding import to_base64
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.record import ValueRef
from perseid.registry.access.identities import complete_identity
from perseid.registry.access.roles import PERMISSION_NAMES, ROLES, Rights
from perseid.schema.access import (
    AccessChanged,
    AccessEntry,
    AccessRole,
    KeyState,
    RecordsWithoutGroup,
    User,
    UserKey,
)

from ._arguments import (
    ActingAs,
    Directory,
    HandleArgument,
    Note,
    Prefix,
    SecretOutput,
    parse_handle,
    print_warnings,
    printable,
    read_bytes,
)
from ._commands import Group, register_command
from ._output import AsJson, confirm, new_secret_file, print_fields, print_json, print_message, print_text
from ._target import open_target
from .lifecycle import Yes, run_job

IdentityArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="[INDEX:]HANDLE", help="The identity or group; the handle alone if it has only one key."),
]
On: TypeAlias = Annotated[
    str,
    typer.Option(
        "--on", metavar="PREFIX|HANDLE", help="A prefix, for everything under it; or a handle, for its record."
    ),
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only check and show what would change.")]
KeyFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--key", metavar="FILE", help="A public key: PEM, also a certificate; JWK; or a Handle key."),
]

_RIGHTS_HELP: Final = f"Roles ({', '.join(ROLES)}) or permissions ({', '.join(PERMISSION_NAMES)})."

user_app = typer.Typer(
    cls=Group,
    help="Add, list, disable and reset users: handles with a key, which can have rights.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


# Users


@register_command(user_app, "add")
def add(  # noqa: PLR0913 - options
    prefix: Prefix,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The suffix of the handle, or a description if handles are minted.")
    ],
    *,
    key: KeyFile = None,
    secret: Annotated[bool, typer.Option("--secret", help="Generate a secret. This is the default.")] = False,
    email: Annotated[str, typer.Option("--email", metavar="TEXT", help="An email address; public.")] = "",
    output: SecretOutput = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add a user: a handle with a key, and so an identity. It has no rights until you grant them.

    The handle is PREFIX/NAME, or minted if the namespace has a suffix scheme. A generated secret is shown only once.
    The user can change their own key. Use `perseid grant` to give them rights.

    For example:
        perseid user add 102.100.272 "Ann Example" --email ann@example.org
        perseid namespace add 12345
        perseid user add 12345 bob --json
    """
    public_key = _read_key(key, secret=secret, output=output)
    with new_secret_file(output, "--output", json=json) as write, open_target(directory, acting_as) as target:
        user = target.add_user(prefix, name, email=email, public_key=public_key, note=note)
        _print_key(user, json, write, output)


@register_command(user_app, "list")
def list_(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only users of this prefix.")] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List users: handles with a key. For a prefix, also members of its groups that have no key any more.

    For example:
        perseid user add 102.100.272 "Ann Example"
        perseid user list
        perseid user list 102.100.272 --json
    """
    with open_target(directory, acting_as) as target:
        for user in target.users(prefix=prefix):
            if json:
                print_json(user)
            else:
                print_text(_format_user(user))


@register_command(user_app, "disable")
def disable(
    handle: HandleArgument,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Disable a user: remove all keys and groups of the record, end all sessions, revoke all tokens.

    The rights stay in the records; `perseid access` shows them, and `perseid revoke` removes them. `perseid user reset`
    enables the user again.

    For example:
        perseid namespace add 12345
        perseid user add 12345 bob
        perseid user disable 12345/bob --note "left in spring"
        perseid user reset 12345/bob
    """
    name = str(parse_handle(handle))
    with open_target(directory, acting_as) as target:
        disabled = target.disable_user(name, note=note)
    if json:
        print_json(disabled)
        return
    print_text(disabled.handle)
    if not disabled.changed:
        print_message("Nothing changed: this user has no key and no token.")
    else:
        print_message(
            f"Removed keys and groups: {', '.join(disabled.keys) or 'none'}. Revoked tokens: {disabled.tokens:,}."
        )


@register_command(user_app, "reset")
def reset(
    handle: HandleArgument,
    *,
    key: KeyFile = None,
    output: SecretOutput = None,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Give a user a new secret, shown only once, or a new key. All earlier keys, sessions and tokens end.

    For example:
        perseid namespace add 12345
        perseid user add 12345 eve
        perseid user reset 12345/eve
    """
    name, public_key = str(parse_handle(handle)), _read_key(key, output=output)
    with new_secret_file(output, "--output", json=json) as write, open_target(directory, acting_as) as target:
        _print_key(target.reset_user(name, public_key=public_key, note=note), json, write, output)


def _read_key(path: str | None, *, secret: bool = False, output: Path | None = None) -> str:
    """Read a public key from a file, as text; empty without one, to generate a secret."""
    if path is None:
        return ""
    if secret:
        raise typer.BadParameter("use either --key or --secret", param_hint="--key")
    if output is not None:
        raise typer.BadParameter("use either --key or --output", param_hint="--key")
    try:
        return BASE64_PREFIX + to_base64(PublicKey.from_file(read_bytes(path, MAX_BYTES)).to_bytes())
    except InvalidData as problem:
        raise typer.BadParameter(f"{printable(path)}: {problem}", param_hint="--key") from problem


def _print_key(user: UserKey, json: bool, write_secret: Callable[[str], None] | None, output: Path | None) -> None:
    if json:
        print_json(user)
        return
    if write_secret is not None:
        write_secret(user.secret)
    print_fields({"identity": user.identity, "secret": user.secret if user.secret and output is None else None})
    print_warnings(user.warnings)
    if output is not None:
        print_message(f"The secret is in {printable(str(output))}: give it to the user over a secure channel.")
    elif user.secret:
        print_message("The secret is shown only once: give it to the user over a secure channel.")


def _format_user(user: User) -> str:
    """Format a user as a line, or as two: terminals would break a longer one anywhere."""
    line = printable(f"{user.state:<{_STATE_WIDTH}}  {', '.join(user.identities) or user.handle}")
    person = printable("  ".join(filter(None, (user.name, user.email))))
    if not person:
        return line
    return f"{line}  {person}" if len(line) + len(person) <= _MAX_LINE else f"{line}\n{'':{_STATE_WIDTH}}  {person}"


_STATE_WIDTH: Final = max(map(len, KeyState))
_MAX_LINE: Final = 78  # characters, without the gap: terminals have at least 80 columns


# Rights


def grant(  # noqa: PLR0913 - options
    identity: IdentityArgument,
    rights: Annotated[list[str], typer.Argument(metavar="ROLE|PERMISSION...", help=_RIGHTS_HELP)],
    *,
    on: On,
    existing: Annotated[
        bool, typer.Option("--existing", help="With a prefix: make existing records name the groups too, as a job.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Give an identity or group rights on a prefix, or in a record. You can only grant what you have.

    **owner**: all permissions. **editor**: add, change and remove values, read private ones, and mint. **minter**: mint
    and list identifiers. **reader**: read private values, and list. On a prefix a role is a group in the prefix handle,
    which new records name. Existing records that do not name it are counted; `--existing` adds the group to those that
    you can change, except for records with keys or groups. `perseid undo` undoes that.

    For example:
        perseid namespace add 12345
        perseid user add 12345 ann
        perseid grant 12345/ann editor --on 12345
        perseid grant 12345/ann reader --on 102.100.272/D7J1G0DQH
        perseid grant 12345/ann editor --on 12345 --existing --yes
    """
    where = _parse_on(on)
    who = _parse_identity(identity, where)
    Rights.parse(rights).check(where)
    if existing and "/" in where:
        raise typer.BadParameter("requires a prefix, not a handle", param_hint="--existing")
    with open_target(directory, acting_as) as target:
        changed = target.grant(who, rights, where, dry_run=dry_run, note=note)
        if dry_run or not (existing and changed.records):
            _print_changed(changed, json, dry_run=dry_run)
            return
        if json:
            print_json(changed)
        else:
            print_text(printable(changed.identity))
        if not yes:
            confirm(f"Existing records under {printable(where)} will name the groups")
        roles = [each.role for each in changed.records]
        ended = run_job(target, target.grant_in_records(where, roles, note=note))
    if json:
        print_json(ended)
    else:
        print_fields({"job": ended.job, "changed": f"{ended.done:,}"})


def revoke(  # noqa: PLR0913 - options
    identity: IdentityArgument,
    rights: Annotated[
        list[str] | None, typer.Argument(metavar="[ROLE|PERMISSION]...", help=f"{_RIGHTS_HELP} Default: all.")
    ] = None,
    *,
    on: On,
    dry_run: DryRun = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Take rights from an identity or group. A handle without an index means all its keys, not its groups.

    An administrator must remain. What the identity can still do, for example through another group, is shown.

    For example:
        perseid namespace add 12345
        perseid user add 12345 ann
        perseid grant 12345/ann editor --on 12345
        perseid revoke 12345/ann editor --on 12345
    """
    where = _parse_on(on)
    who = _parse_identity(identity, where)
    if rights:
        Rights.parse(rights).check(where)
    with open_target(directory, acting_as) as target:
        changed = target.revoke(who, where, rights or (), dry_run=dry_run, note=note)
    _print_changed(changed, json, dry_run=dry_run)


def access(
    on: Annotated[str, typer.Argument(metavar="PREFIX|HANDLE", help="A prefix or a handle.")],
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show who can do what with a prefix or an identifier, and through which value and group.

    For a prefix, the records that a role has no permissions on are counted: each record names its own administrators.

    For example:
        perseid access 102.100.272
        perseid access 102.100.272/D7J1G0DQH --json
    """
    where = _parse_on(on)
    with open_target(directory, acting_as) as target:
        found = target.access(where)
    if json:
        print_json(found)
        return
    for entry in found.entries:
        print_text(_format_entry(entry, max(map(len, AccessRole))))
    if found.truncated:
        print_message("There are more identities, which are not shown.")
    _print_without(found.records)


def _parse_identity(text: str, on: str) -> str:
    """Parse `INDEX:HANDLE`, a handle in any form, or the name of a user of the prefix."""
    try:
        reference = ValueRef.parse(complete_identity(text, on))
        if reference.index:
            Handle.parse(reference.handle)
    except (InvalidData, InvalidName) as problem:
        raise typer.BadParameter(f"{problem}; for example: 300:12345/ann", param_hint="[INDEX:]HANDLE") from problem
    return str(reference) if reference.index else str(parse_handle(reference.handle))


def _parse_on(text: str) -> str:
    return str(parse_handle(text)) if "/" in text else text


def _print_changed(changed: AccessChanged, json: bool, *, dry_run: bool) -> None:
    if json:
        print_json(changed)
        return
    print_text(printable(changed.identity))
    if not changed.changed:
        print_message("Nothing changed." if not dry_run else "Nothing would change.")
    elif dry_run:
        records = ", ".join([*changed.handles, *(["the policy"] if changed.policy else [])])
        print_message(f"Would change: {printable(records)}")
    for entry in changed.remaining:
        print_message(f"Still has: {_format_entry(entry)}")
    _print_without(changed.records)
    if changed.records:
        roles = " ".join([each.role for each in changed.records])
        print_message(f"To add it: perseid grant {quote(changed.identity)} {roles} --on {changed.on} --existing")


def _print_without(records: Iterable[RecordsWithoutGroup]) -> None:
    for each in (each for each in records if each.count):
        number = f"{each.count:,}" if each.complete else f"At least {each.count:,}"
        what = "existing record does" if each.count == 1 and each.complete else "existing records do"
        print_message(f"{number} {what} not name the group {each.group}, which has the role {each.role}.")


def _format_entry(entry: AccessEntry, width: int = 0) -> str:
    through = f"setting {entry.setting}" if entry.setting else f"value {entry.value}"
    groups = [f"group {group}" for group in entry.groups]
    role = (entry.role or ",".join(entry.permissions)).ljust(width)
    return printable("  ".join([role, entry.identity, entry.state, ", ".join([through, *groups])]))


commands: dict[str, Callable[..., None] | typer.Typer] = {
    "user": user_app,
    "grant": grant,
    "revoke": revoke,
    "access": access,
}

"""`perseid namespace`: add namespaces, and show and change their policies."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import typer

from perseid.ledger.errors import LedgerError
from perseid.names.handle import CaseRule
from perseid.names.prefixes import is_derived
from perseid.records.record import ValueRef
from perseid.registry.commands.namespaces import AddNamespace, SetPolicy
from perseid.registry.installation.setup import add_namespace, administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.namespaces import (
    ChangePolicy,
    apply_policy_text,
    changed_keys,
    find_administrators,
    get_policy,
    list_prefixes,
)
from perseid.registry.responses import to_created_namespace, to_namespace, to_policy
from perseid.schema.namespaces import PolicyChanged

from ._commands import Group, register_command
from ._installation import INTERFACE, ActingAs, Directory, OpenInstallation, Prefix, open_installation, parse_value_ref
from ._output import AsJson, print_fields, print_json, print_message
from ._values import printable, read_text
from .installation import Profile, make_policy, parse_party

app = typer.Typer(
    cls=Group,
    help="Add namespaces, and show and change their policies. A namespace is a prefix with its rules.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class Case(StrEnum):
    """Whether uppercase and lowercase letters differ."""

    SENSITIVE = "sensitive"
    INSENSITIVE = "insensitive"


ProfileOption: TypeAlias = Annotated[
    Profile | None, typer.Option("--profile", metavar="|".join(PROFILES), help="The built-in policy to start from.")
]
CreatorOption: TypeAlias = Annotated[
    str | None, typer.Option("--creator", metavar="HANDLE", help="The default creator of identifiers.")
]
PurposeOption: TypeAlias = Annotated[
    str | None, typer.Option("--purpose", metavar="TEXT", help="What the namespace is for.")
]
AdministratorOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--administrator",
        metavar="INDEX:HANDLE",
        help="An administrator of the prefix and its handles; repeatable. Default: the server's administrators.",
    ),
]

_EDITORS: Final = ("VISUAL", "EDITOR")
_DEFAULT_EDITOR: Final = "vi"


@register_command(app, "add")
def add(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    profile: ProfileOption = None,
    case: Annotated[
        Case | None,
        typer.Option(
            "--case", metavar="sensitive|insensitive", help="Whether the case of letters in suffixes matters."
        ),
    ] = None,
    creator: CreatorOption = None,
    purpose: PurposeOption = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="A policy in TOML; - is standard input.")
    ] = None,
    administrator: AdministratorOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add a namespace: host a prefix, with a policy that applies to every interface.

    `perseid namespace policy` changes the policy later; the case rule only with `--change-case`. If the policy requires
    a creator and you name none, a record is created for it. Everything is created in one change.

    For example:
        perseid namespace add 12345
        perseid namespace add 10.5072 --profile pilin --purpose "Maps of the survey, as they were printed"
        perseid namespace add 20.500 --profile exact --json
    """
    rules = _load_policy(profile, case, creator, policy)
    if purpose is not None:
        rules = replace(rules, purpose=purpose)
    with open_installation(directory, acting_as) as session:
        members = [parse_value_ref(text, "--administrator") for text in administrator or ()]
        default = list(session.installation.config.administration.server_admins)
        _create_namespace(session, prefix, rules, members or default, json, require_administrators=bool(members))


@register_command(app, "derive")
def derive(  # noqa: PLR0913 - options
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="A prefix that is hosted here.")],
    child: Annotated[str, typer.Argument(metavar="CHILD", help="The part after the dot: 1 adds PARENT.1.")],
    *,
    profile: ProfileOption = None,
    purpose: PurposeOption = None,
    administrator: AdministratorOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Add a prefix derived from a hosted one. By default it has the parent's policy and administrators.

    This requires permission ADD_NA on the parent prefix, or a server administrator.

    For example:
        perseid namespace derive 2000.01 5
        perseid namespace derive 102.100.272 maps --purpose "Maps of the project" --administrator 300:0.NA/102.100.272
    """
    prefix = child if is_derived(child, parent) else f"{parent}.{child}"
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            rules = get_policy(snapshot, parent) if profile is None else make_policy(profile, None)
            parent_administrators = find_administrators(snapshot, parent)
        rules = rules if purpose is None else replace(rules, purpose=purpose)
        members = [parse_value_ref(text, "--administrator") for text in administrator or ()]
        default = parent_administrators or list(session.installation.config.administration.server_admins)
        _create_namespace(session, prefix, rules, members or default, json, require_administrators=bool(members))


@register_command(app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the namespaces, one prefix on each line.

    For example:
        perseid namespace list
        perseid namespace list --json
    """
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        for prefix in list_prefixes(snapshot, session.identity):
            if json:
                print_json(to_namespace(snapshot, prefix))
            else:
                typer.echo(printable(prefix))


@register_command(app, "show")
def show(prefix: Prefix, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show a summary of a namespace. `perseid namespace policy` shows its whole policy.

    For example:
        perseid namespace show 102.100.272
    """
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        get_policy(snapshot, prefix)
        summary = to_namespace(snapshot, prefix)
    if json:
        print_json(summary)
        return
    fields = msgspec.structs.asdict(summary)
    print_fields({key.replace("_", " "): _format_value(value) for key, value in fields.items()})


@register_command(app, "policy")
def policy(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    edit: Annotated[bool, typer.Option("--edit", help="Change it in your editor ($VISUAL, $EDITOR).")] = False,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Read the changes from a TOML file; - is standard input."),
    ] = None,
    change_case: Annotated[
        bool, typer.Option("--change-case", help="Confirm a change of the case rule, for all existing handles.")
    ] = False,
    note: Annotated[
        str,
        typer.Option("--note", metavar="TEXT", help="The reason; stored with the change, visible to administrators."),
    ] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show the policy of a namespace, or change it.

    A file contains the keys that change. If it names a profile, all other keys come from that profile, except for
    purpose, creator and administrators. A new policy applies to later changes; existing records stay readable. The
    differences are shown line by line.

    The case rule changes only with `--change-case`, for all handles in one change, and only if no two handles become
    equal. When a namespace becomes case-sensitive, a handle is found only in its registered spelling.

    For example:
        perseid namespace policy 102.100.272
        perseid namespace policy 102.100.272 --json
    """
    if edit and file is not None:
        raise typer.BadParameter("use either --edit or --file, not both")
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            before = get_policy(snapshot, prefix)
        if not edit and file is None:
            _print_policy(prefix, before, json)
            return
        if file is None:
            namespace = session.do(SetPolicy(prefix, _edit_policy(before), change_case), note)
        else:
            namespace = session.do(ChangePolicy(prefix, read_text(file), change_case), note).made
    after = namespace.policy
    changes = _format_changes(before, after)
    for line in changes:
        print_message(line)
    if not changes:
        print_message("The policy is unchanged.")
    if json:
        print_json(PolicyChanged(namespace.prefix, namespace.seq, tuple(changed_keys(before, after))))
    else:
        typer.echo(namespace.prefix)


commands: dict[str, Callable[..., None] | typer.Typer] = {"namespace": app}


# Adding


def _load_policy(profile: Profile | None, case: Case | None, creator: str | None, file: str | None) -> Policy:
    if file is None:
        rules = make_policy(profile, creator)
        if case is not None:
            rules = replace(rules, case=CaseRule(case.value))
        return rules
    if profile is not None or case is not None:
        raise typer.BadParameter("--policy cannot be used with --profile or --case; set them in the file")
    rules = with_group_administrators(Policy.from_toml(read_text(file)))
    return rules if creator is None else replace(rules, default_creator=parse_party(creator, "--creator"))


def _create_namespace(
    session: OpenInstallation,
    prefix: str,
    rules: Policy,
    members: list[ValueRef],
    json: bool,
    *,
    require_administrators: bool,
) -> None:
    values = administrator_values(prefix, members) if members else ()
    namespace = add_namespace(
        session.registry, AddNamespace(prefix, rules, values, require_administrators), session.identity, INTERFACE
    )
    if json:
        print_json(to_created_namespace(namespace))
        return
    typer.echo(namespace.prefix)
    if namespace.policy.default_creator and not rules.default_creator:
        print_message(f"The default creator is {namespace.policy.default_creator}. Describe it in its record.")
    if namespace.types_elsewhere:
        print_message(f"Types defined at another service: {', '.join(namespace.types_elsewhere)}")


# Showing


def _format_value(value: object) -> str | None:
    """Format a value of the summary; None if it is empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(printable, value)) or None
    return printable(str(value)) if value else None


def _print_policy(prefix: str, rules: Policy, json: bool) -> None:
    if json:
        print_json(to_policy(prefix, rules))
    else:
        typer.echo(rules.to_toml(), nl=False)


# Changing


def _edit_policy(before: Policy) -> Policy:
    """Open the policy in an editor and return the result; keep an invalid text, so that no work is lost."""
    editor = next((os.environ[name] for name in _EDITORS if os.environ.get(name)), _DEFAULT_EDITOR)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="perseid-policy-", delete=False) as file:
        file.write(before.to_toml())
    path = Path(file.name)
    try:
        done = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the user's own editor
        if done.returncode:
            raise LedgerError(f"the editor {editor} failed with exit code {done.returncode}; nothing was changed")
        after = apply_policy_text(before, path.read_text(encoding="utf-8"))
    except InvalidPolicy as problem:
        message = f"{problem.message}; your text is in {path}: correct it and use --file {path}"
        raise InvalidPolicy(problem.key, message) from problem
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink()
    return after


def _format_changes(before: Policy, after: Policy) -> list[str]:
    return [
        sign + line
        for key in changed_keys(before, after)
        for sign, line in (("- ", before.line(key)), ("+ ", after.line(key)))
    ]

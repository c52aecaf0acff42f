"""`perseid namespace` and `perseid type`: prefixes with their policies, and registered types."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from perseid.names.handle import CaseRule, fold, is_derived
from perseid.records.data_types import Definition
from perseid.records.encoding import parse_json
from perseid.records.record import ValueRef
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace, SetPolicy, namespaces
from perseid.registry.commands.records import Create
from perseid.registry.installation.setup import add_namespace, administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.policy.types import RegisteredType, definition_values
from perseid.registry.queries.listing import list_handles
from perseid.registry.queries.namespaces import (
    RETIRED,
    ChangePolicy,
    apply_policy_text,
    changed_keys,
    find_administrators,
    get_policy,
    get_type,
    list_prefixes,
    list_types,
)
from perseid.registry.queries.paging import MAX_PAGE
from perseid.registry.responses import to_created_namespace, to_namespace, to_policy, to_type
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot
from perseid.schema.namespaces import PolicyChanged, RemovedNamespace

from ._arguments import (
    INTERFACE,
    ActingAs,
    Directory,
    HandleArgument,
    Note,
    OpenInstallation,
    Prefix,
    open_installation,
    parse_handle,
    parse_reference,
    parse_value_ref,
    print_changed,
    print_warnings,
    printable,
    read_text,
)
from ._commands import Group, register_command
from ._editor import find_editor, run_editor
from ._output import AsJson, print_fields, print_json, print_message, require_terminal
from .installation import Profile, make_policy, parse_party

namespace_app = typer.Typer(
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
        help="An administrator of the prefix and its handles; repeatable. Default: the administrators of the parent "
        "prefix, if it has one, else the server's.",
    ),
]


@register_command(namespace_app, "add")
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


@register_command(namespace_app, "derive")
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
        rules = replace(rules, retired=False, purpose=rules.purpose if purpose is None else purpose)
        members = [parse_value_ref(text, "--administrator") for text in administrator or ()]
        default = parent_administrators or list(session.installation.config.administration.server_admins)
        _create_namespace(session, prefix, rules, members or default, json, require_administrators=bool(members))


@register_command(namespace_app, "remove")
def remove(
    prefix: Prefix,
    *,
    retire: Annotated[
        bool, typer.Option("--retire", help="Keep the namespace and its identifiers, but register no new ones.")
    ] = False,
    note: Note = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Remove a namespace in which no identifier was ever registered, or retire one.

    The identifiers of a retired namespace resolve and can be changed as before. To reopen it, set `retired = false`
    with `perseid namespace policy`. A removed namespace is no longer hosted; its prefix handle and the history stay,
    and `perseid namespace add` adds it again.

    For example:
        perseid namespace add 12345.1
        perseid namespace remove 12345.1
        perseid namespace remove 2000.01 --retire --note "The project has ended"
    """
    with open_installation(directory, acting_as) as session:
        if retire:
            seq = session.do(ChangePolicy(prefix, RETIRED), note).made.seq
        else:
            seq = session.do(RemoveNamespace(prefix), note)
    if json:
        print_json(RemovedNamespace(prefix, seq, retire))
    else:
        typer.echo(prefix)


@register_command(namespace_app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the namespaces, one prefix on each line; a retired one is marked.

    For example:
        perseid namespace list
        perseid namespace list --json
    """
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        for prefix in list_prefixes(snapshot, session.identity):
            if json:
                print_json(to_namespace(snapshot, prefix))
            else:
                typer.echo(f"{printable(prefix)}{'  retired' if _is_retired(snapshot, prefix) else ''}")


@register_command(namespace_app, "show")
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


@register_command(namespace_app, "policy")
def policy(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    edit: Annotated[bool, typer.Option("--edit", help="Change it in your editor ($VISUAL, $EDITOR or vi).")] = False,
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
    print_warnings(namespace.warnings)
    if namespace.policy.default_creator and not rules.default_creator:
        print_message(f"The default creator is {namespace.policy.default_creator}. Describe it in its record.")
    if namespace.types_elsewhere:
        print_message(f"Types defined at another service: {', '.join(namespace.types_elsewhere)}")


# Showing


def _is_retired(snapshot: Snapshot, prefix: str) -> bool:
    try:
        return snapshot.policy(prefix).retired
    except Refused:  # the policy is unreadable; `check` says so
        return False


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
    require_terminal("The editor", "To change the policy without one: --file FILE")
    editor = find_editor()
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="perseid-policy-", delete=False) as file:
        file.write(before.to_toml())
    path = Path(file.name)
    try:
        run_editor(editor, path)
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


type_app = typer.Typer(
    cls=Group,
    help="Register, list and show types of values. A type is a handle that resolves to its definition.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@register_command(type_app, "add")
def add_type(  # noqa: PLR0913 - options
    handle: HandleArgument,
    *,
    definition: Annotated[str, typer.Option("--definition", metavar="TEXT", help="What values of the type mean.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="The name of the type. Default: the suffix.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="A regular expression (RE2) that the whole data must match."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE", help="A JSON Schema (2020-12) for data in JSON; - is standard input."),
    ] = None,
    example: Annotated[
        str | None, typer.Option("--example", metavar="DATA", help="An example of the data; it must be valid.")
    ] = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Register a type: create a record with its definition, and print the handle.

    With the policy `registered_types = true`, a namespace accepts only values of registered types; with `validate_types
    = true`, their data must match the pattern or the schema. docs/reference/types.md lists the limits of schemas. To
    change a definition later: `perseid set HANDLE PERSEID_TYPE=@FILE`.

    For example:
        perseid type add 102.100.TYPE/SCALE --definition "A map's scale" --pattern "1:[1-9][0-9]*" --example 1:25000
        perseid type add 102.100.TYPE/SHEET --definition "The sheet of a map" --name Sheet --json
    """
    new_handle = parse_handle(handle, new=True)
    if pattern is not None and schema is not None:
        raise typer.BadParameter("use either --pattern or --schema, not both", param_hint="--pattern")
    plain = None if schema is None else parse_json(read_text(schema))
    parsed = Definition.make(name or new_handle.suffix, definition, pattern=pattern, schema=plain, example=example)
    with open_installation(directory, acting_as) as session:
        print_changed(session.do(Create(new_handle, definition_values(parsed))), json)


@register_command(type_app, "list")
def list_all_types(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only types of this prefix.", show_default=False)
    ] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """List the types that are registered here, one on each line, with their names.

    A type is a record with a value of type `PERSEID_TYPE`. This requires permission to list the handles of a namespace.

    For example:
        perseid type list
        perseid type list 102.100.TYPE --json
    """
    with open_installation(directory, acting_as) as session:
        for registered in map(to_type, _find_types(session, prefix)):
            if json:
                print_json(registered)
            else:
                typer.echo(f"{printable(registered.handle)}  {printable(registered.name)}")


@register_command(type_app, "show")
def show_type(
    handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Show a type: its name, meaning and data format.

    For example:
        perseid type show 102.100.TYPE/CREATION_DATE
        perseid type show 102.100.TYPE/CREATOR --json
    """
    requested = parse_reference(handle).handle
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        registered = get_type(snapshot, requested)
    response = to_type(registered, check=True)
    if json:
        print_json(response)
        return
    fields = msgspec.structs.asdict(response) | {"seq": None, "copy": None}
    if registered.definition is not None:
        fields["schema"] = registered.definition.schema
    print_fields({name: printable(str(text)) for name, text in fields.items() if text})
    if registered.is_copy:
        print_message("This is a copy: another service hosts the type.")


def _find_types(session: OpenInstallation, prefix: str) -> list[RegisteredType]:
    """Find the types of a namespace, or of all that the caller can list."""
    with session.registry.snapshot() as snapshot:
        for each in () if prefix else namespaces(snapshot.reader):
            try:
                list_handles(snapshot, session.identity, each, limit=1)
            except Refused as refused:
                print_message(f"Not listed: {printable(each)}: {refused.reason}")
        found: list[RegisteredType] = []
        after: str | None = None
        while True:
            page, after = list_types(snapshot, session.identity, prefix, after, MAX_PAGE)
            found += page
            if after is None:
                return sorted(found, key=lambda each: fold(str(each.handle)))


commands: dict[str, Callable[..., None] | typer.Typer] = {"namespace": namespace_app, "type": type_app}

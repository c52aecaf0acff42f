"""`perseid namespace` and `perseid type`: prefixes with their policies, and registered types."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import msgspec
import typer

from perseid.names.handle import CaseRule, is_derived
from perseid.records.data_types import Definition
from perseid.records.encoding import parse_json
from perseid.records.record import ref_from_text
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.namespaces import (
    apply_policy_text,
    changed_keys,
    find_administrators,
)
from perseid.schema.namespaces import CreatedNamespace

from ._arguments import (
    ActingAs,
    Directory,
    HandleArgument,
    Note,
    Prefix,
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
from ._output import AsJson, print_fields, print_json, print_message, print_text, require_terminal, to_json
from ._target import LocalTarget, open_target
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
    if policy is not None and (profile is not None or case is not None):
        raise typer.BadParameter("--policy cannot be used with --profile or --case; set them in the file")
    text = "" if policy is None else read_text(policy)
    named_creator = parse_party(creator, "--creator") if creator else ""
    has_creator = bool(named_creator or (text and Policy.from_toml(text).default_creator))
    members = _parse_administrators(administrator)
    with open_target(directory, acting_as) as target:
        created = target.add_namespace(
            prefix,
            profile=profile or "",
            case=None if case is None else CaseRule(case.value),
            creator=named_creator,
            purpose=purpose or "",
            policy=text,
            administrators=members,
        )
    _print_created(created, json, has_new_creator=not has_creator)


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
    members = _parse_administrators(administrator)
    with open_target(directory, acting_as) as target:
        above = Policy.from_stored(target.policy(parent).policy)
        rules = above if profile is None else make_policy(profile, None)
        rules = replace(rules, retired=False, purpose=rules.purpose if purpose is None else purpose)
        if isinstance(target, LocalTarget):
            with target.session.registry.snapshot() as snapshot:  # it knows private ones too
                refs = [ref_from_text(text) for text in members] or find_administrators(snapshot, parent)
            created = target.create_namespace(prefix, rules, refs, require_administrators=bool(members))
        else:
            administrators = members or target.namespace(parent).administrators
            created = target.add_namespace(prefix, policy=rules.to_toml(), administrators=administrators)
    _print_created(created, json, has_new_creator=not rules.default_creator)


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
    with open_target(directory, acting_as) as target:
        removed = target.remove_namespace(prefix, retire=retire, note=note)
    if json:
        print_json(removed)
    else:
        print_text(prefix)


@register_command(namespace_app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the namespaces, one prefix on each line; a retired one is marked.

    For example:
        perseid namespace list
        perseid namespace list --json
    """
    with open_target(directory, acting_as) as target:
        for each in target.namespaces():
            if json:
                print_json(each)
            else:
                print_text(f"{printable(each.prefix)}{'  retired' if each.retired else ''}")


@register_command(namespace_app, "show")
def show(prefix: Prefix, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show a summary of a namespace. `perseid namespace policy` shows its whole policy.

    For example:
        perseid namespace show 102.100.272
    """
    with open_target(directory, acting_as) as target:
        summary = target.namespace(prefix)
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
    with open_target(directory, acting_as) as target:
        shown = target.policy(prefix)
        if not edit and file is None:
            if json:
                print_json(shown)
            else:
                print_text(shown.policy, nl=False)
            return
        before = Policy.from_stored(shown.policy)
        text = _edit_policy(before) if file is None else read_text(file)
        changed = target.change_policy(prefix, text, change_case=change_case, note=note)
        after = Policy.from_stored(target.policy(prefix).policy)
    changes = _format_changes(before, after)
    for line in changes:
        print_message(line)
    if not changes:
        print_message("The policy is unchanged.")
    if json:
        print_json(changed)
    else:
        print_text(changed.prefix)


# Adding


def _parse_administrators(texts: list[str] | None) -> list[str]:
    return [str(parse_value_ref(text, "--administrator")) for text in texts or ()]


def _print_created(created: CreatedNamespace, json: bool, *, has_new_creator: bool) -> None:
    if json:
        print_json(created)
        return
    print_text(created.prefix)
    print_warnings(created.warnings)
    if created.creator and has_new_creator:
        print_message(f"The default creator is {created.creator}. Describe it in its record.")
    if created.external_types:
        print_message(f"Types defined at another service: {', '.join(created.external_types)}")


# Showing


def _format_value(value: object) -> str | None:
    """Format a value of the summary; None if it is empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(printable, value)) or None
    return printable(str(value)) if value else None


# Changing


def _edit_policy(before: Policy) -> str:
    """Open the policy in an editor and return the text; keep an invalid text, so that no work is lost."""
    require_terminal("The editor", "To change the policy without one: --file FILE")
    editor = find_editor()
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="perseid-policy-", delete=False) as file:
        file.write(before.to_toml())
    path = Path(file.name)
    try:
        run_editor(editor, path)
        text = path.read_text(encoding="utf-8")
        apply_policy_text(before, text)
    except InvalidPolicy as problem:
        message = f"{problem.message}; your text is in {path}: correct it and use --file {path}"
        raise InvalidPolicy(problem.key, message) from problem
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink()
    return text


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
    name = name or new_handle.suffix
    Definition.make(name, definition, pattern=pattern, schema=plain, example=example)  # refused without a server
    with open_target(directory, acting_as) as target:
        created = target.add_type(
            str(new_handle), definition, name=name, pattern=pattern, schema=cast(Any, plain), example=example
        )
    print_changed(created, json)


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
    with open_target(directory, acting_as) as target:
        has_types = False
        for registered in target.types(prefix=prefix):
            has_types = True
            if json:
                print_json(registered)
            else:
                print_text(f"{printable(registered.handle)}  {printable(registered.name)}")
    if not has_types:
        print_message("No types are registered here. Common types need no registration: URL, EMAIL, TITLE, DESC.")
        print_message("To register a type of your own: perseid type add --help")


@register_command(type_app, "show")
def show_type(
    handle: HandleArgument, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False
) -> None:
    """Show a type: its name, meaning and data format.

    For example:
        perseid type show 102.100.TYPE/CREATION_DATE
        perseid type show 102.100.TYPE/CREATOR --json
    """
    requested = str(parse_reference(handle).handle)
    with open_target(directory, acting_as) as target:
        response = target.type(requested)
    if json:
        print_json(response)
        return
    fields = msgspec.structs.asdict(response) | {"seq": None, "copy": None}
    if response.schema is not None:
        fields["schema"] = to_json(response.schema)
    print_fields({name: printable(str(text)) for name, text in fields.items() if text})
    if response.copy:
        print_message("This is a copy: another service hosts the type.")


commands: dict[str, Callable[..., None] | typer.Typer] = {"namespace": namespace_app, "type": type_app}

"""`perseid namespace`: make namespaces, and see and change what holds in them."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from perseid.ledger.errors import LedgerError
from perseid.names.characters import fold
from perseid.names.handle import CaseRule
from perseid.records.value import ValueRef
from perseid.registry.commands.namespaces import AddNamespace, Namespace, SetPolicy
from perseid.registry.installation.setup import add_namespace, administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.queries.namespaces import (
    ChangePolicy,
    apply_policy_text,
    changed_keys,
    dump_policy,
    find_administrators,
    get_policy,
    list_prefixes,
    summarize,
)

from ._loading import Group, register_command
from ._output import AsJson, print_fields, print_json, print_message
from ._place import INTERFACE, ActingAs, Directory, OpenInstallation, Prefix, open_installation, parse_value_ref
from ._values import printable, read_text
from .installation import Profile, make_policy, parse_party

app = typer.Typer(
    cls=Group,
    help="Make namespaces, and say what holds in them. A namespace is a prefix with its rules.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


class Case(StrEnum):
    """Whether small and capital letters are told apart."""

    SENSITIVE = "sensitive"
    INSENSITIVE = "insensitive"


ProfileOption: TypeAlias = Annotated[
    Profile | None, typer.Option("--profile", metavar="|".join(PROFILES), help="Which rules to begin with.")
]
CreatorOption: TypeAlias = Annotated[
    str | None, typer.Option("--creator", metavar="HANDLE", help="The creator of identifiers that name none.")
]
PurposeOption: TypeAlias = Annotated[
    str | None, typer.Option("--purpose", metavar="TEXT", help="What the namespace is for, in words that last.")
]
AdministratorOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--administrator",
        metavar="INDEX:HANDLE",
        help="Who administers the prefix and its names; may be repeated. Default: the server's administrators.",
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
        typer.Option("--case", metavar="sensitive|insensitive", help="Whether a and A are two letters in a suffix."),
    ] = None,
    creator: CreatorOption = None,
    purpose: PurposeOption = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="Rules of your own in TOML; - is standard input.")
    ] = None,
    administrator: AdministratorOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Make a namespace: become responsible for a prefix, with rules that hold at every door.

    The case rule is fixed from then on; all else can be changed by `perseid namespace policy`. Where the rules ask for
    a creator and you name none, a record is made for it, which names itself. All of it is made, or nothing.

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
        default = list(session.installation.config.administrators_server)
        _create_namespace(session, prefix, rules, members or default, json, require_administrators=bool(members))


@register_command(app, "derive")
def derive(  # noqa: PLR0913 - options
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="A prefix that is here.")],
    child: Annotated[str, typer.Argument(metavar="CHILD", help="What follows its dot: 1 makes PARENT.1.")],
    *,
    profile: ProfileOption = None,
    purpose: PurposeOption = None,
    administrator: AdministratorOption = None,
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Derive a prefix from one that is here, with the parent's rules and administrators unless you say otherwise.

    It takes the parent's permission to make prefixes (ADD_NA), or a server administrator.

    For example:
        perseid namespace derive 2000.01 5
        perseid namespace derive 102.100.272 maps --purpose "Maps of the project" --administrator 300:0.NA/102.100.272
    """
    prefix = child if fold(child).startswith(f"{fold(parent)}.") else f"{parent}.{child}"
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            rules = get_policy(snapshot, parent) if profile is None else make_policy(profile, None)
            above = find_administrators(snapshot, parent)
        rules = rules if purpose is None else replace(rules, purpose=purpose)
        members = [parse_value_ref(text, "--administrator") for text in administrator or ()]
        default = above or list(session.installation.config.administrators_server)
        _create_namespace(session, prefix, rules, members or default, json, require_administrators=bool(members))


@register_command(app, "list")
def list_(directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """List the namespaces, one prefix a line.

    For example:
        perseid namespace list
        perseid namespace list --json
    """
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        for prefix in list_prefixes(snapshot, session.identity):
            if json:
                print_json(summarize(snapshot, prefix))
            else:
                typer.echo(printable(prefix))


@register_command(app, "show")
def show(prefix: Prefix, directory: Directory = None, acting_as: ActingAs = None, json: AsJson = False) -> None:
    """Show what a namespace is, in a few lines. All its rules: `perseid namespace policy`.

    For example:
        perseid namespace show 102.100.272
    """
    with open_installation(directory, acting_as) as session, session.registry.snapshot() as snapshot:
        get_policy(snapshot, prefix)
        found = summarize(snapshot, prefix)
    if json:
        print_json(found)
        return
    print_fields({key.replace("_", " "): _format_value(value) for key, value in found.items()})


@register_command(app, "policy")
def policy(  # noqa: PLR0913 - options
    prefix: Prefix,
    *,
    edit: Annotated[bool, typer.Option("--edit", help="Change it in your editor ($VISUAL, $EDITOR).")] = False,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Take it from a file in TOML; - is standard input.")
    ] = None,
    change_case: Annotated[
        bool, typer.Option("--change-case", help="The case rule is meant to change, for all names there are.")
    ] = False,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="Why; kept with the change, for administrators.")
    ] = "",
    directory: Directory = None,
    acting_as: ActingAs = None,
    json: AsJson = False,
) -> None:
    """Show all the rules of a namespace as text, or change them.

    A file has the rules that change. If it names a profile, all others are that profile's, but for the purpose, the
    creator and the administrators, which are the namespace's own. New rules hold for changes from then on; nothing that
    exists becomes unreadable. What changes is shown line by line.

    The case rule changes only with `--change-case`, all names with it, as one change; never if two of them became one.
    When letters begin to count, a name is found by the spelling that was registered, and by no other any more.

    For example:
        perseid namespace policy 102.100.272
        perseid namespace policy 102.100.272 --json
    """
    if edit and file is not None:
        raise typer.BadParameter("give either --edit or --file, not both")
    with open_installation(directory, acting_as) as session:
        with session.registry.snapshot() as snapshot:
            before = get_policy(snapshot, prefix)
        if not edit and file is None:
            _print_policy(prefix, before, json)
            return
        if file is None:
            made = session.do(SetPolicy(prefix, _edit_policy(before), change_case), note)
        else:
            made = session.do(ChangePolicy(prefix, read_text(file), change_case), note).made
    after = made.policy
    changes = _format_changes(before, after)
    for line in changes:
        print_message(line)
    if not changes:
        print_message("Nothing differs.")
    if json:
        print_json({"prefix": made.prefix, "seq": made.seq, "changed": changed_keys(before, after)})
    else:
        typer.echo(made.prefix)


commands: dict[str, Callable[..., None] | typer.Typer] = {"namespace": app}


# Making


def _load_policy(profile: Profile | None, case: Case | None, creator: str | None, file: str | None) -> Policy:
    if file is None:
        rules = make_policy(profile, creator)
        if case is not None:
            rules = replace(rules, case=CaseRule(case.value))
        return rules
    if profile is not None or case is not None:
        raise typer.BadParameter("rules of your own name their profile and case themselves; leave those options out")
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
    made = add_namespace(
        session.registry, AddNamespace(prefix, rules, values, require_administrators), session.identity, INTERFACE
    )
    if json:
        elsewhere = list(made.types_elsewhere)
        print_json({**_to_json(made), "typesElsewhere": elsewhere})
        return
    typer.echo(made.prefix)
    if made.policy.default_creator and not rules.default_creator:
        print_message(
            f"The creator of its identifiers is {made.policy.default_creator}; say in its record who that is."
        )
    if made.types_elsewhere:
        print_message(f"Types of values that are defined elsewhere: {', '.join(made.types_elsewhere)}")


def _to_json(made: Namespace) -> dict[str, object]:
    return {
        "prefix": made.prefix,
        "profile": made.policy.profile,
        "creator": made.policy.default_creator or None,
        "seq": made.seq,
    }


# Showing


def _format_value(value: object) -> str | None:
    """A fact of the summary for people; None if there is nothing to say."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(printable, value)) or None
    return printable(str(value)) if value else None


def _print_policy(prefix: str, rules: Policy, json: bool) -> None:
    if json:
        print_json({"prefix": prefix, **dump_policy(rules)})
    else:
        typer.echo(rules.to_toml(), nl=False)


# Changing


def _edit_policy(before: Policy) -> Policy:
    """The policy as somebody left it in their editor. What cannot be taken is kept, so that no work is lost."""
    editor = next((os.environ[name] for name in _EDITORS if os.environ.get(name)), _DEFAULT_EDITOR)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix="perseid-policy-", delete=False) as file:
        file.write(before.to_toml())
    path = Path(file.name)
    try:
        done = subprocess.run([*shlex.split(editor), str(path)], check=False)  # noqa: S603 - the user's own editor
        if done.returncode:
            raise LedgerError(f"the editor {editor} ended with code {done.returncode}; nothing was changed")
        after = apply_policy_text(before, path.read_text(encoding="utf-8"))
    except InvalidPolicy as problem:
        message = f"{problem.message}; your text is in {path}: mend it, and give it with --file"
        raise InvalidPolicy(problem.key, message) from problem
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink()
    return after


def _format_changes(before: Policy, after: Policy) -> list[str]:
    """What is different, as lines of the text."""
    return [
        sign + line
        for key in changed_keys(before, after)
        for sign, line in (("- ", before.line(key)), ("+ ", after.line(key)))
    ]

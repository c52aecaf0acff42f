"""How help looks: a flag shows no type, and an argument stands in the usage as people write it.

Commands that are loaded when they are used; the package's docstring says how a module offers them.

The help of the program and the completion of its words need one line about each command, which stands here.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command; every one is made with this class."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options."""
        return _hide_flag_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line; typer would put a required argument into braces."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class Group(TyperGroup):
    """A group of commands; every one is made with this class."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options."""
        return _hide_flag_types(super().get_params(ctx))


def _hide_flag_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


LAZY_COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Installation": {
        "init": ("installation", "Make an installation: settings, keys, ledger, first administrator."),
        "serve": ("serve", "Answer over the network."),
        "config": ("installation", "Show the settings, and where each comes from."),
        "check": ("backup", "Look for what is wrong with an installation, and say what to do."),
        "upgrade": ("installation", "Bring the ledger's tables to the version of this program."),
        "backup": ("backup", "Copy the ledger into a file, also while others write."),
        "restore": ("backup", "Make an installation from backups, verified."),
        "rebuild": ("backup", "Make the views anew from the ledger."),
        "key": ("backup", "Show and exchange the keys that sign."),
        "token": ("tokens", "Make and revoke tokens with which programs act for you."),
    },
    "Namespaces": {
        "namespace": ("namespaces", "Make namespaces, and say what holds in them."),
        "type": ("types", "Register types of values, and see what they are."),
    },
    "Identifiers": {
        "mint": ("minting", "Make new names, and a record for each."),
        "reserve": ("minting", "Make names for later, which stand for nothing yet."),
        "create": ("records", "Make a record under a name that you chose."),
        "resolve": ("resolve", "Show what a name stands for, or stood for at a time."),
        "set": ("records", "Put values in the place of others, or replace a whole record."),
        "add": ("records", "Add values to a record."),
        "remove": ("records", "Remove values from a record."),
        "delete": ("records", "Delete a record, where the policy allows it."),
        "publish": ("lifecycle", "Let everybody resolve a name."),
        "unpublish": ("lifecycle", "Hide a name from everybody but its administrators."),
        "tombstone": ("lifecycle", "Say that a thing is gone, why, and what replaces it."),
        "link": ("links", "Let two names lead to each other: work and version, thing and metadata."),
        "transfer": ("lifecycle", "Give names to another owner."),
        "redact": ("lifecycle", "Erase a value from the past, for good."),
        "cite": ("citation", "Cite an identifier: as text, link, BibTeX or CSL-JSON."),
        "qr": ("citation", "Draw the QR code of an identifier."),
        "explain": ("explain", "Say whether something would be allowed, and why not."),
    },
    "Finding and history": {
        "find": ("find", "Find names by URL, host, type, value, owner or change."),
        "list": ("records", "List the names of a namespace."),
        "history": ("history", "Show what a name was."),
        "log": ("history", "Show what happened in the whole ledger."),
        "prove": ("history", "Prove what a name is, in a file that anybody can check."),
        "verify": ("verify", "Check a proof, or the whole ledger."),
    },
    "Many at once": {
        "rewrite": ("jobs", "Move what many names lead to: hosts and paths."),
        "undo": ("jobs", "Undo a change of many names."),
        "operations": ("jobs", "Show changes of many names, and go on with them."),
    },
}
"""The commands by the headings of the help: the module that has each, and what it is for in one line."""

EXAMPLES_HEADING: Final = "For example:"
"""The line of a docstring behind which examples stand."""


class LazyCommand(Command):
    """What is known about a command before it is loaded."""

    module: str = ""

    def load(self) -> Any:
        """The command itself."""
        assert self.name is not None  # noqa: S101 - every one in the table has a name
        found = import_module(f".{self.module}", __package__).commands[self.name]
        if isinstance(found, typer.Typer):
            loaded: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            register_command(alone, self.name)(found)
            loaded = typer.main.get_command(alone)
        loaded.name = self.name
        return loaded


class LazyGroup(Group):
    """The program's group of commands: those that it is given, and those of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for panel, commands in LAZY_COMMANDS.items():
            for name, (module, text) in commands.items():
                summary = LazyCommand(name, help=text, rich_help_panel=panel)
                summary.module = module
                self.commands[name] = summary

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that words mean, loaded."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.load() if isinstance(found, LazyCommand) else found, rest


def register_command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, with the examples of its docstring below its options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        text, _, examples = (inspect.getdoc(function) or "").partition(f"\n{EXAMPLES_HEADING}\n")
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        # A paragraph for each, indented so that Markdown takes it as it stands.
        below = "".join(f"\n\n    {line}" for line in lines)
        epilog = f"{'Example' if len(lines) == 1 else 'Examples'}:{below}" if lines else None
        app.command(name, cls=Command, help=text.strip(), epilog=epilog)(function)
        return function

    return register

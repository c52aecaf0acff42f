"""Commands that are imported when they are used, the style of their help, and the directory that they work on.

The help of the program and shell completion need only the names and summaries in `LAZY_COMMANDS`. The docstring of the
package says how a module offers its commands. Every command that takes an identifier gets the options `--resolver` and
`--strict`, which `_arguments.read_name` uses.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from perseid.names.errors import InvalidName, quote_text
from perseid.names.uri import Resolver

from ._output import CommandFailed, Interrupted, check_utf8, print_message

if TYPE_CHECKING:
    from perseid.client import Client

    from ._native import NativeTarget

_UsageError: Final = cast(type[Exception], typer.BadParameter.__base__)  # which typer does not export

DEFAULT_DIRECTORY: Final = "perseid-data"
DIRECTORY_VARIABLE: Final = "PERSEID_DIR"

Directory: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-d",
        "--directory",
        metavar="DIR",
        help=f"The installation. Default: ${DIRECTORY_VARIABLE}, or ./{DEFAULT_DIRECTORY}.",
    ),
]
"""The option of every command that works on an installation."""


def default_directory() -> Path:
    """Return the directory from the environment, or the default."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def resolve_directory(directory: Path | None) -> Path:
    """Return the directory from the option, the environment or the default, in this order."""
    if directory is not None:
        return directory
    chosen = default_directory()
    if (remote := os.environ.get(REMOTE_VARIABLE)) and REMOTE.get() is None:
        _report_local(chosen, remote)
    return chosen


@cache
def _report_local(directory: Path, remote: str) -> None:
    """Say once that a command works here, and not on the server that other commands work on."""
    print_message(f"perseid: This command ignores {REMOTE_VARIABLE}={remote} and works on {directory.resolve()}")


def find_own_resolvers(text: str, directory: Path | None = None) -> tuple[Resolver, ...]:
    """Return the resolvers of the installation (`http.public_url`), if there is one and the text may be a URL."""
    if "://" not in text:
        return ()
    from perseid.registry.installation.settings import Config  # noqa: PLC0415 - few commands on names need it

    return Config.load(directory or default_directory(), os.environ).http.resolvers


def parse_resolver(text: str) -> Resolver:
    """Parse the resolver of an option."""
    try:
        return Resolver.parse(text)
    except InvalidName as problem:
        raise typer.BadParameter(problem.message) from problem


ResolversOption: TypeAlias = Annotated[
    list[Resolver] | None,
    typer.Option(
        "--resolver",
        metavar="URL",
        parser=parse_resolver,
        help="Also accept URLs of this resolver, as in `http://example.org/hdl`; repeatable.",
    ),
]
StrictOption: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Accept identifiers only as exact `hdl:` URIs or resolver URLs.")
]

IDENTIFIERS: Final = frozenset(("HANDLE", "RESOURCE", "WORK"))
"""The names, in the help, of arguments and options that take an identifier in any form."""

STORED_TEXTS: Final = IDENTIFIERS | {"DATA", "INDEX:HANDLE", "PATTERN", "PREFIX", "TEXT", "TYPE", "URL"}
"""The names of those that take an identifier or a part of a record, which are UTF-8 (H4)."""


@dataclass(frozen=True, slots=True)
class NameOptions:
    """How a command reads identifiers."""

    resolvers: tuple[Resolver, ...] = ()
    strict: bool = False
    directory: Path | None = None


REMOTE: Final["ContextVar[Callable[[], Client] | None]"] = ContextVar("REMOTE", default=None)
"""How to connect to the server that a command works on; None for an installation. It refuses a native server."""

NATIVE: Final["ContextVar[Callable[[], NativeTarget] | None]"] = ContextVar("NATIVE", default=None)
"""How to connect to a server of the native protocol; None for any other. Commands that support it look here first."""

NAME_OPTIONS: Final = ContextVar("NAME_OPTIONS", default=NameOptions())  # noqa: B039 - it is immutable


REMOTE_VARIABLE: Final = "PERSEID_REMOTE"

ServerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="SERVER",
        help="Work on this server, not on an installation: https://HOST, or HOST[:PORT] of the native protocol.",
    ),
]
RemoteOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--remote", metavar="NAME", help=f"Work on a saved server: see `login`. Default: ${REMOTE_VARIABLE}."),
]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="With --server: a file with your token.")
]
SecretFile: TypeAlias = Annotated[
    Path | None, typer.Option("--secret-file", metavar="FILE", help="With --server and --as: a file with the secret.")
]
KeyFile: TypeAlias = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="With --server and --as: the private key.")
]
CaFile: TypeAlias = Annotated[
    Path | None, typer.Option("--ca-file", metavar="FILE", help="With --server: certificates to trust, in PEM.")
]
Fingerprint: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        metavar="SHA256",
        help="With --server: its certificate, or its key in the native protocol, as its operator tells you.",
    ),
]


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reading identifiers to a command that takes one, and for servers to one that has `--as`."""
    signature = inspect.signature(function)
    added: dict[str, tuple[Any, Any]] = {}
    if "acting_as" in signature.parameters and "directory" in signature.parameters:
        kinds = (ServerOption, RemoteOption, TokenFile, SecretFile, KeyFile, CaFile, Fingerprint)
        added = dict(zip(_REMOTE_OPTIONS, ((kind, None) for kind in kinds), strict=True))
    if takes_identifier := any(map(_takes_identifier, signature.parameters.values())):
        added |= {"resolver": (ResolversOption, None), "strict": (StrictOption, False)}
        # Some commands have a resolver of their own, which they read as well.
        added = {name: option for name, option in added.items() if name not in signature.parameters}
    if not added:
        return function

    @wraps(function)
    def run(**arguments: Any) -> None:
        with ExitStack() as stack:
            if takes_identifier:
                own = {name: arguments[name] for name in ("resolver", "strict")}
                resolvers = own["resolver"] or ()
                resolvers = (resolvers,) if isinstance(resolvers, Resolver) else tuple(resolvers)
                name_options = NameOptions(resolvers, own["strict"], arguments.get("directory"))
                stack.callback(NAME_OPTIONS.reset, NAME_OPTIONS.set(name_options))
            if "server" in added and (connection := _choose_server(**arguments)) is not None:
                connect, connect_native = connection
                stack.callback(REMOTE.reset, REMOTE.set(connect))
                stack.callback(NATIVE.reset, NATIVE.set(connect_native))
            function(**{name: value for name, value in arguments.items() if name not in added})

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in added.items()
    ]
    run.__annotations__ = function.__annotations__ | {name: annotation for name, (annotation, _) in added.items()}
    run.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *options])
    return run


_REMOTE_OPTIONS: Final = ("server", "remote", "token_file", "secret_file", "key_file", "ca_file", "fingerprint")


def _choose_server(  # noqa: PLR0913 - options
    *,
    server: str | None,
    remote: str | None,
    token_file: Path | None,
    secret_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
    fingerprint: str | None,
    acting_as: str | None,
    directory: Path | None,
    **_: Any,
) -> "tuple[Callable[[], Client], Callable[[], NativeTarget] | None] | None":
    """How to connect to the server of the options, over HTTP and natively; None to work on an installation."""
    if remote is None and server is None and directory is None:
        remote = os.environ.get(REMOTE_VARIABLE) or None
    if sum(option is not None for option in (server, remote, directory)) > 1:
        raise typer.BadParameter("use only one of --server, --remote and --directory")
    if server is None:
        given = (token_file, secret_file, key_file, ca_file, fingerprint)
        for name, value in zip(_REMOTE_OPTIONS[2:], given, strict=True):
            if value is not None:
                raise typer.BadParameter("requires --server", param_hint=f"--{name.replace('_', '-')}")
    if server is None and remote is None:
        return None
    if remote is not None and acting_as is not None:
        raise typer.BadParameter("cannot be used with a saved server, which has an identity", param_hint="--as")
    module = import_module(".remote", __package__)
    if remote is not None:
        chosen = module.load(remote)
    else:
        chosen = module.read_options(server, acting_as, token_file, secret_file, key_file, ca_file, fingerprint)
    return partial(module.connect, chosen), partial(module.connect_native, chosen) if chosen.is_native else None


def _takes_identifier(parameter: inspect.Parameter) -> bool:
    infos = getattr(parameter.annotation, "__metadata__", ())
    return any(IDENTIFIERS & _get_words(getattr(info, "metavar", None)) for info in infos)


def _get_words(metavar: str | None) -> set[str]:
    return set(re.findall("[A-Z:]+", metavar or ""))


class Command(TyperCommand):
    """A command with short help, which converts its arguments itself."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        super().__init__(name, **attributes | {"rich_markup_mode": None})

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as in click
        _write_text(formatter, self.help)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as in click
        _write_examples(formatter, self.epilog)

    def get_params(self, ctx: Any) -> list[Any]:
        return _simplify(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # typer puts required arguments into braces, and adds brackets and dots to names that have them already.
        pieces = [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]
        pieces = [re.sub(r"^\[(\[.*\](\.\.\.|…)?)\](\.\.\.)?$", r"\1", piece) for piece in pieces]
        return [re.sub(r"\.\.\.(\]?)\.\.\.$", r"...\1", piece) for piece in pieces]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {option for param in self.params for option in param.opts}
        if "--directory" in known and "--server" not in known:
            for option in {arg.partition("=")[0] for arg in args} & {"--server", "--remote"}:
                raise typer.BadParameter("this command works on an installation only: use -d DIR", param_hint=option)
        rest: list[str] = super().parse_args(ctx, args)
        for param in self.params:
            found = ctx.params.get(param.name)
            for text in (found if isinstance(found, list | tuple) else (found,)) if _is_stored(param) else ():
                if isinstance(text, str):
                    check_utf8(text.partition("=@")[0], param.metavar)  # a file name can be any bytes
        return rest


def _is_stored(param: Any) -> bool:
    return bool(STORED_TEXTS & _get_words(param.metavar))


class _Converter:
    """Converts an argument. Typer would load pydantic for it, which takes as long as everything else."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the annotation of the parameter says."""
        is_multiple = param.multiple or param.nargs == -1
        if value is None:
            return () if is_multiple else None
        try:
            if is_multiple:
                return [self._convert(each, param.type_descriptor) for each in value]
            return self._convert(value, param.type_descriptor)
        except ValueError as problem:
            raise typer.BadParameter(str(problem), ctx=ctx, param=param) from problem

    @staticmethod
    def _convert(value: Any, descriptor: Any) -> Any:
        info, kind = descriptor.parameter_info, descriptor.annotation
        if info.parser is not None:
            return info.parser(value)
        kind = (get_args(kind) or (kind,))[0]  # of a list
        if kind is int:
            return _parse_number(value, info.min, info.max)
        if issubclass(kind, Enum) and value not in (choices := [each.value for each in kind]):
            raise ValueError(f"{value!r} is not one of {', '.join(map(repr, choices))}.")
        return kind(value)


def _parse_number(value: Any, least: int | None, most: int | None) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{quote_text(value)} is not a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{quote_text(str(value))} is less than {least}")
    if most is not None and number > most:
        raise ValueError(f"{quote_text(str(value))} is more than {most}")
    return number


_TYPO: Final = 0.85  # similarity of a word with one or two wrong letters; other matches are guesses


class Group(TyperGroup):
    """A group of commands with short help, which suggests commands for an unknown word."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"suggest_commands": False, "rich_markup_mode": None})  # see `suggest`

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as in click
        _write_text(formatter, self.help)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, with whole summaries."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            summary = (command.help or "").partition("\n\n")[0]
            panels.setdefault(heading, []).append((name, _strip_markup(summary)))
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as in click
        _write_text(formatter, self.epilog)

    def get_params(self, ctx: Any) -> list[Any]:
        return _simplify(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _UsageError as error:
            vars(error)["possibilities"] = [f"{ctx.command_path} {words}" for words in self.suggest(args[0])]
            raise

    def suggest(self, word: str) -> list[str]:
        """Return the commands that an unknown word may mean: synonyms, or else similar ones."""
        synonyms = [words for words in SYNONYMS.get(word, ()) if words.split()[0] in self.commands]
        close = get_close_matches(word, self.commands, cutoff=_TYPO) or get_close_matches(word, self.commands)
        return synonyms or close


def _write_text(formatter: Any, text: str | None) -> None:
    if text:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_strip_markup(text))


def _write_examples(formatter: Any, text: str | None) -> None:
    """Write the heading of the examples, and each on one line, as it can be copied."""
    heading, *examples = _strip_markup(text or "").split("\n\n")
    if examples:
        with formatter.section(heading.rstrip(":")):
            for example in examples:
                formatter.write(f"{' ' * formatter.current_indent}{example.strip()}\n")


def _strip_markup(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def _simplify(params: list[Any]) -> list[Any]:
    """Show no type for flags and no markup, and convert without pydantic."""
    for param in params:
        vars(param)["_runtime_param"] = _Converter()
        if param.help:
            param.help = _strip_markup(param.help)
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


LAZY_COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Names (no installation needed)": {
        "name": ("names", "Parse and convert handles, and explain the rules."),
        "suffix": ("names", "Generate and decode suffixes; nothing is registered."),
    },
    "Installation and service": {
        "init": ("installation", "Create an installation: settings, keys, ledger, first administrator."),
        "serve": ("serve", "Run the server."),
        "config": ("installation", "Show the settings and the source of each."),
        "check": ("check", "Check an installation and show how to fix problems."),
        "upgrade": ("installation", "Upgrade the ledger's tables to the version of this program."),
        "backup": ("backup", "Back up the ledger to a file, also while it is in use."),
        "restore": ("backup", "Create an installation from verified backups."),
        "rebuild": ("backup", "Rebuild the views from the ledger."),
        "node": ("nodes", "Add nodes that serve the same installation."),
        "read-only": ("nodes", "Refuse all changes during maintenance; resolution continues."),
        "site": ("sites", "Divide the handles among several servers."),
        "key": ("keys", "List and rotate the signing keys; generate keys for users."),
    },
    "Access": {
        "login": ("remote", "Save a server and your credentials for it."),
        "logout": ("remote", "Remove a saved server and its credentials."),
        "whoami": ("remote", "Show where you work, and as whom."),
        "user": ("access", "Add, list, disable and reset users."),
        "grant": ("access", "Give an identity rights on a prefix or a record."),
        "revoke": ("access", "Take rights from an identity."),
        "access": ("access", "Show who can do what, and why."),
        "token": ("tokens", "Create, list and revoke access tokens for programs."),
    },
    "Namespaces and types": {
        "namespace": ("namespaces", "Add, show and remove namespaces, and change their policies."),
        "type": ("namespaces", "Register and show types of values."),
    },
    "Identifiers": {
        "mint": ("minting", "Mint new identifiers and create a record for each."),
        "reserve": ("minting", "Reserve identifiers for later use."),
        "create": ("records", "Create a record under a handle that you choose."),
        "resolve": ("queries", "Show the record of a handle, now or at a time."),
        "set": ("records", "Set values of a record, or replace the whole record."),
        "edit": ("edit", "Change a record in your editor."),
        "add": ("records", "Add values to a record."),
        "remove": ("records", "Remove values from a record."),
        "delete": ("records", "Delete a record, if the policy allows it."),
        "publish": ("lifecycle", "Publish an identifier."),
        "unpublish": ("lifecycle", "Hide an identifier from all but its administrators."),
        "tombstone": ("lifecycle", "Replace a record with a tombstone: the reason and a replacement."),
        "link": ("lifecycle", "Link two identifiers: work and version, resource and metadata."),
        "transfer": ("lifecycle", "Transfer identifiers to another owner."),
        "redact": ("lifecycle", "Permanently erase a value from the history."),
        "cite": ("queries", "Cite an identifier: as text, link, BibTeX or CSL-JSON."),
        "qr": ("queries", "Draw the QR code of an identifier."),
        "explain": ("explain", "Explain whether a command would be allowed."),
    },
    "Search and history": {
        "find": ("queries", "Find identifiers by URL, host, type, value, owner or change."),
        "list": ("records", "List the handles of a namespace."),
        "history": ("history", "Show the earlier versions of a record."),
        "diff": ("history", "Show the differences of a record between two times."),
        "log": ("history", "Show the entries of the ledger."),
        "statistics": ("statistics", "Show requests and changes by day, hour or namespace."),
        "prove": ("history", "Write a proof of a record that anyone can verify."),
        "verify": ("verify", "Verify a proof or the whole ledger."),
    },
    "Bulk": {
        "import": ("imports", "Create the records of a table, JSON lines or a batch file."),
        "export": ("export", "Export records as JSON lines, CSV or a batch file."),
        "rewrite": ("jobs", "Change the URLs of many records."),
        "undo": ("jobs", "Undo a job; short for perseid jobs undo."),
        "jobs": ("jobs", "List, show, cancel, resume and undo changes to many records."),
        "migrate": ("migrate", "Move from a Handle server: copy, follow and compare its records."),
    },
    "Measuring": {
        "bench": ("bench", "Measure how fast Perseid is on this machine."),
    },
}
"""The commands by the headings of the help: the module of each, and its summary."""

SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "benchmark": ("bench",),
    "cat": ("resolve", "show"),
    "abort": ("cancel",),
    "allow": ("grant",),
    "change": ("set", "policy"),
    "del": ("delete", "remove", "revoke"),
    "delete": ("remove", "revoke"),
    "doctor": ("check",),
    "dump": ("backup",),
    "generate": ("mint",),
    "get": ("resolve", "show"),
    "hide": ("unpublish",),
    "info": ("resolve", "show"),
    "load": ("import",),
    "lookup": ("resolve",),
    "ls": ("list",),
    "modify": ("set", "policy"),
    "move": ("rewrite", "transfer"),
    "new": ("mint", "create", "add"),
    "create": ("add",),
    "parse": ("name parse",),
    "permissions": ("access",),
    "policy": ("namespace policy",),
    "prefix": ("namespace",),
    "query": ("find",),
    "read": ("resolve", "show"),
    "register": ("create", "mint"),
    "revert": ("undo",),
    "rm": ("delete", "remove", "revoke"),
    "rollback": ("undo",),
    "run": ("serve",),
    "search": ("find",),
    "settings": ("config",),
    "show": ("resolve",),
    "start": ("serve",),
    "status": ("check", "show"),
    "stop": ("cancel",),
    "update": ("set", "policy"),
    "withdraw": ("tombstone",),
}
"""What users of other programs type, and the commands that do it; a group suggests those that it has."""

EXAMPLES_HEADING: Final = "For example:"
"""The line of a docstring that the examples follow."""


class LazyCommand(Command):
    """The name and summary of a command that is not loaded yet."""

    module: str = ""

    def load(self) -> Any:
        """Import the command."""
        assert self.name is not None  # noqa: S101 - all commands of the table have a name
        command = import_module(f".{self.module}", __package__).commands[self.name]
        if isinstance(command, typer.Typer):
            loaded: Any = typer.main.get_group(command)
        else:
            app = typer.Typer(add_completion=False)
            register_command(app, self.name)(command)
            loaded = typer.main.get_command(app)
        loaded.name = self.name
        return loaded


class LazyGroup(Group):
    """The program's commands: those registered on it, and those of `LAZY_COMMANDS`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for panel, commands in LAZY_COMMANDS.items():
            for name, (module, text) in commands.items():
                summary = LazyCommand(name, help=text, rich_help_panel=panel)
                summary.module = module
                self.commands[name] = summary

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run the program. Wrong usage is reported like every other error; `help COMMAND` is `COMMAND --help`."""
        arguments = sys.argv[1:] if args is None else list(args)
        if arguments[:1] == ["--json"] and len(arguments) > 1:  # an option of every command
            end = arguments.index("--") if "--" in arguments else len(arguments)
            arguments = [*arguments[1:end], "--json", *arguments[end:]]
        if arguments[:1] == ["help"]:
            arguments = [*arguments[1:], "--help"]
        if not standalone_mode:
            return super().main(arguments, standalone_mode=False, **extra)
        try:
            code = super().main(arguments, standalone_mode=False, **extra)
        except _UsageError as error:
            code = import_module("._errors", __package__).report_usage_error(error, json="--json" in arguments)
        except typer.Abort as error:
            raise CommandFailed("Aborted") from error
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Ctrl-C is an error with a report; notes say how to resume."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            interrupted = Interrupted("Interrupted")
            for note in getattr(error, "__notes__", ()):
                interrupted.add_note(note)
            raise interrupted from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


def register_command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, with the examples of its docstring below its options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        text, _, examples = (inspect.getdoc(function) or "").partition(f"\n{EXAMPLES_HEADING}\n")
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        block = "".join(f"\n\n{line}" for line in lines)
        epilog = f"{'Example' if len(lines) == 1 else 'Examples'}:{block}" if lines else None
        app.command(name, cls=Command, help=text.strip(), epilog=epilog)(_with_options(function))
        return function

    return register

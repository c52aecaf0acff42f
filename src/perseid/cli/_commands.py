"""Commands that are imported when they are used, how their arguments are converted, and the style of their help.

The docstring of the package says how a module offers its commands.
"""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Final, cast, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from perseid.names.errors import quote_text

from ._command_table import LAZY_COMMANDS, SYNONYMS
from ._common_options import add_common_options, is_stored_text
from ._output import CommandFailed, Interrupted, check_utf8

_UsageError: Final = cast(type[Exception], typer.BadParameter.__base__)  # which typer does not export


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
            found = ctx.params.get(param.name) if is_stored_text(param.metavar) else None
            for text in found if isinstance(found, list | tuple) else (found,):
                if isinstance(text, str):
                    check_utf8(text.partition("=@")[0], param.metavar)  # a file name can be any bytes
        return rest


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


EXAMPLES_HEADING: Final = "For example:"
"""The line of a docstring that the examples follow."""


class LazyCommand(Command):
    """The name and summary of a command that is not loaded yet."""

    module: str = ""

    def load(self) -> Any:
        """Import the command."""
        assert self.name is not None  # noqa: S101 - all commands of the table have a name
        return _load_command(self.module, self.name)


@cache
def _load_command(module: str, name: str) -> Any:
    """Import a command; once, because a process, such as that of tests, may run it many times."""
    command = import_module(f".{module}", __package__).commands[name]
    if isinstance(command, typer.Typer):
        loaded: Any = typer.main.get_group(command)
    else:
        app = typer.Typer(add_completion=False)
        register_command(app, name)(command)
        loaded = typer.main.get_command(app)
    loaded.name = name
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
        app.command(name, cls=Command, help=text.strip(), epilog=epilog)(add_common_options(function))
        return function

    return register

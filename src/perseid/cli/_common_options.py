"""Options that many commands have: the directory, the server, and how identifiers are read.

A command that takes an identifier gets `--resolver` and `--strict`, which `_arguments.read_name` uses; one with `--as`
and a directory gets `--server` and those that belong to it. The function of a command has no parameters for these
options: they set `NAME_OPTIONS`, `REMOTE` and `NATIVE` while it runs.
"""

import inspect
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from perseid.names.errors import InvalidName
from perseid.names.uri import Resolver

from ._output import print_message

if TYPE_CHECKING:
    from perseid.client import Client

    from ._native import NativeTarget

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


def format_directory_option(directory: Path) -> str:
    """Return the end of a command that works on a directory: ` -d DIR`, or nothing if it is the default."""
    return "" if directory.resolve() == default_directory().resolve() else f" -d {shlex.quote(str(directory))}"


def program() -> str:
    """How to run this program in a shell: its path if it is not found under its name."""
    is_path = Path(sys.argv[0]).name == "perseid" and shutil.which("perseid") is None
    return shlex.quote(sys.argv[0]) if is_path else "perseid"


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


def add_common_options(function: Callable[..., None]) -> Callable[..., None]:
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


def is_stored_text(metavar: str | None) -> bool:
    """Whether an argument is an identifier or a part of a record, by its name in the help."""
    return bool(STORED_TEXTS & _get_words(metavar))


def _takes_identifier(parameter: inspect.Parameter) -> bool:
    infos = getattr(parameter.annotation, "__metadata__", ())
    return any(IDENTIFIERS & _get_words(getattr(info, "metavar", None)) for info in infos)


def _get_words(metavar: str | None) -> set[str]:
    return set(re.findall("[A-Z:]+", metavar or ""))

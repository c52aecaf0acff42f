"""Commands about an installation as a whole: `init`, `config`, `upgrade`."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from os import environ
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.names.uri import parse_user_input
from perseid.records.value import ValueRef
from perseid.registry.commands.namespaces import AddNamespace, Namespace, check_prefix
from perseid.registry.installation import installation as installations
from perseid.registry.installation.installation import (
    ANSWERS_NAME,
    KEYS_NAME,
    LEDGER_NAME,
    Installation,
    NoInstallation,
)
from perseid.registry.installation.settings import FILE_NAME, Config
from perseid.registry.installation.setup import (
    add_namespace,
    administrator_key,
    administrator_values,
    create_demonstration,
    create_root,
    new_secret,
    with_group_administrators,
)
from perseid.registry.installation.site import SITE_NAMES
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import format_toml
from perseid.registry.registry import Registry

from ._output import AsJson, print_fields, print_json, print_message
from ._place import INTERFACE, Directory, directory_of, get_identity, open_registry
from ._values import printable


class Profile(StrEnum):
    """The built-in policies."""

    PILIN = "pilin"
    CORDRA = "cordra"
    FREE = "free"
    EXACT = "exact"


class Root(StrEnum):
    """Where prefixes come from."""

    SELF = "self"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class _InitOptions:
    """What a new installation shall have."""

    root: Root
    prefix: str | None
    policy: Policy
    demo: bool

    @property
    def administrator(self) -> ValueRef | None:
        """The first administrator: of the namespace, or of the root; of neither where another service has both."""
        if self.prefix is None and self.root is Root.GLOBAL:
            return None
        return administrator_key(self.prefix or PREFIX_OF_PREFIXES)


@dataclass(frozen=True, slots=True)
class _InitResult:
    """What came of it."""

    namespace: Namespace | None = None
    demo: tuple[Handle, ...] = ()


def init(  # noqa: PLR0913 - options
    place: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A directory that is not there yet, or empty.")
    ] = None,
    *,
    prefix: Annotated[str | None, typer.Option(metavar="PREFIX", help="Also make this namespace.")] = None,
    profile: Annotated[
        Profile | None, typer.Option(metavar="|".join(PROFILES), help="The policy of the namespace; free if not given.")
    ] = None,
    creator: Annotated[
        str | None, typer.Option(metavar="HANDLE", help="The creator of identifiers that name none.")
    ] = None,
    root: Annotated[
        Root, typer.Option(metavar="self|global", help="Whether the prefixes are your own, or the global system's.")
    ] = Root.SELF,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also make the namespaces of the seed documents, with their identifiers.")
    ] = False,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Make an installation: settings, keys, site information, ledger, first administrator; a namespace if you name one.

    The secret of the first administrator is shown once: with it they work over the network. Whoever may write the
    directory needs none. Where the policy asks for a creator and you name none, a record is made for it.

    For example:
        perseid init names --prefix 12345
        perseid init archive --prefix 10.5072 --profile pilin
        perseid init trial --demo --json
    """
    if place is not None and directory is not None:
        raise typer.BadParameter("name the directory once, either way", param_hint="DIR")
    target = directory_of(place or directory).resolve()
    options = _InitOptions(root, _check_prefix(prefix, profile, creator), make_policy(profile, creator), demo)
    secret = None if options.administrator is None else new_secret()
    settings: dict[str, object] = {} if root is Root.SELF else {"root": root.value}
    if options.administrator is not None:
        settings["administrators.server"] = [str(options.administrator)]
    with _cleanup_on_failure(target):
        installations.create(target, settings=settings)
        with Installation.open(target) as opened:
            result = _populate(open_registry(opened), options, secret)
    _print_result(target, options, result, secret, json)


def config(directory: Directory = None, json: AsJson = False) -> None:
    """Show the settings that are in force, and where each comes from: default, file or variable.

    For example:
        perseid config
        perseid config --json
    """
    target = directory_of(directory).resolve()
    if not (target / FILE_NAME).is_file():
        raise NoInstallation(target)
    found = Config.load(target, environ)
    if json:
        settings = [
            {"name": each.name, "value": each.value, "source": each.source, "unit": each.unit, "about": each.about}
            for each in found.show()
        ]
        print_json({"directory": str(target), "settings": settings, "remarks": list(found.remarks)})
        return
    print_fields({each.name: f"{printable(format_toml(each.value))}  ({each.source})" for each in found.show()})
    for remark in found.remarks:
        print_message(f"perseid: {remark}")


def upgrade(directory: Directory = None, json: AsJson = False) -> None:
    """Bring the ledger's tables to the version of this program. Make a backup first; entries are never rewritten.

    For example:
        perseid upgrade
    """
    target = directory_of(directory)
    done = installations.upgrade(target)
    if json:
        print_json({"directory": str(target.resolve()), "upgraded": done, "tables": installations.TABLES_VERSION})
    else:
        typer.echo(f"{'upgraded' if done else 'nothing to do'}: tables of version {installations.TABLES_VERSION}")


commands: dict[str, Callable[..., None] | typer.Typer] = {"init": init, "config": config, "upgrade": upgrade}

_INSTALLATION_FILES: Final = (
    *(FILE_NAME, KEYS_NAME, *SITE_NAMES, ANSWERS_NAME),
    *(LEDGER_NAME, f"{LEDGER_NAME}-wal", f"{LEDGER_NAME}-shm"),
)


def make_policy(profile: Profile | None, creator: str | None) -> Policy:
    """The policy of a profile, with a creator; new records are administered by the namespace's group."""
    policy = with_group_administrators(PROFILES[Profile.FREE if profile is None else profile])
    return policy if creator is None else replace(policy, default_creator=parse_party(creator, "--creator"))


def parse_party(text: str, option: str) -> str:
    """A handle in any form, as records hold it."""
    found = parse_user_input(text)
    if found.tail:
        raise typer.BadParameter("a party is a handle without query and fragment", param_hint=option)
    return str(found.handle)


def _check_prefix(prefix: str | None, profile: Profile | None, creator: str | None) -> str | None:
    """The prefix, if there can be such a namespace."""
    if prefix is None:
        if profile is not None or creator is not None:
            raise typer.BadParameter("--profile and --creator are about a namespace; name it with --prefix")
        return None
    check_prefix(prefix)
    return prefix


def _populate(registry: Registry, options: _InitOptions, secret: str | None) -> _InitResult:
    """Put into a new installation what it shall have."""
    identity = get_identity(None)
    is_root = options.root is Root.SELF
    if is_root:
        create_root(registry, identity, INTERFACE, None if options.prefix else secret)
    result = _InitResult()
    administrator = options.administrator
    members = () if administrator is None else (administrator,)
    if options.prefix is not None:
        order = AddNamespace(options.prefix, options.policy, administrator_values(options.prefix, members, secret))
        result = replace(result, namespace=add_namespace(registry, order, identity, INTERFACE))
    if options.demo:
        result = replace(result, demo=create_demonstration(registry, identity, INTERFACE, members))
    return result


def _print_result(target: Path, options: _InitOptions, result: _InitResult, secret: str | None, json: bool) -> None:
    namespace = result.namespace
    administrator = None if options.administrator is None else str(options.administrator)
    creator = None if namespace is None else namespace.policy.default_creator or None
    if json:
        print_json(
            {
                "directory": str(target),
                "root": options.root.value,
                "prefix": options.prefix,
                "profile": None if namespace is None else namespace.policy.profile,
                "creator": creator,
                "administrator": administrator,
                "secret": secret,
                "demo": [str(name) for name in result.demo],
            }
        )
        return
    profile = None if namespace is None else f"{namespace.prefix} ({namespace.policy.profile})"
    demo = f"{len(result.demo)} identifiers of the seed documents" if result.demo else None
    print_fields({"installation": printable(str(target)), "namespace": profile, "creator": creator, "demo": demo})
    if secret is not None:
        print_message(f"The first administrator is {administrator}, and this is the secret:")
        print_message(f"    {secret}")
        print_message(
            "It is shown once: keep it where you keep passwords. With it they administer names over the network; on"
        )
        print_message("this machine whoever may write the directory needs none.")
    else:
        print_message("Nobody can administer names over the network yet: their prefix handles are another service's.")
    if namespace is not None and namespace.types_elsewhere:
        print_message(f"Types of values that are defined elsewhere: {', '.join(namespace.types_elsewhere)}")


@contextmanager
def _cleanup_on_failure(target: Path) -> Iterator[None]:
    """Take away what was made of an installation, should the rest of it fail; what was there before is not touched."""
    had_directory = target.exists()
    had = any((target / name).exists() for name in _INSTALLATION_FILES)
    try:
        yield
    except BaseException:
        # A ledger in a database stays, and its key with it; nobody else has a copy of that.
        if not had and (target / LEDGER_NAME).exists():
            for path in (target / name for name in _INSTALLATION_FILES):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            if not had_directory:
                target.rmdir()
        raise

"""Commands about an installation as a whole: `init`, `config`, `upgrade`."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.record import ValueRef
from perseid.registry.commands.namespaces import AddNamespace, Namespace, check_new_prefix
from perseid.registry.commands.users import new_secret
from perseid.registry.installation import installation as installations
from perseid.registry.installation.installation import (
    ANSWERS_NAME,
    KEYS_NAME,
    LEDGER_NAME,
    Installation,
    NoInstallation,
)
from perseid.registry.installation.settings import FILE_NAME, Config, variable_name
from perseid.registry.installation.setup import (
    add_namespace,
    administrator_key,
    administrator_values,
    create_demonstration,
    create_root,
    with_group_administrators,
)
from perseid.registry.installation.site import SITE_NAMES
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import format_toml
from perseid.registry.registry import Registry
from perseid.registry.results import StateConflict
from perseid.server.state.runtime import find_users, lock_installation

from ._arguments import INTERFACE, Directory, get_identity, printable, read_name, resolve_directory
from ._common_options import format_directory_option, program
from ._output import AsJson, new_secret_file, print_fields, print_json, print_message


class Profile(StrEnum):
    """The built-in policies."""

    PILIN = "pilin"
    CORDRA = "cordra"
    FREE = "free"
    EXACT = "exact"


class Root(StrEnum):
    """The source of prefixes."""

    SELF = "self"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class _InitOptions:
    """The contents of a new installation."""

    root: Root
    prefix: str | None
    policy: Policy
    demo: bool

    @property
    def administrator(self) -> ValueRef | None:
        """The first administrator, of the namespace or of the root; None if another service hosts both."""
        if self.prefix is None and self.root is Root.GLOBAL:
            return None
        return administrator_key(self.prefix or PREFIX_OF_PREFIXES)


@dataclass(frozen=True, slots=True)
class _InitResult:
    """What `init` has created."""

    namespace: Namespace | None = None
    demo: tuple[Handle, ...] = ()


def init(  # noqa: PLR0913 - options
    path: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A directory that does not exist or is empty.")
    ] = None,
    *,
    prefix: Annotated[str | None, typer.Option(metavar="PREFIX", help="Also add this namespace.")] = None,
    profile: Annotated[
        Profile | None, typer.Option(metavar="|".join(PROFILES), help="The policy of the namespace. Default: free.")
    ] = None,
    creator: Annotated[str | None, typer.Option(metavar="HANDLE", help="The default creator of identifiers.")] = None,
    root: Annotated[
        Root, typer.Option(metavar="self|global", help="Whether you or the global Handle System assign the prefixes.")
    ] = Root.SELF,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep the ledger in this empty PostgreSQL database, which several nodes can share. Default: a file.",
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also add the demonstration: namespaces and identifiers of PILIN and CORDRA.")
    ] = False,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file", metavar="OUT", help="Write the secret to this new file, which only you can read."
        ),
    ] = None,
    directory: Directory = None,
    json: AsJson = False,
) -> None:
    """Create an installation: settings, keys, site information, ledger, first administrator and, if named, a namespace.

    The secret of the first administrator is shown once, or written to a file. It is needed over the network; users who
    can write the directory do not need it. If the policy requires a creator and you name none, a record for it is
    created.

    For example:
        perseid init names --prefix 12345 --secret-file secret.txt
        perseid init archive --prefix 10.5072 --profile pilin
        perseid init trial --demo --json
    """
    if path is not None and directory is not None:
        raise typer.BadParameter("use either DIR or --directory, not both", param_hint="DIR")
    target = resolve_directory(path or directory).resolve()
    options = _InitOptions(root, _check_prefix(prefix, profile, creator), make_policy(profile, creator), demo)
    secret = None if options.administrator is None else new_secret()
    if secret is None and secret_file is not None:
        raise typer.BadParameter("without --prefix there is no administrator", param_hint="--secret-file")
    settings: dict[str, object] = {} if root is Root.SELF else {"root": root.value}
    if options.administrator is not None:
        settings["administrators.server"] = [str(options.administrator)]
    if database is not None:
        _check_environment(database)
        settings["ledger.database"] = database
    with new_secret_file(secret_file, "--secret-file", json=json) as write_secret, _cleanup_on_failure(target):
        installations.create(target, settings=settings)
        with Installation.open(target) as opened:
            result = _populate(opened.registry(), options, secret)
            ledger = opened.ledger
            ledger.answers.catch_up(ledger.open_reader)  # so that `resolve` is quick before a server has run
        if secret is not None and write_secret is not None:
            write_secret(secret)
    _print_result(target, options, result, secret, secret_file, json)


def config(directory: Directory = None, json: AsJson = False) -> None:
    """Show the effective settings and the source of each: default, file or variable.

    For example:
        perseid config
        perseid config --json
    """
    target = resolve_directory(directory).resolve()
    if not (target / FILE_NAME).is_file():
        raise NoInstallation(target)
    effective = Config.load(target, os.environ)
    if json:
        settings = [
            {"name": each.name, "value": each.value, "source": each.source, "unit": each.unit, "about": each.about}
            for each in effective.show()
        ]
        print_json({"directory": str(target), "settings": settings, "remarks": list(effective.remarks)})
        return
    print_fields({each.name: f"{printable(format_toml(each.value))}  ({each.source})" for each in effective.show()})
    for remark in effective.remarks:
        print_message(f"perseid: {remark}")


def upgrade(directory: Directory = None, json: AsJson = False) -> None:
    """Upgrade the ledger's tables to the version of this program. Entries are never changed.

    Make a backup and stop the server of this installation first. Other nodes of the database continue: those with an
    older program do so too, or refuse changes until they are upgraded, as the new tables require.

    For example:
        perseid upgrade
    """
    target = resolve_directory(directory)
    installations.load_settings(target)  # there is an installation
    if (lock := lock_installation(target)) is None:
        raise StateConflict("The server of this installation is running. Stop it first, then upgrade")
    try:
        _require_unused(target)
        done = installations.upgrade(target)
    finally:
        os.close(lock)
    if json:
        print_json({"directory": str(target.resolve()), "upgraded": done, "tables": installations.TABLES_VERSION})
    else:
        state = "were upgraded to" if done else "already have"
        typer.echo(f"The tables of the ledger {state} version {installations.TABLES_VERSION}.")


def _require_unused(target: Path) -> None:
    """Refuse to upgrade while processes of a server that was killed use the installation."""
    users = find_users(target)
    if users is not None:
        processes = f" ({', '.join(map(str, users))})" if users else ""
        end = f"end them with: kill {' '.join(map(str, users))}" if users else "end them"
        raise StateConflict(
            f"Processes of a server that was killed still use this installation{processes}. They end after a few "
            f"seconds: wait and retry, or {end}"
        )


commands: dict[str, Callable[..., None] | typer.Typer] = {"init": init, "config": config, "upgrade": upgrade}

_INSTALLATION_FILES: Final = (
    *(FILE_NAME, KEYS_NAME, *SITE_NAMES, ANSWERS_NAME),
    *(LEDGER_NAME, f"{LEDGER_NAME}-wal", f"{LEDGER_NAME}-shm"),
)


def make_policy(profile: Profile | None, creator: str | None) -> Policy:
    """Return the policy of a profile with a creator; the namespace's group administers new records."""
    policy = with_group_administrators(PROFILES[Profile.FREE if profile is None else profile])
    return policy if creator is None else replace(policy, default_creator=parse_party(creator, "--creator"))


def parse_party(text: str, option: str) -> str:
    """Parse the handle of a person or organization, in any form."""
    reference = read_name(text)
    if reference.tail:
        raise typer.BadParameter("use a handle without query and fragment", param_hint=option)
    return str(reference.handle)


def _check_prefix(prefix: str | None, profile: Profile | None, creator: str | None) -> str | None:
    if prefix is None:
        if profile is not None or creator is not None:
            raise typer.BadParameter("--profile and --creator require --prefix")
        return None
    check_new_prefix(prefix)
    return prefix


def _check_environment(database: str) -> None:
    """Refuse to save a database in the settings if a variable would override it."""
    variable = variable_name("ledger.database")
    if os.environ.get(variable, database) != database:
        raise typer.BadParameter(f"the variable {variable} names another database; unset it", param_hint="--database")


def _populate(registry: Registry, options: _InitOptions, secret: str | None) -> _InitResult:
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


def _print_result(
    target: Path, options: _InitOptions, result: _InitResult, secret: str | None, secret_file: Path | None, json: bool
) -> None:
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
    demo = f"{len(result.demo)} identifiers" if result.demo else None
    print_fields({"installation": printable(str(target)), "namespace": profile, "creator": creator, "demo": demo})
    if secret is not None:
        if secret_file is None:
            print_message(f"The first administrator is {administrator} with this secret:")
            print_message(f"    {secret}")
            print_message(
                "It is shown only once: store it like a password. It is needed to administer over the network;"
            )
        else:
            print_message(
                f"The first administrator is {administrator} with the secret in {printable(str(secret_file))}."
            )
            print_message("Store it like a password. It is needed to administer over the network;")
        print_message("users of this machine who can write the directory do not need it.")
    else:
        print_message("There is no administrator over the network yet: another service hosts the prefix handles.")
    if namespace is not None and namespace.types_elsewhere:
        print_message(f"Types defined at another service: {', '.join(namespace.types_elsewhere)}")
    option = format_directory_option(target)
    if namespace is not None:
        print_message(f"To create an identifier: {program()} mint {namespace.prefix} --url URL{option}")
    elif not result.demo:
        print_message(f"To add a namespace: {program()} namespace add PREFIX{option}")
    print_message(f"To serve it: {program()} serve{option}")


@contextmanager
def _cleanup_on_failure(target: Path) -> Iterator[None]:
    """Remove a partly created installation on failure; keep what existed before."""
    had_directory = target.exists()
    had_installation = any((target / name).exists() for name in _INSTALLATION_FILES)
    try:
        yield
    except BaseException:
        # A ledger in a database stays, and so does its key, of which there is no copy.
        if not had_installation and (target / LEDGER_NAME).exists():
            for path in (target / name for name in _INSTALLATION_FILES):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            if not had_directory:
                target.rmdir()
        raise

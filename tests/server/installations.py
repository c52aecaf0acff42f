"""An installation for tests of the running server: created once for a run, and copied for each test."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation, create
from perseid.registry.installation.setup import (
    add_namespace,
    administrator_key,
    administrator_values,
    create_root,
    with_group_administrators,
)
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules

PREFIX: Final = "12345"
SECRET: Final = "a-secret-of-the-tests"
ADMINISTRATOR: Final = f"300:0.NA/{PREFIX}"
OPERATOR: Final = LocalIdentity("tests")
PRIVATE: Final = Permission.ADMIN_READ | Permission.ADMIN_WRITE
NAMES: Final = 50
"""How many names there are: `12345/n0` and so on, with three values each."""


def values_of(number: int) -> tuple[Value, ...]:
    """The values of `12345/n<number>`."""
    return (
        Value.text(1, "URL", f"https://example.org/{number}"),
        Value.text(2, "DESC", f"the thing with the number {number}"),
        Value.text(3, "EMAIL", "keeper@example.org"),
    )


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perseid-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    directory = folder / "made"
    create(directory, settings={"administrators.server": [ADMINISTRATOR]}, environ={})
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        create_root(registry, OPERATOR, "cli")
        values = administrator_values(PREFIX, (administrator_key(PREFIX),), SECRET)
        add_namespace(
            registry, AddNamespace(PREFIX, with_group_administrators(PROFILES["free"]), values), OPERATOR, "cli"
        )
        for number in range(NAMES):
            registry.do(Create(Handle.parse(f"{PREFIX}/n{number}"), values_of(number)), OPERATOR, "cli")
        hidden = Value(9, "NOTE", b"for administrators", permissions=PRIVATE)
        registry.do(Create(Handle.parse(f"{PREFIX}/private"), (*values_of(0), hidden)), OPERATOR, "cli")
        long = tuple(Value(index, "DATA", bytes([index]) * 2_000) for index in range(1, 4))
        registry.do(Create(Handle.parse(f"{PREFIX}/long"), long), OPERATOR, "cli")
        longer = tuple(Value(index, "DATA", bytes([index]) * 20_000) for index in range(1, 11))
        registry.do(Create(Handle.parse(f"{PREFIX}/longer"), longer), OPERATOR, "cli")
    return directory


def copy_to(folder: Path) -> Path:
    """Copy the installation with its handles to a new directory."""
    target = folder / "installation"
    shutil.copytree(_template(), target)
    target.chmod(0o700)
    return target

"""Packages that load a module when a name of it is first used, and not before.

A resolver process takes a few modules of several packages. If a package imported everything that it offers, each of
them would bring the whole program along, with its databases and cryptography, into a process that needs neither.

A package says three times what it offers: in imports for type checkers, in `__all__`, and here by module. A test
compares them.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, given its modules and the names that it takes from each; modules are names too.

    No name may be that of a module: whoever imported the module first would find it in the name's place.
    """
    where = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load

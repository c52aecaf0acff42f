"""The compiled module: public resolution over UDP and TCP, and the environment of the answers view, in C.

It is optional. `pip install` compiles it where there are a C compiler and LMDB's header file; without it the same work
is done in Python, which is also its specification. The C files read nothing but requests and the answers view, and
either may contain any bytes.

    resolution.c  one request and a view: one response, or none, which leaves the request to Python; digests.c
    view.c        a generation of the answers view, in the LMDB of the system
    loop.c        a thread that answers the requests of a worker; traffic.c and tally.c are what it counts
    udp.c, tcp.c  its datagrams and its connections
    _native.pyx   what Python needs of them
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

ABSENT: Final = "it is not part of this installation"


def find_newer_source(module: Path) -> str:
    """Return the name of a source file that is newer than the compiled module; wheels have none."""
    sources = (path for pattern in ("*.c", "*.h", "*.pyx") for path in module.parent.glob(pattern))
    compiled = module.stat().st_mtime_ns
    return next((path.name for path in sorted(sources) if path.stat().st_mtime_ns > compiled), "")


if TYPE_CHECKING:
    from . import _native as native

    problem = ""
else:
    try:
        from . import _native as native
    except ImportError as error:
        native, problem = None, str(error)
        if find_spec(f"{__name__}._native") is None:
            problem = ABSENT
    else:
        version = ".".join(map(str, native.lmdb_version()))
        problem = "" if version.startswith("0.9.") else f"the answers view needs LMDB 0.9, not {version}"
        if newer := find_newer_source(Path(native.__file__)):
            problem = f"{newer} is newer; to compile it again, run: make env"

PROBLEM: str = problem
"""Why the compiled module cannot be used; empty if it can."""

__all__ = ["ABSENT", "PROBLEM", "native"]


def describe(*, enabled: bool, exempt_networks: int, several_servers: bool) -> str:
    """Say how public resolution over UDP and TCP runs, and why if not compiled."""
    if not enabled:
        return "in Python (native.compiled is false)"
    if PROBLEM:
        return f"in Python (compiled module: {PROBLEM})"
    if several_servers:
        return "in Python (the site has several servers)"
    if exempt_networks > native.MAX_NETWORKS:
        most = native.MAX_NETWORKS
        return f"in Python (limits.exempt_networks has {exempt_networks} networks; the compiled module takes {most})"
    return f"compiled (LMDB {'.'.join(map(str, native.lmdb_version()))})"

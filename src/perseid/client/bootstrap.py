"""Bootstrap data: the records of a root, as deployed clients store them (native protocol §11.2).

    {"lastUpdate": MILLISECONDS, "handles": {"0.NA/0.NA": {"handle": "0.NA/0.NA", "values": […]}, …}}

They are the record of the root, those of the services that it names, and often `0.0/0.0`, with the keys that sign them.
What was fetched is cached, so that not every process has to ask.
"""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from perseid.names.handle import fold
from perseid.records.encoding import JsonObject, parse_json, require_object, write_json
from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.records.site import Site

from .errors import ProtocolError, Unreachable
from .sites import read_sites

ROOT_HANDLE: Final = "0.NA/0.NA"
"""The handle with the sites of the root."""

MAX_SERVICES: Final = 20
"""Service handles that lead to the sites of a root, as deployed."""

CACHE_LIFETIME: Final = 86_400
"""Seconds for which fetched records are not fetched again. Resolvers read the sites again from the root itself."""

MAX_FILE_BYTES: Final = 4 << 20
"""Size of a root file: the bootstrap data of the global root has some hundred KiB."""

_FETCH_TIMEOUT = 30.0  # seconds
_MAX_TIME = 1 << 63  # milliseconds; more is a mistake


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The records of a root, and when they were current."""

    records: Mapping[str, tuple[Value, ...]]
    updated: float
    """Seconds since 1970."""

    @classmethod
    def from_json(cls, members: JsonObject) -> Self:
        """Read the members of a file; without a valid time, it is current. Raises InvalidData."""
        handles = require_object(members["handles"], "the handles").items()
        records = {handle: parse_values(require_object(each, "a record").get("values", [])) for handle, each in handles}
        updated = members.get("lastUpdate")
        if isinstance(updated, int) and 0 <= updated < _MAX_TIME:
            return cls(records, updated / 1_000)
        return cls(records, time.time())

    def to_bytes(self) -> bytes:
        """Return the data as a file."""
        from perseid.records.json_form import value_to_json  # noqa: PLC0415 - slow to import; reading a site needs none

        handles: JsonObject = {
            handle: {"handle": handle, "values": [value_to_json(value) for value in values]}
            for handle, values in self.records.items()
        }
        return write_json({"lastUpdate": int(self.updated * 1_000), "handles": handles}).encode()

    @classmethod
    def fetch(cls, url: str, *more: str) -> Self:
        """Fetch the record of a root, those of the services that it names, and more records, over HTTP."""
        import httpx  # noqa: PLC0415 - rarely needed, and slow to import

        records: dict[str, tuple[Value, ...]] = {}
        wanted = [ROOT_HANDLE, *more]
        try:
            with httpx.Client(timeout=_FETCH_TIMEOUT, follow_redirects=False) as client:
                while wanted and len(records) < MAX_SERVICES:
                    handle = wanted.pop()
                    response = client.get(f"{url}/{quote(handle, safe='/')}").raise_for_status()
                    records[handle] = parse_values(require_object(parse_json(response.content), "a record")["values"])
                    known = {fold(each) for each in (*records, *wanted)}
                    wanted += [each for each in read_sites(records[handle])[1] if fold(each) not in known]
        except httpx.HTTPError as error:
            raise Unreachable(
                f"the root information at {url} cannot be read: {error}",
                advice="Retry, or use root=PATH with the bootstrap_handles file of a deployed client",
            ) from error
        except (InvalidData, KeyError) as error:
            raise ProtocolError(f"the root information at {url} is malformed: {error}") from error
        return cls(records, time.time())

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites of the root record, and of the service records that it leads to."""
        by_handle = {fold(handle): values for handle, values in self.records.items()}
        sites: list[Site] = []
        wanted, seen = [ROOT_HANDLE], set[str]()
        while wanted and len(seen) <= MAX_SERVICES:
            handle = fold(wanted.pop())
            if handle in seen:
                continue
            seen.add(handle)
            found, services = read_sites(by_handle.get(handle, ()))
            sites += found
            wanted += services
        return tuple(dict.fromkeys(sites))


def parse_values(obj: object) -> tuple[Value, ...]:
    """Parse the values of a record."""
    from perseid.records.json_form import values_from_json  # noqa: PLC0415 - slow to import; a site does not need it

    return values_from_json(obj)


# The cache


def find_cache(environ: Mapping[str, str]) -> Path:
    """Return the file with the records of the global root that were fetched last."""
    home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".cache")
    return Path(home, "perseid", "global_root.json")


def read_cache(path: Path) -> Bootstrap | None:
    """Read fetched records; None if there are none, they are malformed, or somebody else can write them."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            return Bootstrap.from_json(require_object(parse_json(file.read(MAX_FILE_BYTES)), "the cache"))
    except (OSError, InvalidData, KeyError):
        return None


def write_cache(path: Path, data: Bootstrap) -> None:
    """Store fetched records for other processes of the user; without space or permission they are just not stored."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data.to_bytes())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def is_fresh(data: Bootstrap, now: float) -> bool:
    """Whether fetched records need not be fetched again; a time in the future is that of another clock."""
    return 0 <= now - data.updated < CACHE_LIFETIME

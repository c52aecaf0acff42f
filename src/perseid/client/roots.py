"""Roots: where resolution begins (native protocol §11.2, §18.6).

A root is the service that has the prefix handles (`0.NA/…`). It comes from one of these:

- a file: the bootstrap data of deployed clients (`bootstrap_handles`), the older `root_info`, or the site of a server
  (`siteinfo.json`, `siteinfo.bin`);
- a folder: the configuration of a deployed client, usually `~/.handle`;
- the global Handle System, only if the program asks for it with `"global"`: the bootstrap data of the user's deployed
  client, or that of this package, or what its operators publish.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from perseid.names.handle import fold
from perseid.records.binary import Reader
from perseid.records.encoding import (
    JsonObject,
    decode_printable,
    parse_json,
    require_list,
    require_object,
    require_text,
)
from perseid.records.errors import InvalidData
from perseid.records.record import values_from_bytes
from perseid.records.site import Site

from .bootstrap import (
    MAX_FILE_BYTES,
    ROOT_HANDLE,
    Bootstrap,
    find_cache,
    is_fresh,
    parse_values,
    read_cache,
    write_cache,
)
from .errors import ClientError, Unreachable
from .sites import read_sites

GLOBAL: Final = "global"
"""The name of the global Handle System."""

ROOT_VARIABLE: Final = "PERSEID_CLIENT_ROOT"
"""The environment variable with the default root: `global`, or the path of a file or folder."""

GLOBAL_RECORDS: Final = "https://hdl.handle.net/api/handles"
"""Where the operators of the global Handle System publish its root records, authenticated by TLS. It is used only if
the user asks for the global root, and neither a deployed client nor this package has bootstrap data."""

PACKAGED: Final = Path(__file__).with_name("data") / "global_root.json"
"""The bootstrap data of the global root in this package, if the maintainers have added it (`tools/global_root.py`)."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where resolution begins. `Resolver` loads it from a name or path; a program can also make one from sites."""

    sites: tuple[Site, ...]
    """The sites of the service that has the prefix handles."""
    name: str = ""
    """Where it comes from, for messages."""
    local_sites: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    """Sites by prefix handle, in uppercase, that replace what the root says."""
    resolver: tuple[Site, ...] = ()
    """Sites of a caching server that gets all requests instead, if there is one."""
    local_addresses: Mapping[str, str] = field(default_factory=dict)
    """Addresses behind a NAT, by public address."""
    updated: float = field(default_factory=time.time, compare=False)
    """When the sites were read from the root, in seconds since 1970. Resolvers read them again once a day."""

    def __post_init__(self) -> None:
        if not (self.sites or self.resolver):
            raise ClientError(
                f"{self.name or 'the root'} has no sites",
                advice="Use a file with HS_SITE values, or the siteinfo.json of a server",
            )

    @classmethod
    def load(cls, root: "Root | str | os.PathLike[str] | None") -> "Root":
        """Load a root: `"global"`, or the path of a file or folder. None means the environment variable."""
        if isinstance(root, Root):
            return root
        chosen = root or os.environ.get(ROOT_VARIABLE)
        if not chosen:
            raise ClientError(
                "no root is configured, so it is not known whom to ask",
                advice=f'Use root="{GLOBAL}" for the global Handle System, or root=PATH with the siteinfo.json of a '
                f"server or the .handle folder of a deployed client; or set {ROOT_VARIABLE} to one of these",
                problem_type="invalid-request",
            )
        if chosen == GLOBAL:
            return cls.load_global()
        path = Path(chosen)
        return cls.from_folder(path) if path.is_dir() else cls.from_file(path)

    @classmethod
    def load_global(cls) -> Self:
        """The root of the global Handle System: that of the user's deployed client, or of this package, or as its
        operators publish it. What was fetched is cached for a day.
        """
        folder = Path.home() / ".handle"
        if (folder / "bootstrap_handles").is_file():
            return cls.from_folder(folder)
        if PACKAGED.is_file():
            return cls.from_file(PACKAGED)
        cache = find_cache(os.environ)
        data = read_cache(cache)
        if data is not None and is_fresh(data, time.time()):
            return cls(data.sites, GLOBAL_RECORDS, updated=data.updated)
        try:
            fetched = Bootstrap.fetch(GLOBAL_RECORDS)
        except Unreachable:
            if data is None:
                raise
            return cls(data.sites, GLOBAL_RECORDS, updated=data.updated)  # better than nothing, and read again soon
        root = cls(fetched.sites, GLOBAL_RECORDS, updated=fetched.updated)
        write_cache(cache, fetched)
        return root

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a file: bootstrap data, `root_info`, or the site of a server."""
        try:
            sites, updated = _read_root_sites(_read_file(path))
            return cls(tuple(sites), str(path), updated=updated)
        except InvalidData as error:
            raise ClientError(
                f"{path} is not root information: {error}",
                advice="Use a bootstrap_handles or root_info file, or the siteinfo.json or siteinfo.bin of a server",
                problem_type="invalid-value",
            ) from None

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read the configuration folder of a deployed client, or the directory of a server with its site."""
        try:
            local = _read_local_sites(folder)
            resolver = [Site.from_file(_read_file(path)) for path in [folder / "resolver_site"] if path.is_file()]
            if not resolver and (folder / "resolver_service").is_file():
                resolver = read_sites(values_from_bytes(_read_file(folder / "resolver_service"), 0))[0]
            sites, updated = list(local.get(ROOT_HANDLE, ())), time.time()
            for name in ("bootstrap_handles", "root_info", "siteinfo.bin", "siteinfo.json"):
                if not sites and (folder / name).is_file():
                    sites, updated = _read_root_sites(_read_file(folder / name))
        except InvalidData as error:
            raise ClientError(
                f"{folder} has a malformed file: {error}",
                advice="Use a folder such as ~/.handle, with bootstrap_handles or root_info",
                problem_type="invalid-value",
            ) from None
        return cls(tuple(sites), str(folder), local, tuple(resolver), _read_local_addresses(folder), updated)

    @classmethod
    def fetch(cls, url: str) -> Self:
        """Fetch the records of a root over HTTP: its own, and those of the services that it names."""
        data = Bootstrap.fetch(url)
        return cls(data.sites, url, updated=data.updated)


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ClientError(
            f"{path} cannot be read: {error.strerror}",
            advice=f'Use the path of a file or folder, or "{GLOBAL}"',
            problem_type="invalid-request",
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidData(f"{path.name} has more than {MAX_FILE_BYTES:,} bytes")
    return data


def _read_root_sites(data: bytes) -> tuple[list[Site], float]:
    """Read the sites in a file, whatever its format, and when they were current: now, unless it says more."""
    text, now = decode_printable(data), time.time()
    if text is None:
        try:
            values = values_from_bytes(data, 0)
        except InvalidData:
            return [Site.from_bytes(data)], now
        return read_sites(values)[0], now
    members = require_object(parse_json(text), "the file")
    if "handles" in members:
        bootstrap = Bootstrap.from_json(members)
        return list(bootstrap.sites), bootstrap.updated
    if "values" in members:
        return read_sites(parse_values(members["values"]))[0], now
    return [Site.from_json(members)], now


def _read_local_sites(folder: Path) -> dict[str, tuple[Site, ...]]:
    """Read `local_info.json` or `local_info`: sites by prefix handle."""
    found: dict[str, list[Site]] = {}
    if (folder / "local_info.json").is_file():
        for item in require_list(parse_json(_read_file(folder / "local_info.json")), "local_info.json"):
            entry: JsonObject = require_object(item, "an entry of local_info.json")
            site = Site.from_json(entry.get("site"))
            for prefix in require_list(entry.get("nas"), "the prefixes"):
                found.setdefault(fold(require_text(prefix, "a prefix")), []).append(site)
    elif (folder / "local_info").is_file():
        outer = Reader(_read_file(folder / "local_info"))
        reader = outer.inner(outer.i32())
        for _ in range(reader.count(_MIN_ENTRY_SIZE)):
            prefixes = [fold(reader.text()) for _ in range(reader.count(4))]
            site = Site.from_bytes(reader.bytes_())
            for prefix in prefixes:
                found.setdefault(prefix, []).append(site)
    return {prefix: tuple(sites) for prefix, sites in found.items()}


_MIN_ENTRY_SIZE = 8  # no prefixes, an empty site


def _read_local_addresses(folder: Path) -> dict[str, str]:
    """Read `local_addresses`: lines with a public and a private address."""
    path = folder / "local_addresses"
    if not path.is_file():
        return {}
    lines = [line.split() for line in _read_file(path).decode("utf-8", "replace").splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}

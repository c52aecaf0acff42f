"""A site of several servers: its description, and the share of this one (see `registry.partition`).

Each server is an installation of its own, with its own ledger and keys. `add_server` adds the site information of
another installation to that of this one, and `join_site` takes the result over there. Nothing in these files is secret.
Servers are added at the end, so the others keep their positions; but every handle may belong to another server then.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from perseid.ledger.log.entry import State
from perseid.ledger.log.reader import LogReader
from perseid.names.errors import quote_text
from perseid.names.handle import Handle, fold
from perseid.records.errors import InvalidData
from perseid.records.partition import HashOption
from perseid.records.site import Attribute, Server, Site
from perseid.registry.partition import URL_ATTRIBUTE, Partition
from perseid.registry.snapshot import SITE_PREFIX

from .files import replace_file
from .sections import MAX_SERVERS, check_public_url
from .settings import FILE_NAME, Config, InvalidConfig, decode_settings
from .site import (
    KEYS_NAME,
    MAX_SITE_BYTES,
    SITE_JSON,
    SiteError,
    check_position,
    choose_site_file,
    is_later,
    load_server_identity,
    lock_keys,
    next_serial,
    read_keys,
    read_site_files,
    write_site,
)

_BY_POSITION: Final = ("domain", "path", URL_ATTRIBUTE)
"""Attributes about one server, which have its position if the site has several."""

_ALTERNATIVE_ADDRESS: Final = "alt_addr"
_POSITION_LINE = re.compile(r"^[ \t]*#?[ \t]*position[ \t]*=.*$", re.MULTILINE)
_SECTION_LINE = re.compile(r"^[ \t]*\[[ \t]*site[ \t]*\][^\n]*$", re.MULTILINE)


def load_partition(directory: Path, config: Config) -> Partition | None:
    """The site and the position of this server in it; None if it is the only one. Raises `SiteError`.

    The private key is not read, because commands may have no access to its passphrase; the server compares it.
    """
    forms = read_site_files(directory)
    if not forms:
        return None
    position = config.site.position - 1
    form = choose_site_file(forms, (), position)
    check_position(form, config)
    return Partition(form.site, position) if len(form.site.servers) > 1 else None


def add_server(
    directory: Path, config: Config, path: Path, option: HashOption | None = None, url: str = ""
) -> tuple[Site, tuple[Path, ...]]:
    """Add the server of another installation's site information; return the new site and its files.

    `option` is the part of a handle that is hashed, and only the first call can set it. `url` is the public URL of the
    new server's HTTP interface; that of a server that is in the site already is changed.
    """
    url = _check_url(url)
    added = _read_description(path)
    with lock_keys(directory / KEYS_NAME):
        load_server_identity(directory, config)  # refuses files that do not match
        forms = read_site_files(directory)
        form = choose_site_file(forms, read_keys(directory, config), config.site.position - 1)
        known = _find_known(form.site, added, config.site.position - 1 if _is_beside(path, form.path) else None)
        if known is not None and url and option is None:
            new = _set_url(form.site, known, url)
        else:
            site = _check_addition(form.site, added, path, option)
            if len(site.servers) == 1:
                site = _by_position(site, config.http.public_url, form.path)
            number = len(site.servers)
            server_id = max(server.server_id for server in site.servers) + 1
            attributes = _own_attributes(added, number, server_id, url, path)
            new = replace(
                site,
                servers=(*site.servers, replace(added.servers[0], server_id=server_id)),
                attributes=(*site.attributes, *attributes),
            )
        new = replace(new, serial=next_serial(new.serial))
        paths = write_site(form.path.parent, new)
    return new, paths


def join_site(directory: Path, config: Config, path: Path) -> tuple[Site, int]:
    """Take over the description of a site that names the key of this server; return it and the position in it."""
    site = _read_description(path)
    with lock_keys(directory / KEYS_NAME):
        keys = [each.key.public for each in read_keys(directory, config)]
        positions = [number for number, server in enumerate(site.servers) if server.key in keys]
        if len(site.servers) < 2 or not positions:
            raise SiteError(
                f"{path} does not describe several servers of which one has the key in {directory / KEYS_NAME}; first "
                f"add this server, at the installation the file is from: perseid site add {directory / SITE_JSON}"
            )
        forms = read_site_files(directory)
        current = choose_site_file(forms, read_keys(directory, config), config.site.position - 1) if forms else None
        if current is not None and len(current.site.servers) > 1 and is_later(current.site.serial, site.serial):
            raise SiteError(
                f"{path} has serial number {site.serial}, but {current.path} has {current.site.serial}; use the "
                "newest site information"
            )
        # The setting first: a site of one server has no other position, so an interruption leaves a clear error.
        _set_position(directory / FILE_NAME, positions[0] + 1)
        write_site(directory if current is None else current.path.parent, site)
    return site, positions[0]


def find_misplaced(reader: LogReader, partition: Partition) -> Iterator[tuple[str, int]]:
    """Yield the handles with a record here that belong to another server, and its position."""
    for change in reader.current():
        handle = Handle.parse_lenient(change.handle)
        if change.state != State.ABSENT and fold(handle.prefix) != SITE_PREFIX:
            position = partition.find_other(handle)
            if position is not None:
                yield change.handle, position


def _read_description(path: Path) -> Site:
    try:
        with path.open("rb") as stream:
            return Site.from_file(stream.read(MAX_SITE_BYTES))
    except OSError as error:
        raise SiteError(f"Cannot read {path}: {error.strerror}") from error
    except InvalidData as problem:
        advice = "use the siteinfo.json of an installation"
        raise SiteError(f"{path} is not site information: {problem}; {advice}") from None


def _check_addition(site: Site, added: Site, path: Path, option: HashOption | None) -> Site:
    """Refuse a server that the site cannot have; return the site with the hash option."""
    if len(added.servers) != 1:
        raise SiteError(f"{path} describes {len(added.servers)} servers; use the site information of the new server")
    new = added.servers[0]
    if any(server.public_key == new.public_key for server in site.servers):
        advice = "; to change its URL, use --url alone" if len(site.servers) > 1 else ""
        raise SiteError(f"The server of {path} is already in the site: they have the same key{advice}")
    if any(_listens_like(server, new) for server in site.servers):
        raise SiteError(
            f"The server of {path} has the address and a port of another one, {new.ip}; correct address and interfaces "
            f"in {path} and in the installation it is from"
        )
    if len(site.servers) >= MAX_SERVERS:
        raise SiteError(f"A site has at most {MAX_SERVERS:,} servers")
    if option is None or option == site.hash_option:
        return site
    if len(site.servers) > 1:
        raise SiteError(
            f"The site hashes {site.hash_option.name.lower()}, which cannot change while it has several servers; "
            "omit --hash"
        )
    return replace(site, hash_option=option)


def _listens_like(server: Server, other: Server) -> bool:
    ports = {(each.transport, each.port) for each in server.interfaces}
    return (
        any(server.address)
        and server.address == other.address
        and any((each.transport, each.port) in ports for each in other.interfaces)
    )


def _check_url(text: str, path: Path | None = None) -> str:
    """Return the URL of a server, which may be empty. Raises `SiteError`."""
    try:
        return check_public_url(text)
    except ValueError:
        source = "" if path is None else f" in {path}"
        raise SiteError(f"Invalid URL {quote_text(text)}{source}: use one such as https://two.example.org") from None


def _find_known(site: Site, described: Site, own: int | None) -> int | None:
    """The position of a described server in a site of several; a file of this installation describes its own."""
    if len(site.servers) == 1:
        return None
    keys = [server.public_key for server in site.servers]
    if len(described.servers) == 1 and described.servers[0].public_key in keys:
        return keys.index(described.servers[0].public_key)
    return own


def _is_beside(path: Path, other: Path) -> bool:
    return path.resolve().parent == other.resolve().parent


def _set_url(site: Site, position: int, url: str) -> Site:
    name = f"{URL_ATTRIBUTE}.{position}"
    others = [each for each in site.attributes if each.name != name]
    return replace(site, attributes=(*others, Attribute(name, url.encode())))


def _by_position(site: Site, url: str, path: Path) -> Site:
    """A site of one server, with the attributes about it as those of the first server of several."""
    kept = [each for each in site.attributes if each.name not in (*_BY_POSITION, _ALTERNATIVE_ADDRESS)]
    kept = [each for each in kept if not each.name.startswith(tuple(f"{name}.0" for name in _BY_POSITION))]
    own = _own_attributes(site, 0, site.servers[0].server_id, url, path)
    return replace(site, attributes=(*kept, *own))


def _own_attributes(site: Site, position: int, server_id: int, url: str, path: Path) -> Iterator[Attribute]:
    """The attributes about the only server of a site, as those of one of several. Raises `SiteError`."""
    for name in _BY_POSITION:
        value = site.attribute(f"{name}.0") or site.attribute(name)
        if name == URL_ATTRIBUTE:
            value = url or _check_url(value or "", path)
        if value:
            yield Attribute(f"{name}.{position}", value.encode())
    old = f"{_ALTERNATIVE_ADDRESS}.{site.servers[0].server_id}"
    if value := site.attribute(old) or site.attribute(_ALTERNATIVE_ADDRESS):
        yield Attribute(f"{_ALTERNATIVE_ADDRESS}.{server_id}", value.encode())


def _set_position(path: Path, position: int) -> None:
    """Write the setting `site.position` to the file of settings."""
    text = decode_settings(path.read_bytes())
    if Config.parse(text, {}).site.position == position:
        return
    changed = _change_position(text, position)
    try:
        is_set = Config.parse(changed, {}).site.position == position
    except InvalidConfig:
        is_set = False
    if not is_set:  # a form of TOML that is not expected
        raise SiteError(f"Cannot set site.position in {path}; set it to {position} yourself, then run this again")
    replace_file(path, changed.encode())


def _change_position(text: str, position: int) -> str:
    line = f"position = {position}"
    section = _SECTION_LINE.search(text)
    if section is None:
        return f"{text.rstrip()}\n\n[site]\n{line}\n"
    following = text.find("\n[", section.end())
    end = len(text) if following < 0 else following
    body = text[section.end() : end]
    changed = _POSITION_LINE.sub(line, body, count=1) if _POSITION_LINE.search(body) else f"\n{line}{body}"
    return text[: section.end()] + changed + text[end:]

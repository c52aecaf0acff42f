"""Write the bootstrap data of the global Handle System, which the package has for `root="global"`.

    python tools/global_root.py [--from URL|FILE] [--to FILE]

The records come from the address where the operators publish them, over HTTPS, or from a `bootstrap_handles` file of a
deployed client. They are checked before anything is written: every site and key can be decoded, the records of all
services are there, and nothing else (native protocol §11.2). Signatures of the records (§9.9) are not checked: they are
as authentic as their source. Compare the printed fingerprints with another source before you commit the file.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from perseid.client.bootstrap import MAX_FILE_BYTES, ROOT_HANDLE, Bootstrap
from perseid.client.errors import ClientError
from perseid.client.roots import GLOBAL_RECORDS, PACKAGED
from perseid.client.sites import read_sites
from perseid.names.handle import fold
from perseid.records.encoding import parse_json, require_object
from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.record import Value
from perseid.records.site import Site
from perseid.records.types import HS_PUBKEY, SITE_TYPES

TRUST_ROOT = "0.0/0.0"
"""The handle with the keys that sign the records of the root."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read(source: str) -> Bootstrap:
    """Read bootstrap data from a URL or a file. Raises ClientError, InvalidData or OSError."""
    if "://" not in source:
        data = Path(source).read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise InvalidData(f"{source} has more than {MAX_FILE_BYTES:,} bytes")
        members = require_object(parse_json(data), "the file")
        if "handles" not in members or "lastUpdate" not in members:
            raise InvalidData("the file must have lastUpdate and handles")
        return Bootstrap.from_json(members)
    parts = urlsplit(source)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise InvalidData(f"{source} is not an https URL: others could change the records on their way")
    return Bootstrap.fetch(source.rstrip("/"), TRUST_ROOT)


def check(data: Bootstrap) -> list[Site]:
    """Return the sites of checked records. Raises InvalidData."""
    records = {fold(handle): values for handle, values in data.records.items()}
    for handle in (ROOT_HANDLE, TRUST_ROOT):
        if handle not in records:
            raise InvalidData(f"the record of {handle} is missing")
    sites = _check_services(records)
    keys = [value for value in records[TRUST_ROOT] if value.type == HS_PUBKEY]
    if not keys:
        raise InvalidData(f"{TRUST_ROOT} has no HS_PUBKEY value")
    for value in keys:
        _check_key(f"{value.index}:{TRUST_ROOT}", value.data)
    return sites


def _check_services(records: Mapping[str, tuple[Value, ...]]) -> list[Site]:
    """Follow the services from the root record; all records must be reached."""
    sites: list[Site] = []
    wanted, seen = [ROOT_HANDLE], {TRUST_ROOT}
    while wanted:
        handle = fold(wanted.pop())
        if handle in seen:
            continue
        seen.add(handle)
        if handle not in records:
            raise InvalidData(f"the record of the service {handle} is missing")
        sites += [_check_site(handle, value) for value in records[handle] if value.type in SITE_TYPES]
        wanted += read_sites(records[handle])[1]
    if extra := records.keys() - seen:
        raise InvalidData(f"no service leads to {', '.join(sorted(extra))}")
    if not sites:
        raise InvalidData("the records have no sites")
    return sites


def _check_site(handle: str, value: Value) -> Site:
    try:
        site = Site.from_bytes(value.data)
    except InvalidData as error:
        raise InvalidData(f"the site in {value.index}:{handle} is malformed: {error}") from error
    if not site.servers:
        raise InvalidData(f"the site in {value.index}:{handle} has no servers")
    for server in site.servers:
        _check_key(f"server {server.server_id} of {value.index}:{handle}", server.public_key)
    return site


def _check_key(where: str, data: bytes) -> None:
    try:
        PublicKey.from_bytes(data)
    except InvalidData as error:
        raise InvalidData(f"the key of {where} is malformed: {error}") from error


def main() -> None:
    """Parse the options, read, check, write."""
    parser = argparse.ArgumentParser(description="Write the bootstrap data of the global root.")
    parser.add_argument(
        "--from", dest="source", default=GLOBAL_RECORDS, metavar="URL|FILE", help=f"default {GLOBAL_RECORDS}"
    )
    parser.add_argument("--to", type=Path, default=PACKAGED, metavar="FILE", help="default: the file of the package")
    options = parser.parse_args()
    try:
        data = read(options.source)
        sites = check(data)
        options.to.parent.mkdir(exist_ok=True)
        options.to.write_bytes(data.to_bytes())
    except (ClientError, InvalidData, OSError) as error:
        sys.exit(f"Nothing was written: {error}")
    for handle, values in data.records.items():
        for value in values:
            if value.type == HS_PUBKEY:
                print(f"{value.index}:{handle}  {hashlib.sha256(value.data).hexdigest()}")
    print(f"{len(sites)} sites in {len(data.records)} records, written to {options.to}")


if __name__ == "__main__":
    main()

"""Find and open the source that a user names: a running server, a database or a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from perseid.bulk.formats import Format
from perseid.client.native import DEFAULT_PORT, NativeClient
from perseid.client.replication import ReplicationClient
from perseid.records.keys import PublicKey
from perseid.records.private_keys import PrivateKey

from . import sql
from .files import FileSource
from .mirror import MirrorSource
from .native import NativeSource
from .source import Source, SourceError
from .sql import DatabaseUrl, SqlSource

NATIVE_SCHEME: Final = "hdl"

_ADVICE: Final = (
    "Use HOST:PORT of a Handle server, mysql://USER@HOST/DATABASE, postgresql://USER@HOST/DATABASE, or a file"
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How a source is opened."""

    prefixes: tuple[str, ...] = ()
    identity: str | None = None
    """Who reads from a running server, as `INDEX:HANDLE`."""
    key: PrivateKey | str | None = field(default=None, repr=False)
    """The private key or the secret of the identity."""
    server_key: PublicKey | None = None
    """The key that the server must have; None to accept the one that it shows."""
    password: str = field(default="", repr=False)
    """Of a database."""
    format: Format | None = None
    """Of a file; None to detect it."""
    mirror: bool = False
    """Whether a running server is read over the replication protocol."""
    folder: Path = Path()
    """Where temporary files are created."""


def open_source(text: str, options: SourceOptions) -> Source:
    """Open a source. Raises `SourceError`."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme in sql.SCHEMES:
        return SqlSource(DatabaseUrl.parse(text), options.password)
    if separator and scheme != NATIVE_SCHEME:
        raise _unknown(text)
    if not separator and Path(text).exists():
        return FileSource(Path(text), options.prefixes, options.format)
    host, port = _parse_address(text if separator else f"{NATIVE_SCHEME}://{text}")
    if options.identity is None or options.key is None:
        if not separator and ":" not in text:
            advice = "Check the name of the file. For a server, use --as and --secret-file"
            raise SourceError(f"{text} does not exist", advice)
        raise SourceError("A running server lists its handles to administrators only", "Use --as and --secret-file")
    try:
        if options.mirror:
            client = ReplicationClient(host, port, options.identity, options.key, options.server_key)
            return MirrorSource(client, options.folder)
        native = NativeClient(host, port, identity=options.identity, key=options.key, server_key=options.server_key)
    except ValueError as problem:
        raise SourceError(str(problem)) from problem
    return NativeSource(native, options.prefixes, options.folder)


def _parse_address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or parts.path.strip("/") or parts.query or parts.username is not None:
        raise _unknown(url.removeprefix(f"{NATIVE_SCHEME}://"))
    return host, port or DEFAULT_PORT


def _unknown(text: str) -> SourceError:
    """The error for a text that is not a source, without the password that it may contain."""
    _, at, end = text.rpartition("@")
    return SourceError(f"Unknown source {(f'…@{end}' if at else text)[:200]!r}", _ADVICE)

"""A running Handle server over the native protocol: list the handles of its prefixes, and resolve each.

The identity must be able to list the handles of the prefixes, and to read the private values of every record; a server
administrator with full access can. The list of a prefix goes to a temporary file first, because the server sends it in
one piece. Only the named server is contacted, whatever its site information says. Values that
nobody can read over the protocol are reported by no server: the replication protocol and the database have them.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import tee
from pathlib import Path
from typing import IO, Final

import msgspec

from perseid.client import native_operations as operations
from perseid.client.errors import ClientError, NotFound, Unreachable
from perseid.client.native import NativeClient
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.registry.jobs.migration import SourceRecord
from perseid.wire.codes import ResponseCode

from .source import PrefixList, SourceError, SourceItem, SourceUnreachable, Spool, unreadable

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class NativeSource:
    """A running server."""

    lists_prefixes = True

    def __init__(self, client: NativeClient, prefixes: tuple[str, ...], folder: Path) -> None:
        """Only `prefixes` are listed, if there are any: listing all requires a server administrator.

        `folder` is where temporary files are created.
        """
        self._client, self._only, self._folder = client, prefixes, folder
        host, port = client.address
        self.label = self.origin = f"hdl://{host}:{port}"
        self._is_complete: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the server has all records of its site; one of several has a part of them."""
        if self._is_complete is None:
            with self._translate_errors():
                self._is_complete = len(self._client.site().servers) <= 1
        return self._is_complete

    def prefixes(self) -> list[str]:
        """Return the given prefixes, or all that the server hosts."""
        if self._only:
            return [f"{PREFIX_OF_PREFIXES}/{prefix}" for prefix in self._only]
        found = PrefixList(self.label)
        with self._translate_errors():
            self._client.do(operations.visit_prefixes(found.add))
        return found.names

    def records(self) -> Iterator[SourceItem]:
        """List and resolve, prefix by prefix."""
        for prefix in self.prefixes():
            with self._translate_errors(), closing(Spool(self._folder)) as spool:
                self._client.visit_handles(prefix, partial(_write_name, spool))
                names, wanted = tee(_read_names(spool.file))  # apart by what is in progress
                results = self._client.do_many(operations.resolve(name, private=True) for name in wanted)
                for name, result in zip(names, results, strict=True):
                    item = _to_item(name, result)
                    if item is not None:
                        yield item

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            raise SourceUnreachable(error.detail, error.advice) from error
        except ClientError as error:
            raise SourceError(f"{self.label} refused a request: {error.detail}", error.advice) from error


def _write_name(spool: Spool, name: str) -> None:
    spool.write(msgspec.json.encode(name) + b"\n")


def _read_names(file: IO[bytes]) -> Iterator[str]:
    file.seek(0)
    for line in file:
        yield msgspec.json.decode(line, type=str)


def _to_item(name: str, result: object) -> SourceItem | None:
    """The record of a listed handle; None if it was deleted meanwhile."""
    if _REPLACEMENT in name:
        return unreadable(name, "the handle may not be UTF-8")
    match result:
        case NotFound(code=ResponseCode.VALUES_NOT_FOUND):
            return SourceRecord(name, ())
        case NotFound():
            return None
        case Unreachable():
            raise result
        case ClientError():
            return unreadable(name, f"the server refused to show it: {result.detail}")
        case tuple():
            return SourceRecord(name, result)
    raise TypeError(f"unexpected result {result!r}")

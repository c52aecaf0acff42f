"""A running Handle server over the native protocol: list the handles of its prefixes, and resolve each.

The identity must be able to list the handles of the prefixes, and to read the private values of every record; a server
administrator with full access can. Only the named server is contacted, whatever its site information says. Values that
nobody can read over the protocol are reported by no server: the replication protocol and the database have them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from perseid.client import native_operations as operations
from perseid.client.errors import ClientError, NotFound, Unreachable
from perseid.client.native import NativeClient
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.registry.jobs.migration import SourceRecord
from perseid.wire.codes import ResponseCode

from .source import SourceError, SourceItem, SourceUnreachable, unreadable

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


class NativeSource:
    """A running server."""

    def __init__(self, client: NativeClient, prefixes: tuple[str, ...] = ()) -> None:
        """Only `prefixes` are listed, if there are any: listing all requires a server administrator."""
        self._client, self._only = client, prefixes
        host, port = client.address
        self.label = f"hdl://{host}:{port}"
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
        with self._translate_errors():
            return self._client.list_prefixes()

    def records(self) -> Iterator[SourceItem]:
        """List and resolve, prefix by prefix."""
        for prefix in self.prefixes():
            with self._translate_errors():
                names = self._client.list_handles(prefix)
                results = self._client.do_many(operations.resolve(name, private=True) for name in names)
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

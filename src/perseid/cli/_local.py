"""Resolving on an installation, which opens the ledger only if it is needed, and with the methods of `Client`."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.installation.public_view import open_public_view
from perseid.registry.queries.aliases import find_record
from perseid.registry.queries.resolve import Query
from perseid.registry.results import NotPublic, Refused
from perseid.registry.snapshot import LedgerNeeded
from perseid.schema.namespaces import Authority
from perseid.schema.records import Record

from ._arguments import INTERFACE, OpenInstallation, open_installation
from ._common_options import resolve_directory

if TYPE_CHECKING:
    from perseid.registry.registry import Registry


class LocalReader:
    """An installation. It is opened when something needs the ledger; public records are read from the answers view."""

    def __init__(self, directory: Path | None, acting_as: str | None) -> None:
        self._directory = directory
        self._acting_as = acting_as
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def session(self) -> OpenInstallation:
        """The open installation."""
        return self._stack.enter_context(open_installation(self._directory, self._acting_as))

    def resolve(
        self,
        handle: str,
        *,
        types: Iterable[str] = (),
        indexes: Iterable[int] = (),
        at: str | None = None,
        private: bool = False,
        follow: bool = False,
    ) -> Record:
        """Return a record; a refusal suggests what may have been meant."""
        selection = Query(Handle.parse_lenient(handle), tuple(types), tuple(indexes), public_only=not private)
        if not private and at is None and "session" not in vars(self):
            # What the view refuses is decided again on the ledger, which knows the reason and what was meant.
            with suppress(LedgerNeeded, Refused), open_public_view(resolve_directory(self._directory)) as view:
                context = Context(view, Anonymous(), INTERFACE, 0)
                return find_record(context, selection, None, 0, follow=follow).to_response()
        registry = self.session.registry
        with suggest(registry, handle), registry.snapshot() as snapshot:
            context = Context(snapshot, self.session.identity, INTERFACE, registry.now())
            now = registry.ledger.log.clock.now()
            return find_record(context, selection, at, now, follow=follow).to_response()

    def authority(self, handle: str, *, private: bool = False) -> Authority:
        """Return the authority metadata of a record."""
        from perseid.registry.responses import get_authority  # noqa: PLC0415 - few commands need it

        registry = self.session.registry
        with registry.snapshot() as snapshot:
            context = Context(snapshot, self.session.identity, INTERFACE, registry.now())
            return get_authority(context, Query(Handle.parse_lenient(handle), public_only=not private))


@contextmanager
def suggest(registry: "Registry", text: str) -> Iterator[None]:
    """Add what may have been meant to the refusal of a handle that is not found."""
    try:
        yield
    except Refused as refused:
        from perseid.registry.queries.suggest import may_be_typo, suggestions  # noqa: PLC0415 - as above

        if may_be_typo(refused) and not isinstance(refused, NotPublic):
            # Nobody else waits for it, so the limit on lookups is enough. Whoever has the directory has all handles.
            refused.suggestions = suggestions(registry, text, clock=lambda: 0.0, lists_all=True)
        raise

"""Resolving on an installation, which opens the ledger only if it is needed, and with the methods of `Client`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.installation.files import InstallationError
from perseid.registry.installation.public_view import load_settings, open_public_view
from perseid.registry.queries.aliases import find_record
from perseid.registry.queries.resolve import Query
from perseid.registry.results import NotPublic, Refused
from perseid.registry.snapshot import LedgerNeeded
from perseid.schema.namespaces import Authority
from perseid.schema.records import Record

from ._arguments import INTERFACE, OpenInstallation, open_installation
from ._common_options import resolve_directory
from ._output import print_message

if TYPE_CHECKING:
    from perseid.names.uri import Resolver
    from perseid.registry.installation.installation import DatabaseUnreachable
    from perseid.registry.registry import Registry

T = TypeVar("T")


class LocalReader:
    """An installation. It is opened when something needs the ledger; public records are read from the answers view."""

    def __init__(self, directory: Path | None, acting_as: str | None) -> None:
        self._directory = directory
        self._acting_as = acting_as
        self._stack = ExitStack()
        self._has_warned = False

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

        def query(context: Context, clock: int) -> Record:
            return find_record(context, selection, at, clock, follow=follow).to_response()

        is_public = not private and at is None
        if is_public and "session" not in vars(self):
            # What the view refuses is decided again on the ledger, which knows the reason and what was meant.
            with suppress(LedgerNeeded, Refused), open_public_view(resolve_directory(self._directory)) as view:
                return query(Context(view, Anonymous(), INTERFACE, 0), 0)
        return self.read(handle, query, is_public=is_public)

    def read(self, handle: str, query: Callable[[Context, int], T], *, is_public: bool) -> T:
        """Run a query, which gets the current time; a refusal suggests what may have been meant.

        One about a current public record is answered by the answers view if the database is unreachable.
        """
        if is_public and self._problem is not None:
            return self._read_view(query, self._problem)
        registry = self.session.registry
        with suggest(registry, handle), registry.snapshot() as snapshot:
            context = Context(snapshot, self.session.identity, INTERFACE, registry.now())
            return query(context, registry.ledger.log.clock.now())

    def find_resolver(self) -> "Resolver | None":
        """The resolver of the HTTP form of handles: this installation, if its URL is known."""
        return next(iter(load_settings(resolve_directory(self._directory)).http.resolvers), None)

    @cached_property
    def _problem(self) -> "DatabaseUnreachable | None":
        """Why the database cannot be used; None if it can. Each attempt may take seconds."""
        try:
            _ = self.session
        except InstallationError as problem:
            from perseid.registry.installation.installation import DatabaseUnreachable  # noqa: PLC0415 - as above

            if not isinstance(problem, DatabaseUnreachable):
                raise
            return problem
        return None

    def _read_view(self, query: Callable[[Context, int], T], problem: "DatabaseUnreachable") -> T:
        """What the view does not have may have been added since, so that is the problem then."""
        remark = "has no changes yet"
        try:
            with open_public_view(resolve_directory(self._directory), accept_old=True) as view:
                remark = f"has the changes up to entry {view.last_entry:,}"
                result = query(Context(view, Anonymous(), INTERFACE, 0), 0)
        except (LedgerNeeded, Refused):
            problem.add_note(f"The answers view, which {remark}, cannot answer this.")
            raise problem from None
        if not self._has_warned:
            print_message(f"Warning: {problem}")
            print_message(f"This is from the answers view, which {remark}.")
            self._has_warned = True
        return result

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

"""Users and rights of an installation, with the methods of `perseid.client.Client`."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from perseid.names.handle import Handle
from perseid.records.record import ValueRef
from perseid.registry.commands.access import Grant, Revoke
from perseid.registry.commands.minting import DEFAULT_TIMEOUT, retry_until_ready
from perseid.registry.commands.users import AddUser, DisableUser, ResetUser, parse_user_key
from perseid.registry.context import Context, Stage
from perseid.registry.jobs import grant as grant_job
from perseid.registry.jobs.grant import GrantAll
from perseid.registry.queries.access import UserCursor, list_access, list_users
from perseid.registry.registry import decide_command
from perseid.registry.responses import to_access, to_access_changed, to_user, to_user_disabled, to_user_key
from perseid.schema.access import Access, AccessChanged, AccessRole, User, UserDisabled, UserKey
from perseid.schema.jobs import JobResponse

from ._arguments import INTERFACE
from ._local_jobs import LocalJobs

T = TypeVar("T")


class LocalAccess(LocalJobs):
    """The users and rights of an open installation."""

    __slots__ = ()

    def access(self, on: str) -> Access:
        """Return who can do what with a prefix or a record."""
        return self._read(lambda context: to_access(list_access(context, on)))

    def grant(
        self, identity: str, rights: Iterable[str], on: str, *, dry_run: bool = False, note: str = ""
    ) -> AccessChanged:
        """Give an identity or group rights."""
        return self._change(Grant(ValueRef.parse(identity), tuple(rights), on), note, dry_run=dry_run)

    def revoke(
        self, identity: str, on: str, rights: Iterable[str] = (), *, dry_run: bool = False, note: str = ""
    ) -> AccessChanged:
        """Take rights from an identity or group."""
        return self._change(Revoke(ValueRef.parse(identity), tuple(rights), on), note, dry_run=dry_run)

    def grant_in_records(self, prefix: str, roles: Iterable[AccessRole | str], *, note: str = "") -> JobResponse:
        """Start the job that makes existing records name the groups of roles; `wait` runs it."""
        order = GrantAll(prefix, tuple(map(AccessRole, roles)))
        return self.start(grant_job.start(self.session.registry, order, self.session.identity, INTERFACE, note))

    def add_user(self, prefix: str, name: str, *, email: str = "", public_key: str = "", note: str = "") -> UserKey:
        """Add a user."""
        key = parse_user_key(public_key)
        result = retry_until_ready(
            lambda since: self.session.do(AddUser(prefix, name, key, email, since), note), None, DEFAULT_TIMEOUT
        )
        return to_user_key(result, secret=key.secret)

    def users(self, *, prefix: str = "") -> Iterator[User]:
        """Yield the users."""
        after: UserCursor | None = None
        while True:
            page, after = self._read(lambda context, at=after: list_users(context, prefix, at))  # type: ignore[misc]
            yield from map(to_user, page)
            if after is None:
                return

    def disable_user(self, handle: str, *, note: str = "") -> UserDisabled:
        """Remove all keys of a user."""
        return to_user_disabled(self.session.do(DisableUser(Handle.parse_lenient(handle)), note))

    def reset_user(self, handle: str, *, public_key: str = "", note: str = "") -> UserKey:
        """Replace all keys of a user by a new one."""
        key = parse_user_key(public_key)
        return to_user_key(self.session.do(ResetUser(Handle.parse_lenient(handle), key), note), secret=key.secret)

    def _read(self, read: Callable[[Context], T], stage: Stage = Stage.EARLY) -> T:
        registry = self.session.registry
        with registry.snapshot() as snapshot:
            return read(registry.context(snapshot, self.session.identity, INTERFACE, stage=stage))

    def _change(self, command: Grant | Revoke, note: str, *, dry_run: bool) -> AccessChanged:
        if dry_run:
            change = self._read(lambda context: decide_command(command, context).result(0), Stage.COMMIT)
        else:
            change = self.session.do(command, note)
        revokes = isinstance(command, Revoke)
        return self._read(lambda context: to_access_changed(context, change, revokes=revokes, dry_run=dry_run))

"""Operations on users and rights (`api_operations`)."""

from collections.abc import Iterable

from perseid.schema.access import (
    Access,
    AccessChanged,
    AccessQuery,
    AccessRequest,
    AccessRole,
    NewKey,
    NewUser,
    RecordsRequest,
    RevokeRequest,
    User,
    UserDisabled,
    UserKey,
    UserPage,
    UsersQuery,
)
from perseid.schema.common import MAX_PAGE, ChangeNote
from perseid.schema.jobs import JobResponse

from .api_exchange import Repeat
from .api_operations import Input, make_input, operation, pages
from .options import as_members, as_names


class AccessOperations:
    """Users, their rights, and who can do what."""

    @operation("GET", "/access", Access)
    def access(self, on: str) -> Input:
        """Return who can do what with a prefix or a record."""
        return make_input(query=AccessQuery(on))

    @operation("POST", "/grants", AccessChanged, Repeat.ALWAYS)
    def grant(self, identity: str, rights: Iterable[str], on: str, *, dry_run: bool = False, note: str = "") -> Input:
        """Give an identity or group roles or permissions on a prefix, or in a record."""
        return make_input(body=AccessRequest(identity, as_names(rights), on, dry_run, note))

    @operation("POST", "/namespaces/{prefix}/access", JobResponse, Repeat.WITH_KEY)
    def grant_in_records(self, prefix: str, roles: Iterable[AccessRole | str], *, note: str = "") -> Input:
        """Make the existing records of a prefix name the groups of roles, as a job."""
        return make_input(prefix=prefix, body=RecordsRequest(as_members(AccessRole, roles), note))

    @operation("POST", "/revocations", AccessChanged, Repeat.ALWAYS)
    def revoke(
        self, identity: str, on: str, rights: Iterable[str] = (), *, dry_run: bool = False, note: str = ""
    ) -> Input:
        """Take roles or permissions from an identity or group; all of them by default."""
        new = RevokeRequest(identity=identity, rights=as_names(rights), on=on, dry_run=dry_run, note=note)
        return make_input(body=new)

    @operation("POST", "/users", UserKey, Repeat.WITH_KEY)
    def add_user(self, prefix: str, name: str, *, email: str = "", public_key: str = "", note: str = "") -> Input:
        """Add a user. Without a public key a secret is generated, and returned only once."""
        return make_input(body=NewUser(prefix, name, email, public_key, note))

    @pages("/users", UserPage, "users", User)
    def users(self, *, prefix: str = "", page_size: int = MAX_PAGE) -> Input:
        """List the users that you can see."""
        return make_input(query=UsersQuery(page_size, prefix=prefix))

    @operation("POST", "/users/{handle}/disable", UserDisabled, Repeat.ALWAYS)
    def disable_user(self, handle: str, *, note: str = "") -> Input:
        """Remove all keys of a user, end their sessions, and revoke their tokens."""
        return make_input(handle=handle, body=ChangeNote(note))

    @operation("POST", "/users/{handle}/reset", UserKey)
    def reset_user(self, handle: str, *, public_key: str = "", note: str = "") -> Input:
        """Replace all keys of a user by a new one. A generated secret is returned only once."""
        return make_input(handle=handle, body=NewKey(public_key, note))

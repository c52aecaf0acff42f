"""Users and access: add users, grant and revoke rights, and who can do what, as `perseid user` and `grant` do."""

from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec

from perseid.ledger.store.jobs import Job
from perseid.records.errors import InvalidData
from perseid.records.record import ValueRef
from perseid.registry.access.identities import complete_identity
from perseid.registry.commands.access import AccessChange, Grant, Revoke
from perseid.registry.commands.users import (
    AddUser,
    DisableUser,
    NewUserKey,
    ResetUser,
    UserResult,
    find_tokens,
    parse_user_key,
)
from perseid.registry.context import Context, Stage
from perseid.registry.jobs import grant as grant_job
from perseid.registry.jobs.grant import GrantAll
from perseid.registry.queries.access import list_access, list_users
from perseid.registry.registry import decide_command
from perseid.registry.responses import to_access, to_access_changed, to_user, to_user_disabled, to_user_key
from perseid.schema.access import (
    Access,
    AccessChanged,
    AccessQuery,
    AccessRequest,
    NewKey,
    NewUser,
    RecordsRequest,
    RevokeRequest,
    UserDisabled,
    UserKey,
    UserPage,
    UsersQuery,
)
from perseid.schema.common import ChangeNote
from perseid.schema.jobs import JobResponse
from perseid.server.http.context import INTERFACE
from perseid.server.http.v1.api_call import CREATED, REPLAYED_HEADER, ApiCall
from perseid.server.http.v1.job_requests import ACCEPTED, authorize_registry, run_job
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.native.work import WorkKind

ACCESS: Final = Routes(
    "Access",
    "Add users, grant and revoke rights, and see who can do what.",
    defaults={"problems": (401, 403, 404, 409, 422)},
)

_SECRET_NOT_KEPT: Final = "The secret is shown only once. If you lost it, reset the user"  # noqa: S105 - not a secret


@ACCESS.add("GET", "/access", "List who has access", problems=(404, 422))
async def show_access(call: ApiCall, query: AccessQuery) -> Reply[Access]:
    """Return who can do what with a prefix, or with a record: through which HS_ADMIN value, and which groups.

    Without authentication only public values are considered. For a prefix, `records` counts the existing records that
    do not name the group of a role, so that its members have no permissions there.
    """
    return await call.read(lambda context: Reply(to_access(list_access(context, query.on))))


@ACCESS.add("POST", "/grants", "Grant rights", scope="transfer")
async def grant(call: ApiCall, new: AccessRequest) -> Reply[AccessChanged]:
    """Give an identity or group a role, or single permissions, on a prefix or in a record.

    Roles: `owner` has all permissions; `editor` adds, changes and removes values, reads private ones, and mints;
    `minter` mints and lists; `reader` reads private values and lists. On a prefix a role is a group in the prefix
    handle, which new records name; `records` counts existing ones that do not. You can only grant what you have. What
    the identity already has changes nothing. For a prefix a token needs the scope `namespaces` too.
    """
    return await _change(call, Grant(_parse_identity(new), new.rights, new.on), new)


@ACCESS.add("POST", "/revocations", "Revoke rights", scope="transfer")
async def revoke(call: ApiCall, new: RevokeRequest) -> Reply[AccessChanged]:
    """Take roles or permissions from an identity or group; all of them if `rights` is omitted.

    An administrator must remain. `remaining` lists what the identity can still do, for example through another group.
    """
    return await _change(call, Revoke(_parse_identity(new), new.rights, new.on), new)


@ACCESS.add(
    "POST",
    "/namespaces/{prefix}/access",
    "Grant roles in existing records",
    status=ACCEPTED,
    scope="transfer",
    creates=True,
    problems=(401, 403, 404, 422),
)
async def grant_in_records(call: ApiCall, new: RecordsRequest) -> Reply[JobResponse]:
    """Make the existing records of a prefix name the groups of roles, as new records do.

    This is one job, which can be undone. It continues in the background; a small one is complete when the response
    arrives. Records that you cannot change are skipped, and so are those with keys or groups, except for the owners.
    You need MODIFY_ADMIN and LIST_HANDLES on the prefix, and in each record ADD_ADMIN and what the role grants. A token
    needs the scope `namespaces` too.
    """
    registry = authorize_registry(call)
    order = GrantAll(call.names["prefix"], new.roles)

    async def start() -> Job:
        return await call.do(
            WorkKind.WRITE, lambda: grant_job.start(registry, order, call.identity, INTERFACE, new.note)
        )

    return await call.once(lambda: run_job(call, registry, start, discard=True))


async def _change(call: ApiCall, command: Grant | Revoke, new: AccessRequest) -> Reply[AccessChanged]:
    if new.dry_run:

        def try_out(context: Context) -> AccessChange:
            return decide_command(command, replace(context, stage=Stage.COMMIT)).result(0)

        change = await call.read(try_out)
    else:
        change = await call.change(command, note=new.note)
    revokes = isinstance(command, Revoke)
    return await call.read(
        lambda context: Reply(to_access_changed(context, change, revokes=revokes, dry_run=new.dry_run))
    )


# Users


@ACCESS.add("POST", "/users", "Add a user", status=CREATED, scope="transfer", creates=True)
async def add_user(call: ApiCall, new: NewUser) -> Reply[UserKey]:
    """Create a user: a handle with a key, and so an identity. It has no rights until you grant them.

    The handle is minted if the namespace has a suffix scheme. Without `public_key` a secret is generated and shown
    once. A repeated request with the same `Idempotency-Key` adds no second user and returns the identity without the
    secret. You need MODIFY_ADMIN on the prefix handle, and permission to create handles; a token needs the scopes
    `create` and `transfer`, and `mint` where handles are minted.
    """
    key = _parse_key(new.public_key)

    def respond(result: UserResult) -> Reply[UserKey]:
        advice = _SECRET_NOT_KEPT if key.secret else ""
        location = ("Location", f"{BASE}/handles/{quote(str(result.handle), safe='')}")
        return Reply(to_user_key(result, advice=advice), CREATED, (location,), name=str(result.handle))

    reply = await call.create(
        lambda since: AddUser(new.prefix, new.name, key, new.email, since), respond, note=new.note
    )
    if REPLAYED_HEADER in reply.fields or not key.secret:
        return reply
    # The stored response has no secret: it replaces the advice after it was stored.
    created = msgspec.json.decode(reply.body, type=UserKey)
    return Reply(msgspec.structs.replace(created, secret=key.secret, advice=""), CREATED, reply.fields, name=reply.name)


@ACCESS.add("GET", "/users", "List users", problems=(401, 403, 404, 422))
async def get_users(call: ApiCall, query: UsersQuery) -> Reply[UserPage]:
    """List the users that you can see: handles with a key; for a prefix also members of its groups without one.

    A token needs the scopes `read` and `find`.
    """

    def read(context: Context) -> Reply[UserPage]:
        page, following = list_users(context, query.prefix, call.after(tuple[int, str | None]), query.limit)
        return call.page(UserPage([to_user(each) for each in page], call.seal(following)))

    return await call.read(read)


@ACCESS.add("POST", "/users/{handle}/disable", "Disable a user", scope="transfer")
async def disable_user(call: ApiCall, new: ChangeNote) -> Reply[UserDisabled]:
    """Remove all keys and groups in the record of a user, end their sessions, and revoke their tokens, in one commit.

    The rights stay in the records, and are effective again if the user is reset. The only administrator of a prefix
    cannot be disabled. You need MODIFY_ADMIN in the record.
    """
    handle = call.handle()
    command = await call.read(partial(find_tokens, DisableUser(handle)), handle)
    return Reply(to_user_disabled(await call.change(command, handle, new.note)), name=str(handle))


@ACCESS.add("POST", "/users/{handle}/reset", "Reset a user", scope="transfer")
async def reset_user(call: ApiCall, new: NewKey) -> Reply[UserKey]:
    """Replace all keys of a user by a new one, end their sessions, and revoke their tokens, in one commit.

    Without `public_key` a secret is generated and shown once. You need MODIFY_ADMIN in the record.
    """
    handle, key = call.handle(), _parse_key(new.public_key)
    command = await call.read(partial(find_tokens, ResetUser(handle, key)), handle)
    result = await call.change(command, handle, new.note)
    return Reply(to_user_key(result, secret=key.secret), name=str(handle))


def _parse_identity(new: AccessRequest) -> ValueRef:
    try:
        return ValueRef.parse(complete_identity(new.identity, new.on))
    except InvalidData as problem:
        advice = "Use INDEX:HANDLE, as in 300:12345/ann, the handle alone, or the name of a user of the prefix"
        raise InvalidParameter(str(problem), "$.identity", advice) from problem


def _parse_key(text: str) -> NewUserKey:
    try:
        return parse_user_key(text)
    except InvalidData as problem:
        advice = "Send a public key or certificate as PEM, a JWK, or base64: and a Handle key"
        raise InvalidParameter(f"Invalid public key: {problem}", "$.public_key", advice) from problem

"""Who can do what: users, roles and permissions; tokens of programs; and the sessions of the user."""

from functools import reduce
from operator import or_
from typing import Final

from perseid.client.errors import ClientError, Refused
from perseid.names.handle import Handle, fold
from perseid.records.admin import AdminPermission
from perseid.registry.access.identities import complete_identity
from perseid.schema.access import Access, AccessEntry, AccessRole, User, UserKey
from perseid.schema.namespaces import DEFAULT_DAYS, MAX_DAYS, CreatedToken, Namespace, Scope
from perseid.server.http.messages import Response
from perseid.server.http.pages.links import to_visible
from perseid.server.http.pages.texts import _
from perseid.server.http.pages.values import describe_permissions
from perseid.server.native.work import WorkKind

from .access_picture import count_omitted, draw_access
from .advice import get_words
from .requests import ConsoleRequest
from .routing import Pages
from .values import parse_version

ACCESS: Final = Pages("access")
TOKENS: Final = Pages("tokens")

PAGE_SIZE: Final = 100
"""Users or tokens on a page."""

MAX_SEARCHED_PAGES: Final = 10
"""Pages of users among which one is found by name: enough for a thousand users of a prefix."""

ROLES: Final = tuple([role.value for role in AccessRole])


# Access


@ACCESS.get("/access")
async def show_access(console: ConsoleRequest) -> Response:
    """Show who can do what with a prefix or a record, and the users of the prefix."""
    return await _access_page(console)


@ACCESS.post("/access/grant")
async def grant(console: ConsoleRequest) -> Response:
    """Give roles or permissions to an identity."""
    on, rights = console.text("on"), console.text("rights").replace(",", " ").split()
    try:
        identity, named = await _complete_identity(console, console.text("identity"), on)
        if named:
            reason = _("The user named {name} is {handle}").format(name=to_visible(named), handle=to_visible(identity))
            advice = _("Users can change their names: check that you mean this one, and give access again")
            return await _access_page(console, Refused(reason, advice=advice), identity)
        changed = await console.api.grant(identity, rights, on, note=console.text("note"))
    except ClientError as error:
        return await _access_page(console, error)
    return console.redirect("access", on=changed.on, done="granted" if changed.changed else "unchanged")


async def _complete_identity(console: ConsoleRequest, text: str, on: str) -> tuple[str, str]:
    """The handle of a user of the prefix, if a text is only the name, such as `ann`, and the name if the record of the
    user has it: anybody can write any name in their own. A handle comes first. Raises `Refused`.
    """
    own = complete_identity(text, on)
    if own == text:
        return text, ""
    prefix, found, cursor = own.partition("/")[0], [], ""
    for _page in range(MAX_SEARCHED_PAGES):
        try:
            page = await console.api.users(prefix=prefix, page_size=PAGE_SIZE).page(cursor)
        except Refused:  # to a token without the scopes
            break
        if any(fold(user.handle) == fold(own) for user in page.users):
            return own, ""
        found += [user.handle for user in page.users if user.name and user.name.casefold() == text.casefold()]
        if not page.next:
            break
        cursor = page.next
    if len(found) > 1:
        reason = _("{count} users are named {name}").format(count=len(found), name=to_visible(text))
        raise Refused(reason, advice=_("Enter the identity from the table of the users"))
    return (found[0], text) if found else (own, "")


@ACCESS.post("/access/revoke")
async def revoke(console: ConsoleRequest) -> Response:
    """Take roles or permissions from an identity; everything if the form names none."""
    on, rights = console.text("on"), console.text("rights").split()
    try:
        changed = await console.api.revoke(console.text("identity"), on, rights, note=console.text("note"))
    except ClientError as error:
        return await _access_page(console, error)
    return console.redirect("access", on=changed.on, done="revoked" if changed.changed else "unchanged")


@ACCESS.post("/access/records")
async def grant_in_records(console: ConsoleRequest) -> Response:
    """Make the existing records of a prefix name the groups of roles, as a job."""
    try:
        job = await console.api.grant_in_records(console.text("on"), console.text("roles").split())
    except ClientError as error:
        return await _access_page(console, error)
    return console.redirect("jobs", job.job, done="job-started")


@ACCESS.post("/users")
async def add_user(console: ConsoleRequest) -> Response:
    """Add a user, and show a generated secret once."""
    try:
        made = await console.api.add_user(
            console.text("prefix"),
            console.text("name"),
            email=console.text("email"),
            public_key=console.text("public_key"),
        )
    except ClientError as error:
        return await _access_page(console, error)
    return _user_key_page(console, made, _("User {handle}").format(handle=made.handle))


@ACCESS.post("/users/{handle}/reset")
async def reset_user(console: ConsoleRequest) -> Response:
    """Replace the key of a user, and show a generated secret once."""
    try:
        made = await console.api.reset_user(console.names["handle"], public_key=console.text("public_key"))
    except ClientError as error:
        return await _access_page(console, error)
    return _user_key_page(console, made, _("New key of {handle}").format(handle=made.handle))


@ACCESS.post("/users/{handle}/disable")
async def disable_user(console: ConsoleRequest) -> Response:
    """Disable a user."""
    handle = console.names["handle"]
    try:
        await console.api.disable_user(handle)
    except ClientError as error:
        return await _access_page(console, error)
    return console.redirect("access", on=handle.partition("/")[0], done="user-disabled")


def _user_key_page(console: ConsoleRequest, made: UserKey, title: str) -> Response:
    return console.render("user_key.html", title=title, made=made)


async def _access_page(console: ConsoleRequest, problem: ClientError | None = None, identity: str = "") -> Response:
    """Show the access to a prefix or record; `identity` is that of the form, if it is not the entered one."""
    namespaces: list[Namespace] = list((await console.api.namespaces(mine=True).page()).namespaces)
    on = console.text("on") or console.text("prefix") or (namespaces[0].prefix if len(namespaces) == 1 else "")
    handle = Handle.for_lookup(on)
    if handle is not None and handle.is_prefix_handle:  # the record of a prefix has the access to the prefix
        on = handle.suffix
    access: Access | None = None
    users: list[User] = []
    cursor = None
    if on:
        try:
            access = await console.api.access(on)
            prefix = on if "/" not in on else on.partition("/")[0]
            page = await console.api.users(prefix=prefix, page_size=PAGE_SIZE).page(console.cursor())
            users, cursor = page.users, page.next
        except ClientError as error:
            problem = problem or error
    return console.render(
        "access.html",
        title=_("Access"),
        problem=problem,
        namespaces=namespaces,
        on=on,
        access=access,
        picture=draw_access(access) if access is not None and access.entries else "",
        omitted=0 if access is None else count_omitted(access),
        describe_permissions=_describe_permissions,
        users=users,
        next_cursor=cursor,
        roles=ROLES,
        rights_of=lambda entry: [] if access is None else _get_rights(access, entry),
        revocation=lambda entry: "" if access is None else _describe_revocation(access, entry),
        fields=dict(console.form.pairs) | {"identity": identity or console.text("identity")},
    )


def _describe_permissions(names: tuple[str, ...]) -> str:
    """Permissions in words; those without a meaning have their name."""
    known = [AdminPermission[name.upper()] for name in names if name.upper() in AdminPermission.__members__]
    others = [name for name in names if name.upper() not in AdminPermission.__members__]
    return ", ".join([describe_permissions(reduce(or_, known, AdminPermission(0))), *others])


def _get_rights(access: Access, entry: AccessEntry) -> list[str]:
    """The rights that the button of a row revokes: the role of its group, or the permissions of its value.

    Empty if there is nothing to revoke here: the identity is named by other groups, which stay.
    """
    if not entry.groups:
        return list(entry.permissions)
    is_member = "/" not in access.on and len(entry.groups) == 1
    return [entry.role.value] if is_member and entry.role is not None else []


def _describe_revocation(access: Access, entry: AccessEntry) -> str:
    """What the button of a row does."""
    rights = ", ".join([get_words().get(right, right) for right in _get_rights(access, entry)])
    if entry.groups:
        text = _("{identity} loses {rights} on {on}. Its other rights stay.")
    else:
        text = _("{identity} loses {rights} on {on}, from all its values. Rights through groups stay.")
    return text.format(identity=to_visible(entry.identity), rights=rights, on=to_visible(access.on))


# Tokens and sessions


@TOKENS.get("/tokens")
async def list_tokens(console: ConsoleRequest) -> Response:
    """List the tokens and sessions of the user, with a form for another token."""
    return await _tokens_page(console)


@TOKENS.post("/tokens")
async def create_token(console: ConsoleRequest) -> Response:
    """Create a token, and show it once."""
    namespaces = console.text("namespaces").replace(",", " ").split()
    try:
        scopes = console.form.all("scope")
        if not scopes:
            raise Refused(_("No scope was chosen"), advice=_("Choose what the program can do"))
        made = await console.api.create_token(
            scopes,
            namespaces=namespaces,
            all_namespaces=not namespaces,
            expires_in=f"{_read_days(console)}d",
            label=console.text("label"),
        )
    except (ClientError, ValueError) as error:
        problem = error if isinstance(error, ClientError) else ClientError(str(error))
        return await _tokens_page(console, problem)
    return await _tokens_page(console, made=made)


def _read_days(console: ConsoleRequest) -> int:
    text = console.text("days", str(DEFAULT_DAYS))
    if not 1 <= (parse_version(text) or 0) <= MAX_DAYS:
        raise Refused(_("A token can be valid for 1 to {maximum} days").format(maximum=MAX_DAYS))
    return int(text)


@TOKENS.post("/tokens/{token}/revoke")
async def revoke_token(console: ConsoleRequest) -> Response:
    """Revoke a token."""
    try:
        await console.api.revoke_token(console.names["token"])
    except ClientError as error:
        return await _tokens_page(console, error)
    return console.redirect("tokens", done="token-revoked")


async def _tokens_page(
    console: ConsoleRequest, problem: ClientError | None = None, made: CreatedToken | None = None
) -> Response:
    tokens, cursor, shows_all = [], None, console.query.first("all") or ""
    try:
        page = await console.api.tokens(all=bool(shows_all), page_size=PAGE_SIZE).page(console.cursor())
        tokens, cursor = page.tokens, page.next
    except ClientError as error:
        problem = problem or error
    server, session = console.request_context.server, console.session
    assert session is not None  # noqa: S101 - the route needs one
    now, table = server.time(), server.web_sessions
    sessions = await console.request_context.do(
        WorkKind.READ, lambda: table.of_identity(session.identity, now, session.id)
    )
    return console.render(
        "tokens.html",
        title=_("Tokens"),
        problem=problem,
        tokens=tokens,
        next_cursor=cursor,
        shows_all=shows_all,
        made=made,
        scopes={scope.value: allows for scope, allows in _describe_scopes().items()},
        max_days=MAX_DAYS,
        label=console.text("label") if made is None else "",
        chosen=console.form.all("scope") if made is None else (),
        prefixes=console.text("namespaces") if made is None else "",
        days=console.text("days", str(DEFAULT_DAYS)),
        sessions=sessions,
    )


def _describe_scopes() -> dict[Scope, str]:
    """What each scope allows."""
    return {
        Scope.READ: _("read private values, unpublished identifiers and the history"),
        Scope.FIND: _("list and find identifiers, and read the log"),
        Scope.MINT: _("mint and reserve identifiers"),
        Scope.CREATE: _("create identifiers with a chosen suffix"),
        Scope.UPDATE: _("change the values of records, and many links at once"),
        Scope.PUBLISH: _("publish and unpublish identifiers"),
        Scope.TOMBSTONE: _("create tombstones, and restore records"),
        Scope.DELETE: _("delete records"),
        Scope.TRANSFER: _("transfer records, and change administrators, groups and keys"),
        Scope.NAMESPACES: _("create namespaces, and change policies and access"),
        Scope.ADMIN: _("everything for which you must be a server administrator; only without prefixes below"),
    }

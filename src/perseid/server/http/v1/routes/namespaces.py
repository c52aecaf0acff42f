"""Routes of namespaces, their policies and authority metadata, and of types."""

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final
from urllib.parse import quote

import msgspec

from perseid.names.handle import fold
from perseid.records.data_types import Definition
from perseid.registry.access.permissions import display_name
from perseid.registry.commands import namespaces
from perseid.registry.commands.create_namespace import CreateNamespace
from perseid.registry.commands.namespaces import AddNamespace, RemoveNamespace
from perseid.registry.commands.records import Create, require_identity
from perseid.registry.context import Context
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.types import definition_values
from perseid.registry.queries import namespaces as queries
from perseid.registry.queries.namespaces import (
    RETIRED,
    ChangePolicy,
    get_policy,
    get_type,
    list_own_prefixes,
    list_prefixes,
)
from perseid.registry.queries.paging import PageBudget
from perseid.registry.queries.resolve import Query
from perseid.registry.responses import get_authority, to_created_namespace, to_namespace, to_policy, to_type
from perseid.registry.snapshot import Snapshot, stored_policy
from perseid.schema.namespaces import (
    Authority,
    CreatedNamespace,
    Namespace,
    NamespacePage,
    NamespaceRemoval,
    NamespacesQuery,
    NewNamespace,
    NewPolicy,
    NewType,
    PolicyChanged,
    PolicyResponse,
    RemovedNamespace,
    TypePage,
    TypeResponse,
    TypesQuery,
)
from perseid.schema.records import CreatedRecord
from perseid.server.http.v1.api_call import CREATED, ApiCall, RequireIdentity, parse_value_ref
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.validation import InvalidParameter

NAMESPACES: Final = Routes("Namespaces", "Namespaces: prefixes with policies that apply to every interface.")


# Namespaces


@NAMESPACES.add("GET", "/namespaces", "List namespaces", scope="admin", problems=(401, 403))
async def list_namespaces(call: ApiCall, query: NamespacesQuery) -> Reply[NamespacePage]:
    """List the namespaces of this server, sorted by prefix. Requires a server administrator.

    With `mine` every user gets those in which they can create or list handles.
    """

    def read(context: Context) -> Reply[NamespacePage]:
        after, following = call.after(str), None
        if query.mine:
            prefixes, following = list_own_prefixes(context, after or "")
        else:
            prefixes = list_prefixes(context.snapshot, context.identity)
        remaining = [prefix for prefix in prefixes if after is None or fold(prefix) > after]
        budget = PageBudget(query.limit)
        result: list[Namespace] = []
        for each in map(partial(to_namespace, context.snapshot), islice(remaining, query.limit)):
            if not budget.take(len(msgspec.json.encode(each))):
                break
            result.append(each)
        last = fold(result[-1].prefix) if len(remaining) > len(result) else following
        return call.page(NamespacePage(result, call.seal(last)))

    return await call.read(read)


@NAMESPACES.add("GET", "/namespaces/{prefix}", "Get a namespace", problems=(404,))
async def show_namespace(call: ApiCall) -> Reply[Namespace]:
    """Return a summary of a namespace. `showPolicy` returns the whole policy."""
    prefix = call.names["prefix"]

    def read(context: Context) -> Namespace:
        get_policy(context.snapshot, prefix)
        return to_namespace(context.snapshot, prefix)

    return Reply(await call.read(read))


@NAMESPACES.add(
    "POST",
    "/namespaces",
    "Create a namespace",
    status=CREATED,
    scope="namespaces",
    creates=True,
    problems=(401, 403, 409, 422),
)
async def add_namespace(call: ApiCall, new: NewNamespace) -> Reply[CreatedNamespace]:
    """Create a namespace: host a prefix, with a policy that applies to every interface.

    The policy can be changed later; changing the case rule needs confirmation. If the policy requires a creator and you
    give none, a record for it is created, which names itself. Either everything is created or nothing.

    To create that record you need permission to create handles in the new namespace, and a token needs the scope `mint`
    too.
    """
    rules = await call.read(lambda context: _authorized_policy(call, context, new))
    administrators = [
        parse_value_ref(text, f"$.administrators[{number}]") for number, text in enumerate(new.administrators)
    ]
    members = administrators or list(call.registry.rules.administration.server_admins)
    values = administrator_values(new.prefix, members) if members else ()
    order = AddNamespace(new.prefix, rules, values, require_administrators=bool(administrators))

    def replay(snapshot: Snapshot, seq: int, _: int) -> Reply[CreatedNamespace] | None:
        """Build the reply again: the first entry has the policy."""
        policy = stored_policy(snapshot.reader.entry(seq))
        if policy is None:
            return None
        types = namespaces.types_elsewhere(snapshot, policy)
        return _created_reply(namespaces.Namespace(new.prefix, policy, seq, types))

    return await call.create(lambda since: CreateNamespace(order, since), _created_reply, note=new.note, replay=replay)


def _created_reply(created: namespaces.Namespace) -> Reply[CreatedNamespace]:
    result = to_created_namespace(created)
    return Reply(result, CREATED, (("Location", f"{BASE}/namespaces/{quote(created.prefix, safe='')}"),))


@NAMESPACES.add(
    "DELETE",
    "/namespaces/{prefix}",
    "Remove or retire a namespace",
    scope="namespaces",
    problems=(401, 403, 404, 409, 422),
)
async def remove_namespace(call: ApiCall, query: NamespaceRemoval) -> Reply[RemovedNamespace]:
    """Remove a namespace in which no handle was ever registered, or retire one.

    The handles of a retired namespace resolve and can be changed as before, but no new ones are registered. To reopen
    it, set `retired = false` in its policy. A removed namespace is no longer hosted; its prefix handle and the history
    stay, and it can be created again.
    """
    prefix = call.names["prefix"]
    if query.retire:
        seq = (await call.change(ChangePolicy(prefix, RETIRED), note=query.note)).made.seq
    else:
        seq = await call.change(RemoveNamespace(prefix), note=query.note)
    return Reply(RemovedNamespace(prefix, seq, query.retire))


@NAMESPACES.add("GET", "/namespaces/{prefix}/policy", "Get the policy of a namespace", problems=(404,))
async def show_policy(call: ApiCall) -> Reply[PolicyResponse]:
    """Return the policy of a namespace, as TOML and by key."""
    prefix = call.names["prefix"]
    rules = await call.read(lambda context: get_policy(context.snapshot, prefix))
    return Reply(to_policy(prefix, rules))


@NAMESPACES.add(
    "PUT",
    "/namespaces/{prefix}/policy",
    "Change the policy of a namespace",
    scope="namespaces",
    problems=(401, 403, 404, 422),
)
async def change_policy(call: ApiCall, new: NewPolicy) -> Reply[PolicyChanged]:
    """Change the policy of a namespace: the keys in the text.

    If the text names a profile, all other keys are those of the profile, except purpose, creator and administrators,
    which stay. The new policy applies to later changes; existing records stay readable.
    """
    prefix = call.names["prefix"]
    done = await call.change(ChangePolicy(prefix, new.policy, new.change_case), note=new.note)
    return Reply(PolicyChanged(done.made.prefix, done.made.seq, done.changed))


# Authority metadata


@NAMESPACES.add("GET", "/handles/{handle}/authority", "Get the authority metadata of a handle", problems=(404,))
async def show_authority(call: ApiCall) -> Reply[Authority]:
    """Return creation date, creator and owners of an identifier, if the policy of its namespace requires them."""
    handle = call.handle()
    authority = await call.read(lambda context: get_authority(context, Query(handle)), handle)
    return Reply(authority, name=str(handle))


def _authorized_policy(call: ApiCall, context: Context, new: NewNamespace) -> Policy:
    """Parse the policy, only for an authenticated caller, and in a pool."""
    require_identity(context, f"create the namespace {display_name(new.prefix)}")
    return _initial_policy(call, new)


def _initial_policy(call: ApiCall, new: NewNamespace) -> Policy:
    if new.policy:
        if new.profile or new.case is not None:
            message = "`profile` and `case` cannot be combined with `policy`; put them into the policy"
            raise InvalidParameter(message, "$.policy")
        rules = with_group_administrators(Policy.from_toml(new.policy))
    else:
        profile = PROFILES.get(new.profile or "free")
        if profile is None:
            raise InvalidParameter("Unknown profile", "$.profile", f"Use one of {', '.join(PROFILES)}")
        rules = with_group_administrators(profile)
        if new.case is not None:
            rules = replace(rules, case=new.case)
    if new.creator:
        rules = replace(rules, default_creator=str(call.parse_reference(new.creator, "$.creator", legal=True)))
    return replace(rules, purpose=new.purpose) if new.purpose else rules


TYPES: Final = Routes("Types", "Register and list types of values. A type is a handle that resolves to its definition.")


@TYPES.add("GET", "/types", "List types", scope="find", problems=(401, 403))
async def list_types(call: ApiCall, query: TypesQuery) -> Reply[TypePage]:
    """List the types registered here: records with a definition, a value of the type `PERSEID_TYPE`.

    The list covers namespaces whose handles you can list. With `prefix`, missing permission is an error.
    """

    def read(context: Context) -> Reply[TypePage]:
        snapshot, identity, after = context.snapshot, context.identity, call.after(str)
        types, following = queries.list_types(snapshot, identity, query.prefix, after, query.limit)
        return call.page(TypePage([to_type(each) for each in types], call.seal(following)))

    return await call.read(read)


@TYPES.add("GET", "/types/{handle}", "Get a type", problems=(404,))
async def show_type(call: ApiCall) -> Reply[TypeResponse]:
    """Return the definition of a type: name, meaning, pattern or schema."""
    handle = call.handle()
    return await call.read(
        lambda context: Reply(to_type(get_type(context.snapshot, handle), check=True), name=str(handle)), handle
    )


@TYPES.add("POST", "/types", "Register a type", status=201, scope="create", creates=True, problems=(401, 403, 409, 422))
async def add_type(call: ApiCall, new: NewType) -> Reply[CreatedRecord]:
    """Register a type: create its record, with a definition for people and programs.

    A namespace whose policy has `registered_types = true` accepts only values of registered types; with `validate_types
    = true` their data must match the pattern or the schema.
    """
    handle = call.parse_handle(new.handle, new=True)
    if new.pattern is not None and new.schema is not None:
        raise InvalidParameter("`pattern` cannot be combined with `schema`", "$.pattern", "Give only one of them")
    definition = Definition.make(
        new.name or handle.suffix,
        new.description,
        pattern=new.pattern,
        schema=new.schema,
        example=new.example,
    )
    command = RequireIdentity(Create(handle, definition_values(definition)), f"create {display_name(handle)}")
    return await call.create(
        lambda _: command,
        lambda created: Reply(CreatedRecord(str(created.handle), created.seq), 201, name=str(created.handle)),
        about=handle,
        note=new.note,
    )

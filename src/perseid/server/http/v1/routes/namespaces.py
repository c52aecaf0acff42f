"""Namespaces and their rules, and what a name says about itself as an identifier."""

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from perseid.names.characters import fold
from perseid.names.handle import CaseRule, Handle
from perseid.registry.access.permissions import display_name
from perseid.registry.commands import namespaces
from perseid.registry.commands.create_namespace import CreateNamespace
from perseid.registry.commands.minting import MintInputs
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context
from perseid.registry.installation.setup import administrator_values, with_group_administrators
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import MAX_TEXT_BYTES
from perseid.registry.queries.namespaces import ChangePolicy, dump_policy, get_policy, list_prefixes, summarize
from perseid.registry.queries.paging import PageBudget
from perseid.registry.queries.resolve import Query, get_authority_metadata, resolve
from perseid.registry.snapshot import stored_policy
from perseid.server.http.v1.calls import REPLAYED_HEADER, ApiCall
from perseid.server.http.v1.changes import CREATED
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.structures import (
    HANDLE_PARAMETER,
    AlreadyDone,
    Doc,
    NextCursor,
    Note,
    Paging,
    RequestBody,
    ResponseBody,
    Seq,
)
from perseid.server.http.v1.validation import InvalidParameter
from perseid.server.http.v1.values import parse_value_ref
from perseid.server.native.steps import WorkKind

SECTION: Final = Routes("Namespaces", "A namespace is a prefix with its rules, which hold at every door.")

PREFIX_PARAMETER: Final = "The prefix of the namespace, as in `12345`."

MAX_ADMINISTRATORS: Final = 100
"""Administrators that a new namespace is given; a group has room for more."""

_PARAMETERS: Final = {"prefix": PREFIX_PARAMETER}

Prefix = Annotated[str, Doc("The prefix.", min_length=1, max_length=2_048, examples=["12345"])]
Toml = Annotated[
    str,
    Doc(
        f"The rules in TOML, as `perseid namespace policy` prints them: {MAX_TEXT_BYTES:,} octets at most.",
        max_length=MAX_TEXT_BYTES,
        examples=['purpose = "Maps"\nwho_may_list = "public"\n'],
    ),
]


class NewNamespace(RequestBody, frozen=True):
    """A namespace that is to be made."""

    prefix: Prefix
    profile: Annotated[
        str, Doc(f"Which rules to begin with: {', '.join(PROFILES)}. `free` if it is left out.", examples=["free"])
    ] = ""
    case: Annotated[
        CaseRule | None, Doc("Whether small and capital letters of a suffix are told apart; fixed from then on.")
    ] = None
    creator: Annotated[str, Doc("The creator of identifiers that name none: a handle.", max_length=4_096)] = ""
    purpose: Annotated[str, Doc("What the namespace is for, in words that last.", max_length=2_000)] = ""
    policy: Annotated[Toml, Doc("Rules of your own in TOML, in place of a profile.")] = ""
    administrators: Annotated[
        tuple[str, ...],
        Doc(
            "Who administers the prefix and its names, as `INDEX:HANDLE`; the server's administrators if left out.",
            max_length=MAX_ADMINISTRATORS,
            examples=[["300:0.NA/12345"]],
        ),
    ] = ()
    note: Note = ""


class NewPolicy(RequestBody, frozen=True):
    """Rules that a namespace is to have."""

    policy: Toml
    change_case: Annotated[bool, Doc("The case rule is meant to change, for all names there are.")] = False
    note: Note = ""


class Namespace(ResponseBody, frozen=True):
    """What a namespace is, in a few words."""

    prefix: Prefix
    profile: Annotated[str, Doc("Where its rules came from.", examples=["pilin"])]
    scheme: Annotated[str, Doc("Which suffixes are valid and how new ones are made.", examples=["pilin"])]
    case: Annotated[str, Doc("Whether small and capital letters of a suffix are told apart.")]
    who_may_mint: Annotated[str, Doc("Who may make names.", examples=["administrators"])]
    who_may_list: Annotated[str, Doc("Who may see its names together.", examples=["administrators"])]
    authority: Annotated[bool, Doc("Whether every record says when it was created, by whom, and who owns it.")]
    deletion: Annotated[str, Doc("Whether names may be deleted.", examples=["tombstone"])]
    purpose: Annotated[str, Doc("What the namespace is for.")] = ""
    creator: Annotated[str | None, Doc("The creator of identifiers that name none.")] = None
    administrators: Annotated[
        tuple[str, ...], Doc("Whom the prefix handle names as administrators, as far as everybody may read it.")
    ] = ()


class NamespacePage(ResponseBody, frozen=True):
    """Namespaces, in the order of their prefixes."""

    namespaces: Annotated[list[Namespace], Doc("The namespaces of the page.")]
    next: NextCursor = None


class CreatedNamespace(ResponseBody, frozen=True):
    """A namespace that was made."""

    prefix: Prefix
    profile: Annotated[str, Doc("Where its rules came from.")]
    seq: Seq
    creator: Annotated[
        str | None, Doc("The creator of identifiers that name none; its record was made if need be.")
    ] = None
    types_elsewhere: Annotated[tuple[str, ...], Doc("Types of values that are defined elsewhere.")] = ()


class PolicyResponse(ResponseBody, frozen=True):
    """All the rules of a namespace."""

    prefix: Prefix
    policy: Toml
    rules: Annotated[dict[str, Any], Doc("The same by their keys, which docs/reference/policy.md explains.")]


class PolicyChanged(ResponseBody, frozen=True):
    """That a namespace has other rules."""

    prefix: Prefix
    seq: Seq
    changed: Annotated[tuple[str, ...], Doc("The keys of the rules that are others now; none if nothing differs.")]


class Party(ResponseBody, frozen=True):
    """Somebody who created or owns an identifier."""

    uri: Annotated[str, Doc("Their handle as `hdl:` URI.", examples=["hdl:12345/ann"])]
    verified: Annotated[bool, Doc("Whether it is known to resolve.")]


class Authority(ResponseBody, frozen=True, omit_defaults=False):
    """What a name says about itself as an identifier."""

    handle: Annotated[str, Doc("The name as it is registered.")]
    asked: Annotated[bool, Doc("Whether the policy of its namespace asks records to say this; if not, it is empty.")]
    created: Annotated[str | None, Doc("When it was first associated with its thing, in ISO 8601.")] = None
    updated: Annotated[str | None, Doc("When its record last changed, in ISO 8601.")] = None
    creator: Annotated[Party | None, Doc("Who created the identifier.")] = None
    owners: Annotated[tuple[Party, ...], Doc("Who owns it, if they are not the creator.")] = ()


# Namespaces


@SECTION.add(
    "GET",
    "/namespaces",
    "listNamespaces",
    "The namespaces",
    response=NamespacePage,
    query=Paging,
    scope="admin",
    problems=(401, 403),
)
async def list_namespaces(call: ApiCall) -> Reply:
    """The namespaces of this server, in the order of their prefixes. It takes a server administrator."""
    limit, after = call.asked(Paging).limit, await call.after(str)

    def page(context: Context) -> tuple[list[Namespace], str | None]:
        prefixes = sorted(list_prefixes(context.snapshot, context.identity), key=fold)
        behind = [prefix for prefix in prefixes if after is None or fold(prefix) > after]
        room = PageBudget(limit)
        result: list[Namespace] = []
        for each in map(partial(_to_namespace, context), islice(behind, limit)):
            if not room.take(len(msgspec.json.encode(each))):
                break
            result.append(each)
        return result, fold(result[-1].prefix) if len(behind) > len(result) else None

    def respond(found: tuple[list[Namespace], str | None]) -> Reply:
        following = call.seal(found[1])
        return Reply(NamespacePage(found[0], following), next=following)

    return await call.respond(page, respond)


@SECTION.add(
    "GET",
    "/namespaces/{prefix}",
    "showNamespace",
    "A namespace",
    response=Namespace,
    problems=(404,),
    parameters=_PARAMETERS,
)
async def show_namespace(call: ApiCall) -> Reply:
    """What a namespace is, in a few words. All its rules are in its policy."""
    prefix = call.names["prefix"]

    def read(context: Context) -> Namespace:
        get_policy(context.snapshot, prefix)
        return _to_namespace(context, prefix)

    return Reply(await call.read(read))


@SECTION.add(
    "POST",
    "/namespaces",
    "addNamespace",
    "Make a namespace",
    body=NewNamespace,
    response=CreatedNamespace,
    status=CREATED,
    scope="namespaces",
    creates=True,
    problems=(401, 403, 409, 422),
)
async def add_namespace(call: ApiCall) -> Reply:
    """Make a namespace: become responsible for a prefix, with rules that hold at every door.

    The case rule is fixed from then on; all else can be changed with its policy. Where the rules ask for a creator and
    you name none, a record is made for it, which names itself. All of it is made, or nothing.

    Where such a record is made, you have to be allowed to make names in the new namespace, and a token needs the word
    `mint` in its scope besides.
    """
    new = call.payload(NewNamespace)
    rules = await call.read(lambda context: _authorized_policy(context, new))
    payload = [parse_value_ref(text, f"$.administrators[{number}]") for number, text in enumerate(new.administrators)]
    members = payload or list(call.registry.rules.administration.server_admins)
    values = administrator_values(new.prefix, members) if members else ()
    order = AddNamespace(new.prefix, rules, values, require_administrators=bool(payload))
    inputs = MintInputs.of(call.registry)
    reply = await call.create(lambda since: CreateNamespace(inputs, order, since), _created_reply, note=new.note)
    return await _replay(call, new.prefix, reply)


def _created_reply(made: namespaces.Namespace) -> Reply:
    creator = made.policy.default_creator or None
    result = CreatedNamespace(made.prefix, made.policy.profile, made.seq, creator, made.types_elsewhere)
    return Reply(result, CREATED, (("Location", f"{BASE}/namespaces/{quote(made.prefix, safe='')}"),))


async def _replay(call: ApiCall, prefix: str, reply: Reply) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: its first entry has the rules."""
    before = reply.body
    if not isinstance(before, AlreadyDone):
        return reply
    registry, seq = call.registry, before.seq

    def read() -> namespaces.Namespace | None:
        with registry.snapshot() as snapshot:
            policy = stored_policy(snapshot.reading.entry(seq))
            if policy is None:
                return None
            return namespaces.Namespace(prefix, policy, seq, namespaces.types_elsewhere(snapshot, policy))

    found = await call.do(WorkKind.READ, read)
    if found is None:
        return reply
    again = _created_reply(found)
    return replace(again, headers=(*again.headers, REPLAYED_HEADER))


@SECTION.add(
    "GET",
    "/namespaces/{prefix}/policy",
    "showPolicy",
    "The rules of a namespace",
    response=PolicyResponse,
    problems=(404,),
    parameters=_PARAMETERS,
)
async def show_policy(call: ApiCall) -> Reply:
    """All the rules of a namespace, as text and by their keys."""
    prefix = call.names["prefix"]
    rules = await call.read(lambda context: get_policy(context.snapshot, prefix))
    return Reply(PolicyResponse(prefix, rules.to_toml(), dump_policy(rules)))


@SECTION.add(
    "PUT",
    "/namespaces/{prefix}/policy",
    "changePolicy",
    "Change the rules of a namespace",
    body=NewPolicy,
    response=PolicyChanged,
    scope="namespaces",
    problems=(401, 403, 404, 422),
    parameters=_PARAMETERS,
)
async def change_policy(call: ApiCall) -> Reply:
    """Change the rules of a namespace: those that the text has.

    If it names a profile, all others are that profile's, but for the purpose, the creator and the administrators, which
    are the namespace's own. New rules hold for changes from then on; nothing that exists becomes unreadable.
    """
    prefix, new = call.names["prefix"], call.payload(NewPolicy)
    done = await call.change(ChangePolicy(prefix, new.policy, new.change_case), note=new.note)
    return Reply(PolicyChanged(done.made.prefix, done.made.seq, done.changed))


# Names


@SECTION.add(
    "GET",
    "/handles/{handle}/authority",
    "showAuthority",
    "What a name says about itself",
    response=Authority,
    problems=(404,),
    parameters={"handle": HANDLE_PARAMETER},
)
async def show_authority(call: ApiCall) -> Reply:
    """Since when the identifier exists, who created it and who owns it, where its namespace asks records to say so."""
    handle = call.handle()

    def read(context: Context) -> Authority:
        found = resolve(Query(handle), context)
        said = get_authority_metadata(context.snapshot, context.snapshot.stored(found.base or handle))
        plain = {} if said is None else said.to_json()
        return msgspec.convert({"handle": str(found.registered), "asked": said is not None, **plain}, Authority)

    return Reply(await call.read(read, handle), name=str(handle))


def _to_namespace(context: Context, prefix: str) -> Namespace:
    plain = summarize(context.snapshot, prefix, public_only=True)
    return msgspec.convert({_to_camel_case(name): said for name, said in plain.items()}, Namespace)


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _authorized_policy(context: Context, new: NewNamespace) -> Policy:
    """The rules for somebody who is known: a text of rules is read for nobody else, and where nobody waits for it."""
    require_identity(context, f"make the namespace {display_name(new.prefix)}")
    return _initial_policy(new)


def _initial_policy(new: NewNamespace) -> Policy:
    """The rules that a new namespace begins with."""
    if new.policy:
        if new.profile or new.case is not None:
            message = "rules of your own name their profile and case themselves; leave those members out"
            raise InvalidParameter(message, "$.policy")
        rules = with_group_administrators(Policy.from_toml(new.policy))
    else:
        profile = PROFILES.get(new.profile or "free")
        if profile is None:
            raise InvalidParameter(f"there is no such profile; there are {', '.join(PROFILES)}", "$.profile")
        rules = with_group_administrators(profile)
        if new.case is not None:
            rules = replace(rules, case=new.case)
    if new.creator:
        rules = replace(rules, default_creator=str(Handle.parse(new.creator)))
    return replace(rules, purpose=new.purpose) if new.purpose else rules

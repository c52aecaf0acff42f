"""Namespaces and their rules, and what a name says about itself as an identifier."""

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from perseid.names.characters import fold
from perseid.names.handle import CaseRule, Handle
from perseid.registry.access.permissions import shown
from perseid.registry.commands import namespaces
from perseid.registry.commands.create_namespace import MakeNamespace
from perseid.registry.commands.minting import Maker
from perseid.registry.commands.namespaces import AddNamespace
from perseid.registry.commands.records import require_identity
from perseid.registry.context import Context
from perseid.registry.installation.setup import administered_by, with_group
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import MAX_TEXT_OCTETS
from perseid.registry.queries.namespaces import ChangePolicy, all_rules, known_policy, listed_prefixes, summary
from perseid.registry.queries.paging import Room
from perseid.registry.queries.resolve import Query, authority_of, resolve
from perseid.registry.snapshot import stored_policy
from perseid.server.http.v1.calls import REPLAYED, ApiCall
from perseid.server.http.v1.changes import CREATED
from perseid.server.http.v1.routing import BASE, Reply, Routes
from perseid.server.http.v1.structures import HANDLE_STEP, About, DoneBefore, Given, NextCursor, Note, Paging, Seq, Told
from perseid.server.http.v1.validation import Unfitting
from perseid.server.http.v1.values import party
from perseid.server.native.steps import Kind

CHAPTER: Final = Routes("Namespaces", "A namespace is a prefix with its rules, which hold at every door.")

PREFIX_STEP: Final = "The prefix of the namespace, as in `12345`."

MAX_ADMINISTRATORS: Final = 100
"""Administrators that a new namespace is given; a group has room for more."""

_PLACE: Final = {"prefix": PREFIX_STEP}

Prefix = Annotated[str, About("The prefix.", min_length=1, max_length=2_048, examples=["12345"])]
Toml = Annotated[
    str,
    About(
        f"The rules in TOML, as `perseid namespace policy` prints them: {MAX_TEXT_OCTETS:,} octets at most.",
        max_length=MAX_TEXT_OCTETS,
        examples=['purpose = "Maps"\nwho_may_list = "public"\n'],
    ),
]


class NewNamespace(Given, frozen=True):
    """A namespace that is to be made."""

    prefix: Prefix
    profile: Annotated[
        str, About(f"Which rules to begin with: {', '.join(PROFILES)}. `free` if it is left out.", examples=["free"])
    ] = ""
    case: Annotated[
        CaseRule | None, About("Whether small and capital letters of a suffix are told apart; fixed from then on.")
    ] = None
    creator: Annotated[str, About("The creator of identifiers that name none: a handle.", max_length=4_096)] = ""
    purpose: Annotated[str, About("What the namespace is for, in words that last.", max_length=2_000)] = ""
    policy: Annotated[Toml, About("Rules of your own in TOML, in place of a profile.")] = ""
    administrators: Annotated[
        tuple[str, ...],
        About(
            "Who administers the prefix and its names, as `INDEX:HANDLE`; the server's administrators if left out.",
            max_length=MAX_ADMINISTRATORS,
            examples=[["300:0.NA/12345"]],
        ),
    ] = ()
    note: Note = ""


class NewPolicy(Given, frozen=True):
    """Rules that a namespace is to have."""

    policy: Toml
    change_case: Annotated[bool, About("The case rule is meant to change, for all names there are.")] = False
    note: Note = ""


class Namespace(Told, frozen=True):
    """What a namespace is, in a few words."""

    prefix: Prefix
    profile: Annotated[str, About("Where its rules came from.", examples=["pilin"])]
    scheme: Annotated[str, About("Which suffixes are valid and how new ones are made.", examples=["pilin"])]
    case: Annotated[str, About("Whether small and capital letters of a suffix are told apart.")]
    who_may_mint: Annotated[str, About("Who may make names.", examples=["administrators"])]
    who_may_list: Annotated[str, About("Who may see its names together.", examples=["administrators"])]
    authority: Annotated[bool, About("Whether every record says when it was created, by whom, and who owns it.")]
    deletion: Annotated[str, About("Whether names may be deleted.", examples=["tombstone"])]
    purpose: Annotated[str, About("What the namespace is for.")] = ""
    creator: Annotated[str | None, About("The creator of identifiers that name none.")] = None
    administrators: Annotated[
        tuple[str, ...], About("Whom the prefix handle names as administrators, as far as everybody may read it.")
    ] = ()


class Namespaces(Told, frozen=True):
    """Namespaces, in the order of their prefixes."""

    namespaces: Annotated[list[Namespace], About("The namespaces of the page.")]
    next: NextCursor = None


class MadeNamespace(Told, frozen=True):
    """A namespace that was made."""

    prefix: Prefix
    profile: Annotated[str, About("Where its rules came from.")]
    seq: Seq
    creator: Annotated[
        str | None, About("The creator of identifiers that name none; its record was made if need be.")
    ] = None
    types_elsewhere: Annotated[tuple[str, ...], About("Types of values that are defined elsewhere.")] = ()


class PolicyTold(Told, frozen=True):
    """All the rules of a namespace."""

    prefix: Prefix
    policy: Toml
    rules: Annotated[dict[str, Any], About("The same by their keys, which docs/reference/policy.md explains.")]


class PolicyChanged(Told, frozen=True):
    """That a namespace has other rules."""

    prefix: Prefix
    seq: Seq
    changed: Annotated[tuple[str, ...], About("The keys of the rules that are others now; none if nothing differs.")]


class Party(Told, frozen=True):
    """Somebody who created or owns an identifier."""

    uri: Annotated[str, About("Their handle as `hdl:` URI.", examples=["hdl:12345/ann"])]
    verified: Annotated[bool, About("Whether it is known to resolve.")]


class Authority(Told, frozen=True, omit_defaults=False):
    """What a name says about itself as an identifier."""

    handle: Annotated[str, About("The name as it is registered.")]
    asked: Annotated[bool, About("Whether the policy of its namespace asks records to say this; if not, it is empty.")]
    created: Annotated[str | None, About("When it was first associated with its thing, in ISO 8601.")] = None
    updated: Annotated[str | None, About("When its record last changed, in ISO 8601.")] = None
    creator: Annotated[Party | None, About("Who created the identifier.")] = None
    owners: Annotated[tuple[Party, ...], About("Who owns it, if they are not the creator.")] = ()


# Namespaces


@CHAPTER.add(
    "GET",
    "/namespaces",
    "listNamespaces",
    "The namespaces",
    answer=Namespaces,
    query=Paging,
    scope="admin",
    problems=(401, 403),
)
async def list_namespaces(call: ApiCall) -> Reply:
    """The namespaces of this server, in the order of their prefixes. It takes a server administrator."""
    limit, after = call.asked(Paging).limit, await call.after(str)

    def page(context: Context) -> tuple[list[Namespace], str | None]:
        prefixes = sorted(listed_prefixes(context.facts, context.who), key=fold)
        behind = [prefix for prefix in prefixes if after is None or fold(prefix) > after]
        room = Room(limit)
        told: list[Namespace] = []
        for each in map(partial(_told, context), islice(behind, limit)):
            if not room.take(len(msgspec.json.encode(each))):
                break
            told.append(each)
        return told, fold(told[-1].prefix) if len(behind) > len(told) else None

    def tell(found: tuple[list[Namespace], str | None]) -> Reply:
        following = call.sealed(found[1])
        return Reply(Namespaces(found[0], following), next=following)

    return await call.tell(page, tell)


@CHAPTER.add(
    "GET",
    "/namespaces/{prefix}",
    "showNamespace",
    "A namespace",
    answer=Namespace,
    problems=(404,),
    parameters=_PLACE,
)
async def show_namespace(call: ApiCall) -> Reply:
    """What a namespace is, in a few words. All its rules are in its policy."""
    prefix = call.names["prefix"]

    def read(context: Context) -> Namespace:
        known_policy(context.facts, prefix)
        return _told(context, prefix)

    return Reply(await call.read(read))


@CHAPTER.add(
    "POST",
    "/namespaces",
    "addNamespace",
    "Make a namespace",
    body=NewNamespace,
    answer=MadeNamespace,
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
    new = call.given(NewNamespace)
    rules = await call.read(lambda context: _rules_for(context, new))
    given = [party(text, f"$.administrators[{number}]") for number, text in enumerate(new.administrators)]
    members = given or list(call.registry.rules.administration.server_admins)
    values = administered_by(new.prefix, members) if members else ()
    order = AddNamespace(new.prefix, rules, values, insists=bool(given))
    maker = Maker.of(call.registry)
    reply = await call.create(lambda since: MakeNamespace(maker, order, since), _made, note=new.note)
    return await _recalled(call, new.prefix, reply)


def _made(made: namespaces.Namespace) -> Reply:
    creator = made.policy.default_creator or None
    told = MadeNamespace(made.prefix, made.policy.profile, made.seq, creator, made.types_elsewhere)
    return Reply(told, CREATED, (("Location", f"{BASE}/namespaces/{quote(made.prefix, safe='')}"),))


async def _recalled(call: ApiCall, prefix: str, reply: Reply) -> Reply:
    """The answer to a request that was carried out before, also where it is not kept: its first entry has the rules."""
    before = reply.body
    if not isinstance(before, DoneBefore):
        return reply
    registry, seq = call.registry, before.seq

    def read() -> namespaces.Namespace | None:
        with registry.facts() as facts:
            policy = stored_policy(facts.reading.entry(seq))
            if policy is None:
                return None
            return namespaces.Namespace(prefix, policy, seq, namespaces.types_elsewhere(facts, policy))

    found = await call.do(Kind.READ, read)
    if found is None:
        return reply
    again = _made(found)
    return replace(again, headers=(*again.headers, REPLAYED))


@CHAPTER.add(
    "GET",
    "/namespaces/{prefix}/policy",
    "showPolicy",
    "The rules of a namespace",
    answer=PolicyTold,
    problems=(404,),
    parameters=_PLACE,
)
async def show_policy(call: ApiCall) -> Reply:
    """All the rules of a namespace, as text and by their keys."""
    prefix = call.names["prefix"]
    rules = await call.read(lambda context: known_policy(context.facts, prefix))
    return Reply(PolicyTold(prefix, rules.to_toml(), all_rules(rules)))


@CHAPTER.add(
    "PUT",
    "/namespaces/{prefix}/policy",
    "changePolicy",
    "Change the rules of a namespace",
    body=NewPolicy,
    answer=PolicyChanged,
    scope="namespaces",
    problems=(401, 403, 404, 422),
    parameters=_PLACE,
)
async def change_policy(call: ApiCall) -> Reply:
    """Change the rules of a namespace: those that the text has.

    If it names a profile, all others are that profile's, but for the purpose, the creator and the administrators, which
    are the namespace's own. New rules hold for changes from then on; nothing that exists becomes unreadable.
    """
    prefix, new = call.names["prefix"], call.given(NewPolicy)
    done = await call.change(ChangePolicy(prefix, new.policy, new.change_case), note=new.note)
    return Reply(PolicyChanged(done.made.prefix, done.made.seq, done.changed))


# Names


@CHAPTER.add(
    "GET",
    "/handles/{handle}/authority",
    "showAuthority",
    "What a name says about itself",
    answer=Authority,
    problems=(404,),
    parameters={"handle": HANDLE_STEP},
)
async def show_authority(call: ApiCall) -> Reply:
    """Since when the identifier exists, who created it and who owns it, where its namespace asks records to say so."""
    handle = call.handle()

    def read(context: Context) -> Authority:
        found = resolve(Query(handle), context)
        said = authority_of(context.facts, context.facts.held(found.base or handle))
        plain = {} if said is None else said.to_json()
        return msgspec.convert({"handle": str(found.registered), "asked": said is not None, **plain}, Authority)

    return Reply(await call.read(read, handle), name=str(handle))


def _told(context: Context, prefix: str) -> Namespace:
    plain = summary(context.facts, prefix, public_only=True)
    return msgspec.convert({_camel(name): said for name, said in plain.items()}, Namespace)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _rules_for(context: Context, new: NewNamespace) -> Policy:
    """The rules for somebody who is known: a text of rules is read for nobody else, and where nobody waits for it."""
    require_identity(context, f"make the namespace {shown(new.prefix)}")
    return _rules(new)


def _rules(new: NewNamespace) -> Policy:
    """The rules that a new namespace begins with."""
    if new.policy:
        if new.profile or new.case is not None:
            message = "rules of your own name their profile and case themselves; leave those members out"
            raise Unfitting(message, "$.policy")
        rules = with_group(Policy.from_toml(new.policy))
    else:
        profile = PROFILES.get(new.profile or "free")
        if profile is None:
            raise Unfitting(f"there is no such profile; there are {', '.join(PROFILES)}", "$.profile")
        rules = with_group(profile)
        if new.case is not None:
            rules = replace(rules, case=new.case)
    if new.creator:
        rules = replace(rules, default_creator=str(Handle.parse(new.creator)))
    return replace(rules, purpose=new.purpose) if new.purpose else rules

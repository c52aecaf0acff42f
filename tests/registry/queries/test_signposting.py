"""Machine-readable forms: typed links, JSON-LD and citations, only of what the record says."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log.entry import State
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, to_http
from perseid.records.locations import find_locations
from perseid.records.record import Permission, Value
from perseid.registry.commands.minting import Mint
from perseid.registry.commands.transfer import LinkMetadata
from perseid.registry.policy.authority import AuthorityMetadata, Party
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.queries.links import LINKSET, LINKSET_JSON, Link, format_headers
from perseid.registry.queries.resolve import Query, get_authority_metadata
from perseid.registry.queries.signposting import (
    ABOUT_PAGE,
    BIBLIOGRAPHY,
    BIBTEX,
    CSL_JSON,
    FORMATTERS,
    JSON_LD,
    MAX_LINKS,
    MAX_PER_TYPE,
    RELATIONS,
    AlternateForm,
    DescribedRecord,
    build_links,
    build_linkset,
    escape_for_html,
    format_json_ld,
    format_link_headers,
    to_json_ld,
)
from perseid.registry.results import Resolution
from tests.record_strategies import values as any_values
from tests.registry.queries.link_parser import read_links
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, registry_in_memory
from tests.strategies import handles, references, texts

RESOLVER = Resolver.parse("https://id.example.org/hdl")
NAME = Handle.parse("12345/a")
HOME = "https://id.example.org/hdl/12345/a"
PAGE = f"{HOME}?noredirect"
AT = 1_700_000_000_000_000
PRIVATE = Permission.ADMIN_READ | Permission.ADMIN_WRITE


def described(*values: Value, handle: Handle = NAME, **known: Any) -> DescribedRecord:
    state = known.pop("state", State.NORMAL)
    policy: Policy = known.pop("policy", PROFILES["free"])
    resolved = Resolution(handle, handle, state, values, 7, AT)
    return DescribedRecord(policy, resolved, known.pop("asked", Reference(handle)), RESOLVER, **known)


def said(**texts_: str) -> tuple[Value, ...]:
    return tuple([Value.text(index, type_, text) for index, (type_, text) in enumerate(texts_.items(), 1)])


def locations(inside: str, type_: str = "10320/loc", index: int = 50) -> Value:
    return Value.text(index, type_, f"<locations>{inside}</locations>")


def by_relation(found: DescribedRecord) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for link in build_links(found):
        told.setdefault(link.relation, []).append(link.target)
    return told


# Links


def test_links_follow_values() -> None:
    found = described(
        *said(
            URL="https://example.org/map",
            LICENSE="https://licences.example/by",
            TYPE="https://schema.org/Map",
            AUTHOR="https://people.example/ann",
            TITLE="An Atlas",
        ),
        Value.text(20, "DC.CREATOR", "hdl:12345/ann"),
    )
    assert by_relation(found) == {
        "cite-as": [HOME],
        "type": ["https://schema.org/Map"],
        "license": ["https://licences.example/by"],
        "author": ["https://people.example/ann"],
        "item": ["https://example.org/map"],
    }
    (author,) = by_relation(described(Value.text(1, "CREATOR", "hdl:12345/ann")))["author"]
    assert author == "https://id.example.org/hdl/12345/ann"


def test_links_are_not_invented() -> None:
    """Plain words are not addresses."""
    nothing = described(*said(AUTHOR="Ann", LICENSE="all rights reserved", TYPE="map", DESC="A map."))
    assert by_relation(nothing) == {"cite-as": [HOME]}
    assert by_relation(described()) == {"cite-as": [HOME]}
    endless = described(*said(AUTHOR=f"hdl:12345/ann?{'a' * 9_000}", LICENSE=f"https://example.org/{'a' * 9_000}"))
    assert by_relation(endless) == {"cite-as": [HOME]}


def test_private_values_are_in_no_form() -> None:
    """The caller can see them, but others may store the form."""
    secret = "https://secret.example/"
    values = [
        Value(index, type_, data, permissions=PRIVATE)
        for index, (type_, data) in enumerate(
            [
                *[(type_, secret.encode()) for type_ in ("URL", "LICENSE", "TYPE", "AUTHOR", "TITLE", "DESC")],
                ("10320/loc", f'<l><location href="{secret}"/></l>'.encode()),
                ("10320/links", f'<l><location href="{secret}" rel="item"/></l>'.encode()),
                ("TOMBSTONE.REASON", secret.encode()),
                ("LINK.METADATA", b"12345/secret"),
            ],
            1,
        )
    ]
    for state in (State.NORMAL, State.TOMBSTONE):
        found = described(*values, state=state)
        assert by_relation(found) == {"cite-as": [HOME]}
        for form in FORMATTERS.values():
            assert "secret" not in form(found)


def test_locations_are_linked_by_role() -> None:
    inside = """
        <location id="0" href="https://example.org/thing" media-type="image/tiff" hreflang="en,de" title="The map"/>
        <location id="1" href="https://example.org/md" rel="describedby" media-type="text/turtle"/>
        <location id="2" href="https://example.org/meta" role="metadata"/>
        <location id="3" href="https://example.org/conneg" http_role="conneg" media-type="application/rdf+xml"/>
        <location id="4" href_template="https://example.org/c/{hdl}" rel="Collection https://example.org/rel"/>
        <location id="5" href="https://example.org/l" rel="license" anchor-id="0" title="Ä" titlelang="de"/>
    """
    found = build_links(described(locations(inside)))
    assert found[0] == Link(HOME, "cite-as")
    assert set(found[1:]) == {
        Link("https://example.org/thing", "item", None, "image/tiff", None, ("en", "de"), "The map"),
        Link("https://example.org/md", "describedby", type="text/turtle"),
        Link("https://example.org/meta", "describedby"),
        Link("https://example.org/conneg", "alternate", type="application/rdf+xml"),
        Link("https://example.org/c/12345%2Fa", "collection https://example.org/rel"),
        Link("https://example.org/l", "license", "https://example.org/thing", title="Ä", language="de"),
    }
    listed = described(locations('<location href="https://example.org/x" rel="about"/>', "10320/links"))
    assert by_relation(listed) == {"cite-as": [HOME], "about": ["https://example.org/x"]}
    assert by_relation(described(locations('<location href="https://example.org/x"/>', "10320/links"))) == {
        "cite-as": [HOME]
    }


@pytest.mark.parametrize(
    "location",
    [
        '<location href="javascript:alert(1)" rel="item"/>',
        '<location href="data:text/html,x"/>',
        '<location href="https://example.org/x.css" rel="stylesheet"/>',
        '<location href="https://example.org/x.js" rel="preload"/>',
        '<location href="https://example.org/x" rel="cite-as"/>',
        '<location href="https://example.org/x" rel="timegate"/>',
        '<location href="https://example.org/x" rel="memento original"/>',
        '<location href="https://example.org/x" rel="item" media-type="no type"/>',
        '<location href="https://example.org/x" rel="item" hreflang="not a tag!"/>',
        '<location href="https://example.org/x" rel="item" anchor-id="nowhere"/>',
        '<location href="https://example.org/x" rel=""/>',
        '<location href="https://a@b.example/" rel="item"/>',
        '<location href_template="{hdl}" rel="item"/>',
    ],
)
def test_dangerous_relations_are_dropped(location: str) -> None:
    for type_ in ("10320/loc", "10320/links"):
        assert build_links(described(locations(location, type_))) == (Link(HOME, "cite-as"),)
    assert RELATIONS.isdisjoint({"stylesheet", "preload", "preconnect", "manifest", "cite-as", "canonical", "self"})


def test_given_locations_are_used() -> None:
    value = Value(50, "10320/loc", b'<l include="12345/shared"/>')
    shared = locations('<location href="https://mirror.example/"/>')
    found = find_locations(NAME, [value], lambda name: [shared] if name == "12345/shared" else None)
    assert by_relation(described(value)) == {"cite-as": [HOME]}
    assert by_relation(described(value, find_candidates=lambda: found.locations))["item"] == ["https://mirror.example/"]


def test_forms_are_describedby_and_creator_is_author_of_record() -> None:
    creator = Party(Handle.parse("12345/ann"), True)
    found = described(
        Value.text(1, "URL", "https://example.org/"),
        authority=AuthorityMetadata(1_000_000_000, None, creator),
        page=PAGE,
        forms=(
            AlternateForm(f"{HOME}?as=ld", JSON_LD),
            AlternateForm(f"{HOME}?as=linkset", LINKSET_JSON),
            AlternateForm(f"{HOME}?l", LINKSET),
        ),
    )
    assert build_links(found) == (
        Link(HOME, "cite-as"),
        Link(f"{HOME}?as=linkset", "linkset", type=LINKSET_JSON),
        Link(f"{HOME}?l", "linkset", type=LINKSET),
        Link(f"{HOME}?as=ld", "describedby", type=JSON_LD, others=(("profile", "https://schema.org/"),)),
        Link("https://id.example.org/hdl/12345/ann", "author", PAGE),
        Link("https://example.org/", "item"),
    )
    assert build_linkset(found) == (
        *build_links(found),
        Link(HOME, "describes", f"{HOME}?as=ld"),
        Link(HOME, "collection", "https://example.org/"),
        Link(ABOUT_PAGE, "type", PAGE),
    ), "what leads back, and what the page is (FAIR Signposting Profile, sections 2.2.1 to 2.2.3)"


def test_links_with_anchor_have_no_inverse() -> None:
    inside = """<location id="0" href="https://example.org/thing"/>
        <location href="https://example.org/part" rel="item" anchor-id="0"/>
        <location href="https://example.org/both" rel="item describedby"/>
        <location href="https://example.org/both" rel="describedby"/>"""
    found = build_linkset(described(locations(inside)))
    back = [link for link in found if link.target == HOME and link.anchor is not None]
    assert sorted((link.anchor or "", link.relation) for link in back) == [
        ("https://example.org/both", "collection"),
        ("https://example.org/both", "describes"),
        ("https://example.org/thing", "collection"),
    ]


def test_links_are_limited_and_ranked() -> None:
    many = "".join(f'<location href="https://example.org/{number}"/>' for number in range(900))
    lists = [locations(many.replace("org/", f"org/{index}/"), index=index) for index in (50, 51)]
    found = described(*lists, forms=(AlternateForm(f"{HOME}?as=linkset", LINKSET_JSON),))
    assert len(build_links(found)) <= MAX_LINKS
    headers = format_headers(build_links(found))
    assert read_links(headers[0])[0].relations == ["cite-as"]
    assert read_links(headers[1])[0].relations == ["linkset"]
    assert format_link_headers(found) == headers
    authors = [Value.text(index, "AUTHOR", f"https://people.example/{index}") for index in range(1, 2 * MAX_PER_TYPE)]
    assert len(by_relation(described(*authors))["author"]) == MAX_PER_TYPE


def test_unreadable_location_lists_are_ignored() -> None:
    broken = [Value(1, "10320/links", b"<locations"), Value(2, "10320/loc", b"\xff"), Value(3, "10320/links", b"")]
    assert build_links(described(*broken)) == (Link(HOME, "cite-as"),)
    vast = "{hdl}" * 1_000
    assert build_links(described(locations(f'<location href_template="{vast}" rel="item"/>', "10320/links"))) == (
        Link(HOME, "cite-as"),
    )


def test_duplicate_links_are_removed() -> None:
    twice = described(*said(URL="https://example.org/"), locations('<location href="https://example.org/"/>'))
    assert by_relation(twice)["item"] == ["https://example.org/"]
    form = AlternateForm("https://example.org/", JSON_LD)
    same = described(locations('<location href="https://example.org/" role="metadata"/>'), forms=(form,))
    assert len(by_relation(same)["describedby"]) == 1
    assert format_link_headers(same) == format_headers(build_links(same))


def test_long_query_is_omitted_from_address() -> None:
    asked = Reference(NAME, "a" * 9_000)
    assert build_links(described(asked=asked))[0] == Link(HOME, "cite-as")
    assert build_links(described(asked=Reference(NAME, "a=b", "c")))[0].target == f"{HOME}?a=b#c"


@given(references(), st.lists(any_values(), max_size=6, unique_by=lambda value: value.index), texts())
def test_all_forms_work_for_any_record(asked: Reference, values: list[Value], text: str) -> None:
    clean = text.encode("utf-8", "ignore")
    more = [
        Value(9_000_001 + number, type_, clean)
        for number, type_ in enumerate(("URL", "TITLE", "AUTHOR", "LICENSE", "TYPE", "DATE", "10320/loc", "LINK.WORK"))
    ]
    found = described(*values, *more, handle=asked.handle, asked=asked, page=PAGE)
    for media_type, form in FORMATTERS.items():
        document = form(found)
        if media_type.endswith("json"):
            json.loads(document)
    assert format_link_headers(found) == format_headers(build_links(found))
    for value in format_headers(build_links(found)):
        assert value.isascii()
        assert value.isprintable()
        (read,) = read_links(value)
        assert read.target.startswith(("https://", "http://"))
    assert json.loads(FORMATTERS[JSON_LD](found))["@id"] == found.address
    assert {context["anchor"] for context in json.loads(FORMATTERS[LINKSET_JSON](found))["linkset"]} >= {found.address}


# JSON-LD


def test_json_ld_separates_object_and_record() -> None:
    authority = AuthorityMetadata(
        1_182_480_826,
        1_186_719_791,
        Party(Handle.parse("102.100.272/0N8J991QH"), True),
        (Party(Handle.parse("102.100.pilin2/XYZZY"), False),),
    )
    found = described(
        *said(URL="https://example.org/map", TITLE="An Atlas", AUTHOR="Survey", DATE="1907-03", PUBLISHER="Press"),
        *[Value.text(10, "DESC", "Maps of the coast."), Value.text(11, "LICENSE", "https://licences.example/by")],
        authority=authority,
        page=PAGE,
        forms=(AlternateForm(f"{HOME}?as=ld", JSON_LD),),
    )
    assert to_json_ld(found) == {
        "@context": "https://schema.org",
        "@id": HOME,
        "@type": "CreativeWork",
        "identifier": {"@type": "PropertyValue", "propertyID": "hdl", "value": "hdl:12345/a", "url": HOME},
        "name": "An Atlas",
        "description": "Maps of the coast.",
        "url": "https://example.org/map",
        "author": "Survey",
        "datePublished": "1907-03",
        "publisher": "Press",
        "license": "https://licences.example/by",
        "subjectOf": {
            "@type": "DigitalDocument",
            "@id": PAGE,
            "name": "The record of hdl:12345/a",
            "version": "7",
            "dateCreated": "2007-06-22T02:53:46Z",
            "dateModified": "2007-08-10T04:23:11Z",
            "creator": {
                "@id": "https://id.example.org/hdl/102.100.272/0N8J991QH",
                "identifier": "hdl:102.100.272/0N8J991QH",
            },
            "sdPublisher": {
                "@id": "https://id.example.org/hdl/102.100.pilin2/XYZZY",
                "identifier": "hdl:102.100.pilin2/XYZZY",
            },
            "encoding": {"@type": "MediaObject", "contentUrl": f"{HOME}?as=ld", "encodingFormat": JSON_LD},
        },
    }


def test_json_ld_invents_nothing() -> None:
    """Without descriptive values it is a Thing; the creator of the identifier is not an author."""
    creator = Party(Handle.parse("12345/ann"), True)
    bare = to_json_ld(described(authority=AuthorityMetadata(1, None, creator)))
    assert set(bare) == {"@context", "@id", "@type", "identifier", "subjectOf"}
    assert bare["@type"] == "Thing"
    record = bare["subjectOf"]
    assert isinstance(record, dict)
    assert record["dateModified"] == "2023-11-14T22:13:20Z", "that of the entry"
    assert record["creator"] == record["sdPublisher"]
    unknown = to_json_ld(described())["subjectOf"]
    assert isinstance(unknown, dict)
    assert set(unknown) == {"@type", "name", "version", "dateModified"}
    assert "datePublished" not in to_json_ld(described(*said(DATE="about 1850")))


def test_schema_org_type_of_record_is_used() -> None:
    kinds = [Value.text(1, "TYPE", "http://schema.org/Map"), Value.text(2, "TYPE", "https://types.example/Chart")]
    found = to_json_ld(described(*kinds))
    assert (found["@type"], found["additionalType"]) == ("Map", "https://types.example/Chart")
    assert to_json_ld(described(*said(TYPE="https://schema.org/not a type")))["@type"] == "Thing"
    assert to_json_ld(described(*said(AUTHOR="Ann")))["@type"] == "CreativeWork"


def test_linked_objects_have_identifiers() -> None:
    policy = PROFILES["free"]
    values = [
        Value.text(1, policy.work_type, "12345/work"),
        Value.text(2, policy.expression_type, "12345/v1"),
        Value.text(3, policy.expression_type, "hdl:12345/v2"),
        Value.text(4, policy.metadata_type, "12345/md"),
        Value.text(5, policy.object_type, "12345/thing"),
        Value.text(6, policy.object_type, "no handle"),
    ]
    found = to_json_ld(described(*values))
    base = "https://id.example.org/hdl/12345"
    assert found["exampleOfWork"] == {"@id": f"{base}/work", "identifier": "hdl:12345/work"}
    assert found["workExample"] == [
        {"@id": f"{base}/v1", "identifier": "hdl:12345/v1"},
        {"@id": f"{base}/v2", "identifier": "hdl:12345/v2"},
    ]
    assert found["about"] == {"@id": f"{base}/thing", "identifier": "hdl:12345/thing"}
    assert isinstance(found["subjectOf"], list)
    assert found["subjectOf"][1] == {"@id": f"{base}/md", "identifier": "hdl:12345/md"}
    told = by_relation(described(*values))
    assert told["describedby"] == [f"{base}/md"]
    assert told["describes"] == [f"{base}/thing"]
    assert told["latest-version"] == [f"{base}/work"]


def test_tombstone_is_reported() -> None:
    gone = Value.text(1, PROFILES["free"].tombstone_reason_type, "lost in a fire")
    assert to_json_ld(described(gone, state=State.TOMBSTONE))["creativeWorkStatus"] == "gone: lost in a fire"


@given(texts(), texts())
def test_json_ld_is_safe_in_html(one: str, other: str) -> None:
    data = [Value(1, "TITLE", one.encode("utf-8", "ignore")), Value(2, "DESC", other.encode("utf-8", "ignore"))]
    found = described(*data)
    text = format_json_ld(found)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == to_json_ld(found)


def test_markup_cannot_end_script() -> None:
    title = "</script><script>alert(1)</script><!-- & \u2028"
    text = format_json_ld(described(*said(TITLE=title)))
    assert "</" not in text
    assert "<!--" not in text
    assert json.loads(text)["name"] == title.strip().replace("\u2028", "").strip()
    assert json.loads(escape_for_html(json.dumps(title, ensure_ascii=False))) == title


# Forms


def test_citations_are_forms() -> None:
    found = described(*said(TITLE="An Atlas", AUTHOR="Survey", DATE="1907"))
    assert FORMATTERS[BIBLIOGRAPHY](found) == f"Survey (1907). An Atlas. hdl:12345/a, {HOME}\n"
    assert FORMATTERS[BIBTEX](found).startswith("@misc{hdl:12345/a,\n")
    assert json.loads(FORMATTERS[CSL_JSON](found))["title"] == "An Atlas"
    fixed = replace(found, fixed=True)
    assert "as of entry 7" in FORMATTERS[BIBLIOGRAPHY](fixed)
    assert next(iter(FORMATTERS)) == JSON_LD


@given(handles())
def test_address_is_that_of_identifier(handle: Handle) -> None:
    found = described(handle=handle)
    assert found.address == to_http(Reference(handle), RESOLVER)
    assert build_links(found)[0] == Link(found.address, "cite-as")


# With a registry


def test_authority_metadata_of_real_registry() -> None:
    with registry_in_memory() as registry:
        policy = Policy(**PROFILES["free"].values() | {"authority": True})
        add_namespace(registry, "12345", policy)
        values = (
            Value.text(1, "URL", "https://example.org/"),
            Value.text(2, policy.creator_type, "98765/ann"),
        )
        made = [
            registry.do(Mint(f"12345/{lead}", values=values), OPERATOR, "cli").handles[0] for lead in ("thing-", "md-")
        ]
        thing, metadata = made
        registry.do(LinkMetadata(thing, metadata), OPERATOR, "cli")
        resolved = registry.resolve(Query(thing), NOBODY)
        with registry.snapshot() as snapshot:
            authority = get_authority_metadata(snapshot, snapshot.stored(thing))
        found = DescribedRecord(policy, resolved, Reference(thing), RESOLVER, authority, page=f"{HOME}?noredirect")
        told = by_relation(found)
        assert told["describedby"] == [found.address_of(metadata)]
        assert told["author"] == [found.address_of(Handle.parse("98765/ann"))]
        record = to_json_ld(found)["subjectOf"]
        assert isinstance(record, list)
        assert record[0]["creator"]["identifier"] == "hdl:98765/ann"
        other = registry.resolve(Query(metadata), NOBODY)
        about = DescribedRecord(policy, other, Reference(metadata), RESOLVER)
        assert by_relation(about)["describes"] == [found.address]

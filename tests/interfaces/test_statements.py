"""The statements of the source documents, each at every interface.

A row is one statement: what is asked, and the answer that every interface gives. Where an interface has no such
request, the kind of question says why (`tests/interfaces/questions.py`); where it must answer otherwise, the row does.
Statements that no single request shows have a test elsewhere, and the row names it. docs/reference/statements.md lists
all rows; `python -m tests.interfaces.test_statements` writes that page.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interfaces.callers import ANN, Request
from tests.interfaces.questions import (
    GUID,
    HIDDEN,
    IMPORTED,
    INTERFACES,
    NOT_FOUND,
    Actors,
    Change,
    Cite,
    Convert,
    Declared,
    Decode,
    Earlier,
    Echo,
    Find,
    Follow,
    Lifecycle,
    Listed,
    Look,
    Metadata,
    Minted,
    NewNamespace,
    Open,
    Parse,
    Policy,
    Register,
    Reservation,
    Suffix,
    Tail,
    Transferred,
    Types,
    WithMetadata,
    World,
    open_world,
)
from tests.pilin_vectors import PILIN

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "statements.md"

COUNTS: Final = {"H": 9, "P": 8, "C": 6, "U": 8, "A": 8, "S": 14}
"""The requirements: H1 to H9 and so on; and the profiles of namespaces."""
REQUIREMENTS: Final = {f"{letter}{number + 1}" for letter, count in COUNTS.items() for number in range(count)}
PROFILES: Final = "profiles"


@dataclass(frozen=True)
class Row:
    """A statement, with questions and their answers in order, or with the test that shows it."""

    ids: tuple[str, ...]
    statement: str
    steps: tuple[tuple[Any, str | re.Pattern[str]], ...] = ()
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Other answers to the last question, by interface."""
    why: str = ""
    """The reason of the exceptions."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Interfaces that cannot express this row although they can ask such questions, and the reason."""
    shown_by: str = ""
    """The test elsewhere, as `tests/folder/file.py::test_name`; or `later: …` if the statement does not hold yet."""

    def reason(self, interface: str) -> str:
        """Why an interface is left out; empty if it is asked."""
        for question, _ in self.steps:
            if isinstance(way := getattr(question, interface), str):
                return way
        return self.without.get(interface, "")


def row(
    ids: str,
    statement: str,
    *steps: Any,
    exceptions: Mapping[str, str] | None = None,
    why: str = "",
    without: Mapping[str, str] | None = None,
) -> Row:
    """A statement; questions and answers alternate."""
    pairs = tuple(zip(steps[::2], steps[1::2], strict=True))
    return Row(tuple(ids.split()), statement, pairs, exceptions or {}, why, without or {})


def elsewhere(ids: str, statement: str, shown_by: str) -> Row:
    return Row(tuple(ids.split()), statement, shown_by=shown_by)


# Answers

BAD: Final = "refused INVALID_HANDLE"
TAKEN: Final = "refused HANDLE_ALREADY_EXISTS H7"
NO_RIGHT: Final = "refused INVALID_ADMIN"
PILIN_ONLY: Final = f'{BAD} scheme = "pilin"'
CORDRA_ONLY: Final = f'{BAD} scheme = "cordra"'
NOT_HERE: Final = {"native": NOT_FOUND, "compat": NOT_FOUND}
WHY_NOT_HERE: Final = "no server hosts such a prefix, which is checked first"
DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
DIGITS: Final = "0123456789BCDFGHJKLMNPQRSTVWXYZ"
UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

# Names

CORDRA: Final = f"100.102/{GUID}"
UPPER: Final = CORDRA.upper()
CREATED: Final = "102.100.TYPE/CREATION_DATE"
CREATOR: Final = "102.100.TYPE/CREATOR"
PROJECT: Final = "102.100.272/0N8J991QH"
POLICY: Final = "Handle Suffix Format Policy for the PILIN Project: the latest version, which is 1.0 of 2007-06-26"
AUTHORITY: Final = f"{CREATED} | {CREATOR} | HS_ADMIN"
RESOLVER: Final = "http://arrow.resolver.au.gov:2641/hdl"
LONGEST: Final = 2_048
SEED: Final = "102.100.272/Y35XYS0QH"


def value(index: int, type_: str, data: str) -> dict[str, object]:
    return {"index": index, "type": type_, "data": data}


def administrator(handle: str) -> dict[str, object]:
    admin = {"handle": handle, "index": 300, "permissions": "111111111111"}
    return {"index": 100, "type": "HS_ADMIN", "data": {"format": "admin", "value": admin}}


OWNER: Final = administrator("10.999/owner")
OURS: Final = administrator("0.NA/12345")


HANDLE_SYNTAX: Final = (
    row(
        "H1",
        "A handle is a prefix, the character / and a suffix.",
        *(Parse("10.1045/april2006-paskin"), "10.1045 / april2006-paskin"),
    ),
    row("H1", "The example of the document resolves.", *(Look("10.1045/april2006-paskin"), "10.1045/april2006-paskin")),
    row("H1", "The first / separates; a suffix can contain others.", Parse("12345/a/b"), "12345 / a/b"),
    row(
        "H1",
        "A suffix with / is registered and resolved.",
        *(Register("12345/h1/b"), "created 12345/h1/b"),
        *(Look("12345/a/b"), "12345/a/b"),
    ),
    row("H1", "The suffix is not empty.", Register("12345/"), f"{BAD} H1"),
    row("H1", "The prefix is not empty.", Register("/x"), f"{BAD} H1", exceptions=NOT_HERE, why=WHY_NOT_HERE),
    *[
        row("H2", statement, Register(name), f"{BAD} H2", exceptions=NOT_HERE, why=WHY_NOT_HERE)
        for statement, name in (
            ("A prefix does not begin with a dot.", ".12345/x"),
            ("The segments of a prefix are not empty.", "12345..1/x"),
        )
    ],
    *[
        row("H2", f"A namespace cannot have the prefix {prefix}", NewNamespace(prefix), f"{BAD} H2")
        for prefix in ("12345..2", "a/b", ".")
    ],
    row("H2", "A prefix is segments joined by dots.", Register("12345.1/h2"), "created 12345.1/h2"),
    *[
        row("H3", f"Printable characters can be used: {name}.", Look(f"12345/{name}"), f"12345/{name}")
        for name in ("ü", "日本語", "a b")
    ],
    *[
        row(
            "H3",
            f"Registration refuses {what}.",
            Register(f"12345/{name}"),
            f"{BAD} H3",
            Look(f"12345/{name}"),
            NOT_FOUND,
        )
        for what, name in (
            ("control characters", "h3\x07x"),
            ("non-characters", "h3\ufffex"),
            ("line separators", "h3\u2028x"),
            ("paragraph separators", "h3\u2029x"),
            ("bidirectional controls", "h3\u202ex"),
            ("bidirectional isolates", "h3\u2066x"),
            ("blanks at the start", " h3"),
            ("characters outside the Basic Multilingual Plane", "h3😀"),
            ("unassigned characters", "h3\u0378"),
            ("a suffix of invisible characters", "\u200b\u200b"),
            ("invisible characters at the start", "\ufeffh3"),
            ("invisible characters at the end", "h3\u00ad"),
            ("a suffix of private-use characters", "\ue000"),
        )
    ],
    row(
        "H3",
        "Registration refuses blanks at the end.",
        *(Register("12345/h3blank "), f"{BAD} H3"),
        exceptions={"cli": "created 12345/h3blank"},
        why="what a person types is read without the blanks around it",
    ),
    row("H3", "A name that cannot be registered is not found.", Look("12345/h3\u202e"), NOT_FOUND),
    row("H3", "What another server registered is kept when it is imported.", Look(IMPORTED), "imported"),
    elsewhere(
        "H3",
        "The characters are those of one Unicode version that is shipped with the package.",
        "tests/names/test_characters.py::test_h3_table_matches_the_pinned_unicode_data",
    ),
    row(
        "H4",
        "Malformed UTF-8 is refused at registration.",
        *(Register(b"12345/h4\xff"), f"{BAD} H4"),
        exceptions={"v1": "refused PROTOCOL_ERROR"},
        why="the path of a request is UTF-8, or the request is malformed",
    ),
    row(
        "H4",
        "Malformed UTF-8 is never replaced: a look-up finds nothing.",
        *(Look(b"12345/\xff"), NOT_FOUND),
        exceptions={"v1": "refused PROTOCOL_ERROR", "cli": f"{BAD} H4"},
        why="the request is reported as malformed",
    ),
    elsewhere(
        "H4",
        "Every handle is the same in UTF-8 and as text.",
        "tests/names/test_handle.py::test_h1_h3_h4_every_legal_handle_round_trips_through_text_and_bytes",
    ),
    row(
        "H5", "By default handles are case sensitive.", Look("54321/case"), NOT_FOUND, Look("54321/Case"), "54321/Case"
    ),
    row(
        "H5",
        "In a case-sensitive namespace another spelling is another handle.",
        *(Register("54321/cASE"), "created 54321/cASE"),
    ),
    row(
        "H5", "A namespace can be insensitive to the case of ASCII letters.", Look("12345/camelCASE"), "12345/CamelCase"
    ),
    row(
        "H5",
        "Only ASCII letters fold.",
        *(Look("12345/STRAßE"), "12345/straße"),
        *(Look("12345/STRASSE"), NOT_FOUND),
        *(Look("12345/Ü"), NOT_FOUND),
    ),
    row(
        "H5",
        "Prefixes are case-insensitive in every namespace.",
        *(Look("12345.ABC/x"), "12345.Abc/x"),
        *(Look("12345.ABC/X"), NOT_FOUND),
    ),
    row("H5 H8", "Everything under 0.NA/ is case-insensitive.", Types("0.na/12345"), "HS_ADMIN | HS_VLIST"),
    row("H5", "Answers echo the requested spelling.", Echo("12345/camelcase"), "12345/camelcase"),
    row(
        "H5",
        "The registered spelling is kept and cited.",
        *(Cite("12345/camelcase"), "hdl:12345/CamelCase | https://hdl.example.org/12345/CamelCase"),
    ),
    row(
        "H5",
        "A policy that says nothing about case is sensitive.",
        *(NewNamespace("9901", policy='scheme = "free"'), "added"),
        *(Policy("9901"), "free | sensitive | False"),
    ),
    elsewhere(
        "H5",
        "The case rule changes only while no two handles collide.",
        "tests/registry/policy/test_case_rules.py::test_h5_colliding_handles_are_listed",
    ),
    row(
        "H6",
        "A derived prefix is a prefix in its own right, and used like any other.",
        *(Register("12345.1/h6"), "created 12345.1/h6"),
        *(Minted("12345.1"), re.compile(UUID)),
    ),
    row(
        "H6",
        "A prefix can be derived from a hosted one, to any depth.",
        *(NewNamespace("12345.1.9"), "added"),
        *(Register("12345.1.9/x"), "created 12345.1.9/x"),
    ),
    row("H6", "A derived prefix requires permission on its parent.", NewNamespace("12345.9", identity=ANN), NO_RIGHT),
    row(
        "H6",
        "The handle of a derived prefix requires permission on its parent.",
        *(Change(Request("create", identity=ANN), "0.NA/12345.8"), NO_RIGHT),
    ),
    elsewhere(
        "H6",
        "Parent and ancestors follow from the prefix alone.",
        "tests/names/test_prefixes.py::test_h6_parent_and_ancestors_are_computed_from_the_name",
    ),
    row(
        "H7",
        "A suffix is unique under its prefix: an existing handle is refused, and its record stays.",
        *(Register("12345/taken"), TAKEN),
        *(Look("12345/taken"), "12345/taken"),
    ),
    row("H7", "The case rule of the namespace decides whether it exists.", Register("12345/TAKEN"), TAKEN),
    row("H7", "The same suffix can be used under another prefix.", Register("54321/taken"), "created 54321/taken"),
    row("H7", "The handles under a prefix are its namespace.", Listed("12345.Abc"), "12345.Abc/x"),
    row("H7", "A prefix is unique.", NewNamespace("12345"), TAKEN),
    *[
        row("H8", f"The prefix {prefix} is described by a handle.", Types(f"0.NA/{prefix}"), "HS_ADMIN | HS_VLIST")
        for prefix in ("12345", "12345.1", "102.100.272")
    ],
    row("H8", "So is a new prefix.", NewNamespace("2003"), "added", Types("0.NA/2003"), "HS_ADMIN | HS_VLIST"),
    row(
        "H9",
        "A handle has at most 2,048 bytes.",
        *(Register("12345/".ljust(LONGEST, "x")), f"created {'12345/'.ljust(LONGEST, 'x')}"),
        *(Register("12345/".ljust(LONGEST + 1, "y")), f"{BAD} H9"),
    ),
    row("H9", "Bytes count, not characters.", Register("12345/" + "ü" * (LONGEST // 2 - 2)), f"{BAD} H9"),
    row("H9", "A longer name is not found.", Look("12345/".ljust(LONGEST + 1, "x")), NOT_FOUND),
)

PILIN_SUFFIXES: Final = (
    *[row("P1", f"{suffix} is the suffix of {time}.", Suffix(time), suffix) for suffix, _, time in PILIN],
    *[row("P7", f"{suffix} decodes to {time}.", Decode(suffix), time) for suffix, _, time in PILIN],
    row(
        "P1", "A minted suffix encodes the time of the request.", Minted("102.100.272"), re.compile(f"[{DIGITS}]{{9}}")
    ),
    row(
        "P2",
        "The digits are 0–9 and the consonants; vowels are refused.",
        Register("102.100.272/A35XYS0QH"),
        PILIN_ONLY,
    ),
    *[
        row("P3", f"A suffix of {len(suffix)} characters is refused.", Register(f"102.100.272/{suffix}"), PILIN_ONLY)
        for suffix in ("Y35XYS0Q", "Y35XYS0QHH")
    ],
    row(
        "P3",
        "There are suffixes until 2420-08-16T03:29:20.670Z.",
        *(Suffix("2420-08-16T03:29:20.670Z"), "ZZZZZZZZZ"),
        *(Suffix("2420-08-16T03:29:20.671Z"), f"{BAD} P3"),
        *(Suffix("1600-01-01T00:00:00Z"), f"{BAD} P3"),
    ),
    elsewhere(
        "P4",
        "Suffixes are opaque: no vowel can form a word.",
        "tests/names/test_pilin.py::test_p2_p4_alphabet_is_the_31_digits_of_the_seed_documents_without_vowels",
    ),
    elsewhere(
        "P4",
        "There are suffixes for more than 10⁹ things.",
        "tests/names/test_pilin.py::test_p4_more_than_a_billion_suffixes_remain",
    ),
    elsewhere(
        "P5",
        "Several processes mint under one prefix at once; bench/ measures 1,000 a second and more.",
        "tests/registry/commands/test_minting.py::test_p5_three_processes_mint_on_one_file_without_a_duplicate",
    ),
    row("P6", "No suffix is minted twice.", Minted("102.100.272", 5), re.compile(f"[{DIGITS}]{{9}}")),
    elsewhere(
        "P6",
        "Nor when the clock steps back.",
        "tests/names/test_allocator.py::test_p6_numbers_are_not_reused_when_the_clock_steps_back",
    ),
    row("P7", "Lowercase is accepted.", Decode("y35xys0qh"), "2007-05-25T03:49:52.865Z"),
    row("P7", "A lowercase suffix finds the record.", Look(SEED.lower()), POLICY),
    row("P7", "A foreign letter is refused.", Decode("Y35XYS0QA"), f"{BAD} P7"),
    row("P7", "Another length is refused.", Decode("Y35XYS0Q"), f"{BAD} P3"),
    row("P7", "O and I are never read as 0 and 1.", Decode("O35XYS0QH"), f"{BAD} P7"),
    row("P8", "Every suffix of the namespace follows the scheme.", Register("102.100.272/my-report"), PILIN_ONLY),
    row("P8", "Without a scheme a lowercase UUID is minted.", Minted("12345"), re.compile(UUID)),
    row("P8", "The example of the document resolves.", Look(SEED), POLICY),
    row(
        "P8 A1",
        "Every identifier in the documents resolves, with its authority metadata.",
        *[part for suffix, *_ in PILIN for part in (Types(f"102.100.272/{suffix}"), re.compile(f"{CREATED} .*"))],
    ),
    *[
        row("P8 U7", f"The form printed in the document is understood: {name}.", Open(name), POLICY)
        for name in (f"hdl:/{SEED}", f"http://resolver.net.au/hdl/{SEED}")
    ],
)

CORDRA_IDENTIFIERS: Final = (
    row("C1", "A naming authority is digits and dots.", NewNamespace("10.x", "cordra"), f"{BAD} C1"),
    row("C1", "It has one or more segments.", NewNamespace("2001", "cordra"), "added"),
    row("C2", "The path has 32 hexadecimal digits.", Register(f"100.102/{'C2' * 16}"), f"created 100.102/{'C2' * 16}"),
    *[
        row("C2", f"The path does not have {what}.", Register(f"100.102/{path}"), CORDRA_ONLY)
        for what, path in (
            ("31 digits", "A" * 31),
            ("33 digits", "A" * 33),
            ("other letters", "G" * 32),
            ("hyphens", "f58fb49e-b1f8-48f0-a606-e84cef294be5"),
        )
    ],
    row(
        "C3",
        "Paths are generated as UUIDs without hyphens, by default random.",
        *(Minted("100.102", 2), re.compile("[0-9A-F]{12}4[0-9A-F]{3}[89AB][0-9A-F]{15}")),
    ),
    elsewhere(
        "C3",
        "Version 1 has a random node.",
        "tests/names/test_cordra.py::test_c3_version_1_has_the_time_and_a_random_multicast_node",
    ),
    row("C4", "The path is case-insensitive.", Look(CORDRA.lower()), UPPER, Look(CORDRA), UPPER),
    row(
        "C4",
        "The path is normalized to uppercase.",
        *(Register(f"100.102/{'c4' * 16}"), f"created 100.102/{'C4' * 16}"),
        *(Register(f"100.102/{'C4' * 16}"), TAKEN),
    ),
    row("C4", "The normalized spelling is cited.", Cite(CORDRA), f"hdl:{UPPER} | https://hdl.example.org/{UPPER}"),
    row("C5", "A name with a query is not registered.", Register(f"100.102/{'c5' * 16}?x"), CORDRA_ONLY),
    row("C5", "A name with a fragment is not registered.", Register(f"100.102/{'c5' * 16}#x"), CORDRA_ONLY),
    row(
        "C5",
        "A name with query and fragment is looked up by its path.",
        *(Look(f"{CORDRA}?part=2"), UPPER),
        *(Look(f"{CORDRA}?part=2#top"), UPPER),
        *(Look(f"{CORDRA}#top"), UPPER),
    ),
    row("C5", "A query that is not one of URIs is not found.", Look(f"{CORDRA}?a[b"), NOT_FOUND),
    row("C5", "The query comes before the fragment.", Look(f"{CORDRA}#top?part=2"), UPPER),
    row(
        "C5 U6",
        "Query and fragment of a CORDRA identifier belong to the handle, on request.",
        *(Convert(f"hdl:{CORDRA}?part=2#top", "handle", scheme="cordra"), f"{UPPER}?part=2#top"),
        *(Convert(f"{CORDRA}?part=2#top", "path", scheme="cordra"), f"hdl:{UPPER}?part=2#top"),
    ),
    row("C5", "Query and fragment are given to the caller.", Tail(f"{CORDRA}?part=2#top"), "part=2 | top"),
    row("C5", "Answers echo it as requested.", Echo(f"{CORDRA}?part=2"), f"{CORDRA}?part=2"),
    row("C5", "Changes address the path only.", Change(Request("delete"), f"{CORDRA}?part=2"), BAD),
    row("C5", "As a URI it is opened by its path.", Open(f"hdl:{CORDRA}?part=2#top"), UPPER),
    row("C6", "A CORDRA identifier is processed by the handle protocol.", Look(UPPER), UPPER),
    row(
        "C6",
        "The identifiers of the documents resolve.",
        *(Types("2000.01/EEF4DF17361A42E2B975E554663B70C3"), re.compile("DESC .*")),
        *(Types("2000.01/FFEE9F72B00C4189B137ECD34188B94E"), re.compile("DESC .*")),
    ),
)

FORMS: Final = {
    "handle": CORDRA,
    "path": f"hdl:{CORDRA}",
    "host": f"hdl://{CORDRA}",
    "http": f"{RESOLVER}/{CORDRA}",
}
"""The example of the document in each form."""

URI_ENCODING: Final = (
    row("U1", "The scheme is case-insensitive.", Parse("HDL:12345/x", strict=True), "12345 / x"),
    row("U1", "The scheme is written in lowercase.", Convert("HDL:12345/x", "path"), "hdl:12345/x"),
    row("U2", "The example of the document is written in the host form.", Convert(CORDRA, "host"), FORMS["host"]),
    row("U3", "The example of the document is written in the path form.", Convert(CORDRA, "path"), FORMS["path"]),
    *[
        row("U4", f"The example is written for the resolver {each}.", Convert(CORDRA, "http", each), f"{each}/{CORDRA}")
        for each in ("http://hld.handle.net", RESOLVER)
    ],
    row("U2", "The host form is hdl://NA/LOCAL.", Parse(FORMS["host"], strict=True), f"100.102 / {GUID}"),
    row("U2", "Query and fragment follow.", Parse("hdl://12345/x?q#f", strict=True), "12345 / x ? q # f"),
    row("U2", "The host is not empty.", Parse("hdl:///x", strict=True), f"{BAD} H1"),
    row("U2", "The path is not empty.", Parse("hdl://12345/", strict=True), f"{BAD} H1"),
    row("U2", "The path is one segment.", Parse("hdl://12345/a/b", strict=True), f"{BAD} U5"),
    row("U3", "The path form is hdl:NA/LOCAL.", Parse(FORMS["path"], strict=True), f"100.102 / {GUID}"),
    row("U3", "It has exactly two segments.", Parse("hdl:12345/a/b", strict=True), f"{BAD} U5"),
    row("U3", "Neither segment is empty.", Parse("hdl:12345/", strict=True), f"{BAD} H1"),
    row(
        "U4",
        "The HTTP form is the address of a resolver and the name.",
        *(Parse(f"http://hld.handle.net/{CORDRA}", strict=True, resolver="http://hld.handle.net"), f"100.102 / {GUID}"),
    ),
    row(
        "U4",
        "A resolver can require a first segment.",
        *(Parse(FORMS["http"], strict=True, resolver=RESOLVER), f"100.102 / {GUID}"),
        *(Parse(FORMS["http"].replace("/hdl/", "/"), strict=True, resolver=RESOLVER), f"{BAD} U4"),
    ),
    row("U4", "The URL of another server is not a handle.", Parse("http://x.example/12345/x"), f"{BAD} U4"),
    row(
        "U4",
        "The server publishes its authority and segment.",
        *(Declared(), "https://hdl.example.org/{handle} None | https://hdl.example.org/hdl/{handle} hdl"),
    ),
    *[
        row(
            "U4",
            f"It honors what it declares: /{form}NA/LOCAL.",
            Open(f"https://hdl.example.org/{form}12345/a%2Fb"),
            "12345/a/b",
        )
        for form in ("", "hdl/")
    ],
    row("U5", "Other characters are percent-encoded as UTF-8.", Convert("12345/ü", "path"), "hdl:12345/%C3%BC"),
    row(
        "U5",
        "/, ?, # and % of a suffix are encoded.",
        *(Convert("12345/a/b?c#d%e", "path"), "hdl:12345/a%2Fb%3Fc%23d%25e"),
        *(Parse("hdl:12345/a%2Fb%3Fc%23d%25e", strict=True), "12345 / a/b?c#d%e"),
    ),
    row("U2 U5", "A host is a registered name: : is encoded there.", Convert("a:b/x", "host"), "hdl://a%3Ab/x"),
    row(
        "U5",
        "A suffix of dots survives in a URL.",
        *(Convert("10.1000/..", "http"), "https://hdl.handle.net/10.1000%2F.."),
        *(Parse("https://hdl.handle.net/10.1000%2F.."), "10.1000 / .."),
    ),
    row("U5", "A malformed escape is refused.", Parse("hdl:12345/100%", strict=True), f"{BAD} U5"),
    row("U5", "Malformed UTF-8 is refused.", Parse("hdl:12345/%FF", strict=True), f"{BAD} U5"),
    elsewhere(
        "U5",
        "Decoding is the exact inverse of encoding for every handle.",
        "tests/names/test_uri.py::test_u2_u3_u4_u5_u8_decoding_is_the_exact_inverse_for_every_handle",
    ),
    row(
        "U6",
        "Query and fragment are separate from the handle.",
        Parse("hdl:12345/x?page=2#top"),
        "12345 / x ? page=2 # top",
    ),
    row(
        "U6",
        "Conversion keeps the spelling, query and fragment.",
        Convert("hdl:12345/X?q#f", "host"),
        "hdl://12345/X?q#f",
    ),
    row("U7", "A name without a scheme is refused in URIs for machines.", Parse("12345/x", strict=True), f"{BAD} U7"),
    *[
        row("U7", f"Other forms are refused there: {name}", Parse(name, strict=True), answer)
        for name, answer in (("doi:12345/x", f"{BAD} U7"), ("hdl:/12345/x", f"{BAD} H1"))
    ],
    row("U7", "People can write a name without a scheme.", Parse("12345/x"), "12345 / x"),
    row("U7", "People can leave / unescaped.", Parse("hdl:12345/a/b"), "12345 / a/b"),
    *[
        row("U7", f"People can write {name}.", Open(name), "12345/a/b")
        for name in (
            "12345/a/b",
            "hdl:12345/a/b",
            "hdl:/12345/a/b",
            "hdl://12345/a%2Fb",
            "doi:12345/a/b",
            "info:hdl/12345/a/b",
        )
    ],
    row("U7", "A bare handle is literal.", Open("12345/a%2Fb"), "12345/a%2Fb", Open("12345/50%25"), "12345/50%25"),
    row("U7", "Query and fragment of a bare handle belong to it.", Open("12345/q?x#y"), "12345/q?x#y"),
    row(
        "U7",
        "Percent-encoding is decoded in URIs, once.",
        *(Open("hdl:12345/a%2Fb"), "12345/a/b"),
        *(Open("hdl:12345/a%252Fb"), "12345/a%2Fb"),
        *(Open("hdl:12345/%C3%BC"), "12345/ü"),
        *(Open("hdl:12345/a%20b"), "12345/a b"),
    ),
    *[
        row("U8", f"The form {one} converts to {other}.", Convert(FORMS[one], other, RESOLVER), FORMS[other])
        for one in FORMS
        for other in FORMS
    ],
)

AUTHORITY_METADATA: Final = (
    row(
        "A1 A5",
        "The example of the document has its dates, creator and owner.",
        *(
            Metadata("102.100.272/2RDV0T0QH"),
            f"2007-06-22T02:53:46Z | 2007-08-10T04:23:11Z | hdl:{PROJECT} | hdl:102.100.pilin2/XYZZY",
        ),
    ),
    row(
        "A1 A3 A8",
        "A new identifier has creation date, last update and creator, added by the server.",
        *(Register("102.100.272/BCDFGHJ1H"), "created 102.100.272/BCDFGHJ1H"),
        *(Metadata("102.100.272/BCDFGHJ1H"), re.compile(rf"{DATE} \| {DATE} \| hdl:{PROJECT} \| ")),
    ),
    row("A2", "Authority metadata is public.", Look("102.100.272/2RDV0T0QH", CREATOR), PROJECT),
    row("A2", "It has the access of resolution: an unpublished handle has none.", Metadata(HIDDEN), NOT_FOUND),
    row("A2", "It is stored in the record.", Types("102.100.272/2RDV0T0QH"), AUTHORITY),
    row(
        "A3",
        "Creation is the first association, set by the server.",
        *(
            Register("102.100.272/BCDFGHJ2H", (value(1, CREATED, "1999-01-01T00:00:00Z"),)),
            f'refused INVALID_VALUE creation_date_type = "{CREATED}"',
        ),
    ),
    elsewhere("A3", "A removal is an update.", "tests/cli/test_cli_resolve.py::test_a3_removal_is_an_update"),
    elsewhere(
        "A3",
        "Server administrators can import dates.",
        "tests/registry/commands/test_records.py::test_a3_only_server_administrators_can_import_dates",
    ),
    row("A4", "The creator resolves.", Look(PROJECT), "The PILIN project"),
    row(
        "A4",
        "A creator hosted here must exist.",
        *(
            Register("102.100.272/BCDFGHJ3H", (value(1, CREATOR, "102.100.272/ZZZZZZZZZ"),)),
            f'refused INVALID_VALUE creator_type = "{CREATOR}"',
        ),
    ),
    row(
        "A4",
        "A creator hosted elsewhere is accepted.",
        *(
            Register("102.100.272/BCDFGHJ4H", (value(1, CREATOR, "10.999/party"),)),
            "created 102.100.272/BCDFGHJ4H",
        ),
        *(Metadata("102.100.272/BCDFGHJ4H"), re.compile(rf"{DATE} \| {DATE} \| hdl:10\.999/party \| ")),
    ),
    row(
        "A4",
        "A creator is a handle.",
        *(
            Register("102.100.272/BCDFGHJ5H", (value(1, CREATOR, "PILIN"),)),
            f'refused INVALID_VALUE creator_type = "{CREATOR}"',
        ),
    ),
    row(
        "A5",
        "The creator is accepted as a URI, and stored as a handle in its registered spelling.",
        *(
            Register("102.100.272/BCDFGHJ6H", (value(1, CREATOR, f"hdl:{PROJECT.lower()}"),)),
            "created 102.100.272/BCDFGHJ6H",
        ),
        *(Look("102.100.272/BCDFGHJ6H", CREATOR), PROJECT),
    ),
    row("A5", "The creation date is text in ISO 8601.", Look(SEED, CREATED), re.compile(DATE)),
    row(
        "A1 A5",
        "An owner is an administrator of the record.",
        *(Register("102.100.272/BCDFGHJ8H", (OWNER,)), "created 102.100.272/BCDFGHJ8H"),
        *(
            Metadata("102.100.272/BCDFGHJ8H"),
            re.compile(rf"{DATE} \| {DATE} \| hdl:{PROJECT} \| hdl:10\.999/owner"),
        ),
    ),
    row(
        "A2 A5",
        "An owner cannot be hidden.",
        *(Register("102.100.272/BCDFGHJ9H", (OWNER | {"permissions": "1100"},)), re.compile("refused INVALID_VALUE.*")),
    ),
    row(
        "A4",
        "An owner hosted here must exist.",
        *(
            Register("102.100.272/BCDFGHJCH", (administrator("102.100.272/ZZZZZZZZZ"),)),
            "refused INVALID_VALUE authority = true",
        ),
    ),
    row(
        "A1 A5",
        "The creator is not an owner.",
        *(Register("102.100.272/BCDFGHJDH", (administrator(PROJECT),)), "created 102.100.272/BCDFGHJDH"),
        *(Metadata("102.100.272/BCDFGHJDH"), re.compile(rf"{DATE} \| {DATE} \| hdl:{PROJECT} \| ")),
    ),
    elsewhere(
        "A5",
        "Owners are distinct from the creator and from prefix handles.",
        "tests/registry/policy/test_authority.py::test_a5_owners_are_administrators_except_creator_and_prefix_handles",
    ),
    *[
        row(
            "A6",
            f"The type {type_} resolves to its definition.",
            Look(type_),
            re.compile(rf"{type_.partition('/')[2]}: .+"),
        )
        for type_ in (CREATED, CREATOR)
    ],
    elsewhere(
        "A6",
        "A namespace can require registered types.",
        "tests/registry/commands/test_records.py::test_a6_policy_can_require_registered_types",
    ),
    row(
        "A7",
        "Nothing else is recorded.",
        *(Register("102.100.272/BCDFGHJ7H"), "created 102.100.272/BCDFGHJ7H"),
        *(Types("102.100.272/BCDFGHJ7H"), f"{AUTHORITY} | URL"),
    ),
    row(
        "A8",
        "Creation date and creator cannot be changed or removed.",
        *(Change(Request("modify", (value(9001, CREATED, "1999-01-01T00:00:00Z"),)), SEED), "refused INVALID_VALUE"),
        *(Change(Request("remove", indexes=(9001,)), SEED), "refused INVALID_VALUE"),
        *(Change(Request("remove", indexes=(9002,)), SEED), "refused INVALID_VALUE"),
        *(Look(SEED, CREATOR), PROJECT),
    ),
    row(
        "A8",
        "Replacing a record keeps them.",
        *(Register("102.100.272/BCDFGHJFH"), "created 102.100.272/BCDFGHJFH"),
        *(Change(Request("replace", (value(2, "DESC", "new"), OURS)), "102.100.272/BCDFGHJFH"), "accepted"),
        *(Types("102.100.272/BCDFGHJFH"), f"{CREATED} | {CREATOR} | DESC | HS_ADMIN"),
    ),
    elsewhere(
        "A8",
        "Without a default creator a record that names none is refused.",
        "tests/registry/policy/test_authority.py::test_a8_record_without_a_creator_is_refused",
    ),
)

SERVICES: Final = (
    row("S1", "A reserved handle does not resolve.", Look("12345/reserved"), NOT_FOUND),
    row(
        "S1", "A reserved handle is owned: others cannot create it.", Reservation("12345"), f"{NOT_FOUND} | {NO_RIGHT}"
    ),
    row("S1", "A chosen handle can be reserved.", Reservation("12345/chosen"), f"{NOT_FOUND} | {NO_RIGHT}"),
    elsewhere(
        "S1",
        "Minting and creation are two dates.",
        "tests/registry/commands/test_records.py::test_s1_creation_date_is_when_the_record_is_created",
    ),
    row("S2", "An unpublished handle is not found.", Look("12345/unpublished"), NOT_FOUND),
    row(
        "S2",
        "Publishing makes it resolvable, unpublishing hides it.",
        *(Lifecycle("publish", "12345/hidden"), "accepted"),
        *(Look("12345/hidden"), "12345/hidden"),
        *(Lifecycle("unpublish", "12345/hidden"), "accepted"),
        *(Look("12345/hidden"), NOT_FOUND),
    ),
    row("S2", "An alias leads to another handle.", Follow("12345/alias"), "https://example.org/12345/taken"),
    row(
        "S2",
        "A record is updated.",
        *(Change(Request("modify", (value(2, "DESC", "updated"),)), "12345/shown"), "accepted"),
        *(Look("12345/shown"), "updated"),
    ),
    row("S3", "Values are resolved by type.", Look("12345/typed", "EMAIL"), "t@example.org"),
    row("S3", "A record is resolved as of a time.", Earlier("12345/changed"), "12345/changed"),
    row(
        "S3",
        "The latest version and a fixed version are two handles, linked.",
        *(Look("102.100.272/X4NDP2JQH", "102.100.TYPE/LINK.WORK"), "102.100.272/8RBZF0DQH"),
    ),
    elsewhere(
        "S3",
        "The appropriate copy is chosen.",
        "tests/server/http/resolver/test_resolver_locations.py::test_headers_choose_among_locations",
    ),
    row("S4", "Identifiers are found by their URL.", Find("url", "https://example.org/t"), "12345/typed"),
    row(
        "S4 S5",
        "Identifiers are found by their owner.",
        *(Find("owner", "102.100.pilin2/XYZZY"), "102.100.272/2RDV0T0QH"),
        without={"compat": "it searches the data of values only"},
    ),
    elsewhere(
        "S5",
        "Reports have no limit.",
        "tests/registry/queries/test_find.py::test_results_are_unlimited_and_pages_skip_a_limited_number",
    ),
    elsewhere("S6", "Links are checked.", "later: checking links"),
    elsewhere("S7", "Content is checked.", "later: checking content"),
    row(
        "S8", "A tombstone has reason, date and replacement.", Look("12345/withdrawn", "TOMBSTONE.REASON"), "Withdrawn"
    ),
    row(
        "S8",
        "Nothing is deleted silently.",
        Change(Request("delete"), SEED),
        "refused INVALID_VALUE",
        Look(SEED),
        POLICY,
    ),
    row(
        "S8",
        "A withdrawn handle still answers.",
        *(Lifecycle("tombstone", "12345/gone"), "accepted"),
        *(Types("12345/gone"), "HS_ADMIN | TOMBSTONE.DATE | TOMBSTONE.REASON"),
        *(Register("12345/gone"), TAKEN),
    ),
    row("S9", "An identifier is transferred.", Transferred("12345.1/x", "300:12345/ann"), "300:12345/ann"),
    elsewhere(
        "S9",
        "A server administrator takes over records without administrators.",
        "tests/registry/commands/test_transfer.py"
        "::test_s9_server_administrator_can_transfer_a_record_without_administrators",
    ),
    elsewhere(
        "S9",
        "A whole namespace is transferred.",
        "tests/registry/jobs/test_transfer_jobs.py::test_s9_whole_prefix_is_transferred_as_one_job",
    ),
    elsewhere(
        "S10",
        "Every citation style has the identifier.",
        "tests/registry/queries/test_citation.py::test_s10_every_style_has_the_identifier",
    ),
    row("S10", "Citations have both forms.", Cite(SEED), f"hdl:{SEED} | https://hdl.example.org/{SEED}"),
    row(
        "S11 A7",
        "Changes are logged with their actor, which is not public.",
        Actors("12345/changed"),
        "local:tests, local:tests | None, None",
    ),
    elsewhere(
        "S11",
        "Owner and manager can be distinct.",
        "tests/registry/policy/test_authority.py::test_a5_policy_can_separate_owners_from_administrators",
    ),
    row(
        "S12",
        "An object and its metadata record have a handle each, linked both ways.",
        *(
            WithMetadata("102.100.272"),
            " / ".join(
                f"{CREATED} | {CREATOR} | 102.100.TYPE/LINK.{each} | HS_ADMIN" for each in ("METADATA", "OBJECT")
            ),
        ),
    ),
    row(
        "S12",
        "The documents and their metadata records have the handles that are printed in them.",
        *(
            Look("2000.01/EEF4DF17361A42E2B975E554663B70C3", "LINK.METADATA"),
            "2000.01/F4FBE5D290194191AAD3A1EFE79D6C5A",
        ),
        *(
            Look("2000.01/FFEE9F72B00C4189B137ECD34188B94E", "LINK.METADATA"),
            "2000.01/A3D8BE7457C943FFB66ED4583059A8BA",
        ),
    ),
    row(
        "S13",
        "A namespace has a purpose, and a rule who can mint.",
        *(
            Policy("102.100.272", ("purpose", "who_may_mint")),
            "Identifiers of the PILIN project and of its documents. | administrators",
        ),
    ),
    row("S13", "Others cannot register.", Change(Request("create", identity=ANN), "12345/s13"), NO_RIGHT),
    elsewhere(
        "S14",
        "Other programs use documented protocols: the API has an OpenAPI document.",
        "tests/server/http/v1/test_v1_openapi.py::test_document_has_exactly_the_routes",
    ),
    *[
        row(
            PROFILES,
            f"The profile {profile} refuses a URL value that is not a URL.",
            *(Register(name, (value(1, "URL", "javascript:alert(1)"),)), re.compile("refused INVALID_VALUE.*")),
            *(Register(name, (value(1, "URL", "notaurl"),)), re.compile("refused INVALID_VALUE.*")),
        )
        for profile, name in (("pilin", "102.100.272/BCDFGHJBH"), ("cordra", f"100.102/{'AB' * 16}"))
    ],
    *[
        row(
            PROFILES,
            f"The profile {profile} declares scheme, case rule and authority metadata.",
            Policy(prefix),
            answer,
        )
        for profile, prefix, answer in (
            ("pilin", "102.100.272", "pilin | insensitive | True"),
            ("cordra", "100.102", "cordra | path | False"),
            ("free", "12345", "free | insensitive | False"),
            ("exact", "54321", "free | sensitive | False"),
        )
    ],
)

TABLE: Final = {
    "Handle syntax": HANDLE_SYNTAX,
    "PILIN suffixes": PILIN_SUFFIXES,
    "CORDRA identifiers": CORDRA_IDENTIFIERS,
    "URI encoding": URI_ENCODING,
    "Authority metadata": AUTHORITY_METADATA,
    "Services and profiles": SERVICES,
}
ROWS: Final = [each for rows in TABLE.values() for each in rows]


def cases() -> Iterator[Any]:
    """Every row at every interface that can express it."""
    count: Counter[str] = Counter()
    for each in ROWS:
        count[each.ids[0]] += 1
        for interface in INTERFACES:
            if each.steps and not each.reason(interface):
                yield pytest.param(each, interface, id=f"{each.ids[0]}-{count[each.ids[0]]}-{interface}")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as opened:
        yield opened


def agrees(answer: str, expected: str | re.Pattern[str], interface: str) -> bool:
    """Whether an answer is the expected one; the protocols of deployed servers report no rules."""
    if isinstance(expected, re.Pattern):
        return expected.fullmatch(answer) is not None
    if interface in ("native", "compat") and expected.startswith("refused "):
        expected = " ".join(expected.split()[:2])
    if interface == "native" and expected.startswith("created "):
        expected = "created"
    return answer == expected


@pytest.mark.parametrize(("each", "interface"), [*cases()])
def test_statement_holds(world: World, each: Row, interface: str) -> None:
    """C6: every identifier also over the native protocol. S14: all of it over documented protocols."""
    *others, (last, answer) = each.steps
    for question, expected in (*others, (last, each.exceptions.get(interface, answer))):
        found = getattr(question, interface)(world)
        assert agrees(found, expected, interface), (each.statement, question, found, expected)


def test_every_requirement_has_a_row() -> None:
    assert {id_ for each in ROWS for id_ in each.ids} == {*REQUIREMENTS, PROFILES}


def test_no_interface_is_left_out_silently() -> None:
    for each in ROWS:
        assert bool(each.steps) != bool(each.shown_by), each
        assert bool(each.exceptions) == bool(each.why), each
        asked = {interface for interface in INTERFACES if not each.reason(interface)}
        assert {*each.exceptions} <= asked, each
        if each.steps:
            assert asked, each
            assert {*each.without} <= {*INTERFACES} - asked, each


def test_tests_elsewhere_exist() -> None:
    for each in ROWS:
        path, _, name = each.shown_by.partition("::")
        if each.shown_by and not each.shown_by.startswith("later: "):
            assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), each.shown_by


def test_page_lists_the_statements() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.interfaces.test_statements"


def page() -> str:
    """The page of the documentation that lists the statements."""
    lines = [INTRODUCTION]
    for title, rows in TABLE.items():
        lines += [f"## {title}", "", "| rule | statement | tested at |", "|---|---|---|"]
        lines += [f"| {', '.join(each.ids)} | {escape(each.statement)} | {shown_where(each)} |" for each in rows]
        lines.append("")
    lines += ["## Where an interface is not asked", "", "| question | interface | reason |", "|---|---|---|"]
    kinds = sorted({type(question) for each in ROWS for question, _ in each.steps}, key=lambda kind: kind.__name__)
    for kind in kinds:
        reasons = {name: way for name in INTERFACES if isinstance(way := getattr(kind, name), str)}
        for reason in dict.fromkeys(reasons.values()):
            names = [LABELS[name] for name, other in reasons.items() if other == reason]
            question = (kind.__doc__ or "").partition("?")[0]
            lines.append(f"| {escape(question)}? | {', '.join(names)} | {escape(reason)} |")
    lines += ["", "## Other answers", "", "| statement | interface | reason |", "|---|---|---|"]
    for each in ROWS:
        others = {**dict.fromkeys(each.exceptions, each.why), **each.without}
        for reason in dict.fromkeys(others.values()):
            names = [LABELS[name] for name, other in others.items() if other == reason]
            lines.append(f"| {escape(each.statement)} | {', '.join(names)} | {escape(reason)} |")
    return "\n".join([*lines, ""])


LABELS: Final = {
    "cli": "command line",
    "python": "Python",
    "native": "native",
    "compat": "`/api/handles`",
    "v1": "`/api/v1`",
    "web": "web",
}

INTRODUCTION: Final = """# Statements

Perseid implements five documents, which [names](names.md) cites: *Handle Syntax*, the suffix format and the authority
metadata of the PILIN project, CORDRA identifiers, and their URI encoding. This page lists what they require, and what
an identifier service offers around them. Each statement is tested by `tests/interfaces/test_statements.py`: the same
question is asked at the command line, in Python, over the native protocol, over both HTTP APIs and on the web, and the
answer must be the same. The page is generated from that table.
"""


def shown_where(each: Row) -> str:
    """Where a statement is tested, for the page."""
    if each.shown_by.startswith("later: "):
        return "not available yet"
    if each.shown_by:
        return f"`{each.shown_by.partition('::')[0]}`"
    asked = [LABELS[name] for name in INTERFACES if not each.reason(name)]
    return "every interface" if len(asked) == len(INTERFACES) else ", ".join(asked)


def escape(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"([|<>*_`{}])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page())

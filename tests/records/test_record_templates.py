"""Templates: every construct, validation, limits, and a comparison with a slow model."""

import re
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.records import templates as implementation
from perseid.records.errors import InvalidData
from perseid.records.namespace import Namespace
from perseid.records.patterns import JavaRegex
from perseid.records.record import Permission, Value, ValueRef
from perseid.records.templates import (
    CHARACTERS_PER_STEP,
    MAX_REFERENCE_DEPTH,
    MAX_TEMPLATE_BYTES,
    MAX_TEMPLATE_EXPRESSIONS,
    MAX_TEMPLATE_STEPS,
    MAX_TEMPLATE_VALUES,
    TemplateBudgetExceeded,
    TemplateInput,
    ValueLookup,
    check_templates,
    evaluate,
    split_name,
)
from perseid.records.xml import parse_xml
from tests.records.template_model import Model, NameNotFound, Node, base_values, templates

URL = Value.text(1, "URL", "https://example.org/a")
DESC = Value(3, "DESC", b"a thing", ttl=60, permissions=Permission(0x0F), timestamp=7, references=(ValueRef(1, "1/x"),))
NOTHING: ValueLookup = lambda _: None  # noqa: E731 - a function that is a value


def run_template(
    text: str,
    extension: str = "ext",
    values: tuple[Value, ...] = (URL, DESC),
    look_up: ValueLookup = NOTHING,
    *,
    ignore_case: bool = True,
) -> tuple[Value, ...] | None:
    """The values of `12345/a@<extension>` from a template with this content."""
    root = parse_xml(f"<namespace><template>{text}</template></namespace>".encode())
    subject = TemplateInput(f"12345/a@{extension}", "12345/a", extension, values, ignore_case)
    return evaluate(root.elements("template"), subject, look_up)


def summarize(found: tuple[Value, ...] | None) -> list[tuple[int, str, str]]:
    assert found is not None
    return [(value.index, value.type, value.data.decode()) for value in found]


def data(text: str, extension: str = "ext", **more: object) -> list[str]:
    return [each for _, _, each in summarize(run_template(text, extension, **more))]  # type: ignore[arg-type]


# Base and extension


@pytest.mark.parametrize(
    ("handle", "delimiter", "parts"),
    [
        ("12345/a@x", "@", ("12345/a", "x")),
        ("12345/a@x@y", "@", ("12345/a", "x@y")),
        ("12345/a@", "@", ("12345/a", "")),
        ("12345/@x", "@", ("12345/", "x")),
        ("12345/a/b", "/", ("12345", "a/b")),  # the slash after the prefix counts
        ("12345/a", "@", None),
        ("12345/a", "", None),
        ("12345/a::b", "::", ("12345/a", "b")),
        ("10.1/a.b", ".", ("10.1/a", "b")),  # not the dot in the prefix
        ("10.1/ab", ".", None),
    ],
)
def test_name_is_split_at_the_first_delimiter_after_its_prefix(
    handle: str, delimiter: str, parts: tuple[str, str] | None
) -> None:
    assert split_name(handle, handle.partition("/")[0], delimiter) == parts


# Values


def test_value_outside_a_loop_requires_type_and_data() -> None:
    (value,) = run_template('<value type="URL" data="https://example.org/${extension}"/>') or ()
    assert value == Value.text(1, "URL", "https://example.org/ext")
    assert (value.ttl, value.permissions, value.timestamp) == (86_400, Permission(0x0E), 0)
    assert summarize(run_template('<value index="9" type="A-${base}" data=""/>')) == [(9, "A-12345/a", "")]
    assert run_template('<value type="URL"/><value data="x"/>') == (), "what says too little makes nothing"


def test_data_can_be_element_content() -> None:
    assert data('<value type="URL"> ${extension}\n</value>') == ["ext"]
    assert data("<value type='T'><![CDATA[<a b='${extension}'/>]]></value>") == ["<a b='ext'/>"]
    assert data("<value type='T' data='attribute'>content</value>") == ["attribute"]


def test_xml_content_stays_valid_with_any_parameters() -> None:
    text = (
        '<value type="10320/loc"><locations> <location href="${extension}">${extension}</location></locations></value>'
    )
    (found,) = data(text, 'a"b&c<d')
    assert parse_xml(found.encode()).elements()[0].get("href") == 'a"b&c<d'
    assert parse_xml(found.encode()).elements()[0].text == 'a"b&c<d'


def test_used_index_becomes_the_next_free_index() -> None:
    text = '<value index="{}" type="T" data="{}"/>'
    found = run_template("".join(text.format(index, number) for number, index in enumerate([2, 1, 1, 2, 7])))
    assert summarize(found) == [(2, "T", "0"), (1, "T", "1"), (3, "T", "2"), (4, "T", "3"), (7, "T", "4")]
    last = text.format(0x7FFF_FFFF, 0)
    assert [index for index, *_ in summarize(run_template(last * 3))] == [0x7FFF_FFFF, 1, 2]
    assert [index for index, *_ in summarize(run_template('<value index="-1" type="T" data=""/>'))] == [1], (
        "as if it said none"
    )


def test_loop_iterates_over_the_base_and_inherits_missing_fields() -> None:
    assert run_template("<foreach><value/></foreach>") == (URL, DESC)
    found = run_template('<foreach><value index="5" data="${index} ${type} ${data}"/></foreach>')
    assert summarize(found) == [(5, "URL", "1 URL https://example.org/a"), (6, "DESC", "3 DESC a thing")]
    assert found is not None
    assert found[1].references == DESC.references
    assert (found[1].ttl, found[1].permissions, found[1].timestamp) == (60, DESC.permissions, 7)
    assert data('<foreach><value/></foreach><value type="T" data="${data}|${index}"/>')[-1] == "|"
    assert run_template("<foreach><foreach><value/></foreach></foreach>") == (), "a loop in a loop is none"
    assert run_template("<foreach><value/></foreach>", values=()) == ()


def test_binary_data_is_copied_exactly_and_decoded_with_replacement() -> None:
    binary = Value(1, "DATA", b"\xff\x00a")
    assert run_template("<foreach><value/></foreach>", values=(binary,)) == (binary,)
    assert data('<foreach><value data="${data}"/></foreach>', values=(binary,)) == ["\ufffd\0a"]


# Tests and parameters


@pytest.mark.parametrize(
    ("attributes", "extension", "expected"),
    [
        ('expression="ext"', "ext", True),
        ('expression="ext"', "EXT", False),  # case is folded only in regular expressions
        ('test="equals" expression="e.t"', "ext", False),
        ('test="matches" expression="e.t"', "ext", True),
        ('test="matches" expression="E.T"', "ext", True),
        ('test="matches" expression="e."', "ext", False),
        ('expression="ext" negate="yes"', "ext", False),
        ('expression="ext" negate="true"', "x", True),
        ('expression="ext" negate="no"', "ext", True),
        ('value="base" expression="12345/a"', "ext", True),
        ('value="handle" expression="12345/a@ext"', "ext", True),
        ('value="nothing" expression=""', "ext", True),
        ('test="matches" expression="(a)\\1" ', "aa", False),  # an unsupported expression matches nothing
        ('test="matches" expression="(a)\\1" negate="yes"', "aa", True),
        ("", "", False),
    ],
)
def test_if_and_else_are_opposite(attributes: str, extension: str, expected: bool) -> None:
    text = f'<if {attributes}><value type="T" data="if"/></if> <else><value type="T" data="else"/></else>'
    assert data(text, extension) == ["if" if expected else "else"]


def test_expressions_are_case_sensitive_in_case_sensitive_namespaces() -> None:
    text = '<if test="matches" expression="EXT"><value type="T" data="x"/></if>'
    assert run_template(text, ignore_case=False) == ()
    assert run_template(text.replace("EXT", "(?i)EXT"), ignore_case=False) != ()


def test_else_belongs_to_the_last_if_of_its_level() -> None:
    a, b = '<value type="T" data="a"/>', '<value type="T" data="b"/>'
    assert data(f'<if expression="x">{a}</if>{b}<else>{a}</else>') == ["b", "a"]
    assert run_template(f"<else>{a}</else>") == ()
    assert run_template(f'<if expression="ext"><else>{a}</else></if>') == ()
    assert data(f'<if expression="x"/><if expression="ext">{a}</if><else>{b}</else>') == ["a"]


def test_captured_groups_are_available_by_number_and_name() -> None:
    matching = '<if test="matches" expression="(\\d+)x(\\d+)(z)?"{}/><value type="T" data="{}"/>'
    assert data(matching.format("", "$1,$2,$3,$0,${extension[2]},${extension}"), "12x7") == ["12,7,,12x7,7,12x7"]
    assert data(matching.format(' parameter="size"', "${size[1]},${size},${size[9]},$1"), "12x7") == ["12,12x7,,"]
    assert data(matching.format("", "$12,$31"), "12x7") == ["122,1"], "as many digits as there are groups"
    assert data(matching.format("", "$1"), "none") == [""]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("${nothing}", ""),
        (r"\${extension}\\\a", r"${extension}\a"),
        ("$", "$"),
        ("$x", "$x"),
        ("${extension", "${extension"),
        ("a\\", "a\\"),
        ("${}", ""),
        ("${extension[x]}", ""),
        ("${extension[0]}", "ext"),
        ("${a{b}}", "${a{b}}"),
        ("$1", ""),
    ],
)
def test_substitution(text: str, meaning: str) -> None:
    assert data(f'<value type="T" data="{text}"/>') == [meaning]
    assert summarize(run_template(f'<value type="{text}" data=""/>')) == [(1, meaning, "")]


def test_def_stores_the_data_of_the_first_value() -> None:
    first = '<def parameter="url"><foreach><if value="type" expression="URL"><value/></if></foreach></def>'
    use = '<value type="URL" data="${url}?${extension}"/>'
    assert summarize(run_template(first + use)) == [(1, "URL", "https://example.org/a?ext")]
    assert data(first + use, values=()) == ["?ext"]
    definition = '<def parameter="{}"><value type="T" data="{}"/></def>'
    used = '<if value="x" expression="a"><value type="T" data="b"/></if>'
    assert data(definition.format("x", "a") + used) == ["b"]
    chosen = f'<if expression="x">{definition.format("p", 1)}</if><else>{definition.format("p", 2)}</else>'
    assert data(chosen + '<value type="T" data="${p}"/>') == ["2"]
    assert run_template("<def><value/></def>") == ()


def test_notfound_stops_the_evaluation() -> None:
    assert run_template('<value type="T" data="a"/><if expression="ext"><notfound/></if>') is None
    assert run_template('<value type="T" data="a"/><if expression="x"><notfound/></if>') != ()
    assert run_template('<def parameter="x"><notfound/></def>') is None


def test_unknown_elements_are_ignored() -> None:
    assert run_template('<vlaue type="T" data="a"/><x:y/>text') == ()


# References


def value_lookup(**records: str) -> ValueLookup:
    """Values under `10:1/<name>`."""
    return lambda reference: (
        records[name].encode()
        if reference.index == 10 and (name := reference.handle.removeprefix("1/")) in records
        else None
    )


def test_reference_is_replaced_by_the_template_in_another_value() -> None:
    value = '<value type="T" data="{} ${{extension}}"/>'
    look_up = value_lookup(
        plain=f"<template>{value.format('plain')}</template>",
        space=f"<namespace><contact/><template>{value.format('space')}</template></namespace>",
        root=f"<anything>{value.format('root')}</anything>",
        chained='<template ref="10:1/plain"/>',
    )
    for name in ("plain", "space", "root"):
        assert data(f'<template ref="10:1/{name}"/>', look_up=look_up) == [f"{name} ext"]
    assert data('<template ref=" 10:1/chained "/>', look_up=look_up) == ["plain ext"]
    within = '<foreach><if value="type" expression="URL"><template ref="10:1/plain"/></if></foreach>'
    assert run_template(within, look_up=look_up) == (Value(1, "T", b"plain ext"),)


@pytest.mark.parametrize(
    "reference", ["10:1/none", "11:1/plain", "1/plain", "", ":", "x:1/plain", "99999999999:1/plain", "10:1/broken"]
)
def test_broken_reference_means_not_found(reference: str) -> None:
    look_up = value_lookup(plain="<template/>", broken="<template")
    assert run_template(f'<value type="T" data="a"/><template ref="{reference}"/>', look_up=look_up) is None


def test_reference_depth_is_limited() -> None:
    chain = {f"n{number}": f'<template ref="10:1/n{number + 1}"/>' for number in range(20)}
    end = '<template><value type="T" data="end"/></template>'
    deepest = f"n{MAX_REFERENCE_DEPTH - 1}"
    assert data('<template ref="10:1/n0"/>', look_up=value_lookup(**(chain | {deepest: end}))) == ["end"]
    assert (
        run_template('<template ref="10:1/n0"/>', look_up=value_lookup(**(chain | {f"n{MAX_REFERENCE_DEPTH}": end})))
        is None
    )


# Hostile templates

V = '<value type="T" data="x"/>'
REFER = '<template ref="10:1/a"/>'
TEST = '<if expression="x"/>'


def test_circular_references_terminate() -> None:
    looping = value_lookup(a='<template ref="10:1/b"/>', b='<template><template ref="10:1/a"/></template>')
    assert run_template('<template ref="10:1/a"/>', look_up=looping) is None
    wide = value_lookup(a=f"<template>{V}{REFER * 50}</template>")
    assert run_template('<template ref="10:1/a"/>', look_up=wide) is None


def test_deepest_valid_template_can_be_evaluated() -> None:
    deep = "<if expression='x' negate='yes'>" * 29
    records = {
        f"n{number}": f'<template>{deep}<template ref="10:1/n{number + 1}"/>{"</if>" * 29}</template>'
        for number in range(MAX_REFERENCE_DEPTH)
    }
    records[f"n{MAX_REFERENCE_DEPTH - 1}"] = f"<template>{deep}{V}{'</if>' * 29}</template>"
    assert data('<template ref="10:1/n0"/>', look_up=value_lookup(**records)) == ["x"]


def test_number_of_values_is_limited() -> None:
    base = tuple(Value(index, "T", b"") for index in range(1, MAX_TEMPLATE_VALUES + 1))
    found = run_template('<foreach><value index="1"/></foreach>', values=base)
    assert found is not None
    assert [value.index for value in found] == list(range(1, MAX_TEMPLATE_VALUES + 1))
    with pytest.raises(TemplateBudgetExceeded, match="more than 2,048 values"):
        run_template(f'<foreach><value index="1"/></foreach>{V}', values=base)


def test_number_of_bytes_is_limited() -> None:
    around = len(Value(1, "T", b"").to_bytes())
    large = (Value(1, "T", b"a" * (MAX_TEMPLATE_BYTES - around)),)
    assert run_template("<foreach><value/></foreach>", values=large) == large
    with pytest.raises(TemplateBudgetExceeded, match="more than 262,144 bytes"):
        run_template(f"<foreach><value/></foreach>{V}", values=large)


def test_length_of_a_text_is_limited() -> None:
    growing = '<def parameter="x"><value type="T" data="ab"/></def>' + (
        '<def parameter="x"><value type="T" data="${x}${x}${x}${x}"/></def>' * 30
    )
    with pytest.raises(TemplateBudgetExceeded, match="more than 262,144 bytes"):
        run_template(growing)
    wide = '<foreach><value type="' + "${data}" * 1_000 + '" data=""/></foreach>'
    with pytest.raises(TemplateBudgetExceeded, match="more than 262,144 bytes"):
        run_template(wide, values=(Value(1, "T", b"a" * 200_000),))


LONG = "a" * 60
MANY = tuple(Value(index, "T", b"a" * 100) for index in range(1, 1_001))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"<foreach>{TEST * 20}</foreach>", MANY),
        (
            '<foreach><def parameter="x"><value data="${data}${data}"/></def></foreach>' * 60,
            (Value(1, "T", b"a" * 100_000),),
        ),
        ('<foreach><if value="data" expression="x"/></foreach>' * 60, (Value(1, "T", b"a" * 200_000),)),
        (
            '<foreach><if value="data" test="matches" expression="(?:a?){300}b"/></foreach>',
            (Value(1, "T", b"a" * 200_000),),
        ),
        ("".join(f'<if test="matches" expression="x{n}\\pL{{9}}"/>' for n in range(400)), ()),
        ("".join(f'<if test="matches" expression="x{n}\\pL{{900}}"/>' for n in range(400)), ()),
        ("".join(f'<if test="matches" expression="{n}{LONG}"/>' for n in range(600)), ()),
    ],
    ids=["elements", "texts", "comparisons", "matching", "expressions", "refused expressions", "long expressions"],
)
def test_number_of_steps_is_limited(text: str, values: tuple[Value, ...]) -> None:
    with pytest.raises(TemplateBudgetExceeded, match=f"more than {MAX_TEMPLATE_STEPS:,} steps"):
        run_template(text, values=values)


# Many short texts: each costs less than a step, but together they cost many. The test counts the output, since time
# would depend on the machine more than on the template.

SHORT = '<def parameter="x"><value type="T" data="%s"/></def>' % ("y" * 900)
WIDE = "".join(f' a{number}="${{x}}"' for number in range(60))
LOTS = tuple(Value(index, "T", b"d") for index in range(1, 2_001))
DEFINE = '<def parameter="z"><value type="T" %s</def>'
COSTLY = {
    "attributes": SHORT + "<foreach>" + DEFINE % f"><b{WIDE}/><b{WIDE}/></value>" * 16 + "</foreach>",
    "texts between elements": SHORT + "<foreach>" + DEFINE % f">{'${x}<b/>' * 50}</value>" * 16 + "</foreach>",
    "short data": SHORT + "<foreach>" + DEFINE % 'data="${x}"/>' * 300 + "</foreach>",
    "empty parameters": "<foreach>" + DEFINE % f'data="{"$1" * 4_000}"/>' * 7 + "</foreach>",
    "backslashes": "<foreach>" + DEFINE % f">{chr(92) + 'a'}</value>".replace("\\a", "\\a" * 25_000) + "</foreach>",
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_steps_bound_the_number_of_characters_and_parameters(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    characters = tokens = 0
    meaning = implementation._Evaluation._expand

    def counting(self: implementation._Evaluation, token: "re.Match[str]") -> str:
        nonlocal characters, tokens
        found = meaning(self, token)
        characters, tokens = characters + len(found), tokens + 1
        return found

    monkeypatch.setattr(implementation._Evaluation, "_expand", counting)
    with pytest.raises(TemplateBudgetExceeded, match=f"more than {MAX_TEMPLATE_STEPS:,} steps"):
        run_template(text, values=LOTS)
    assert characters + 20 * tokens <= (MAX_TEMPLATE_STEPS + 1) * CHARACTERS_PER_STEP


def test_inherited_fields_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    to_bytes = Value.to_bytes

    def counting(self: Value) -> bytes:
        nonlocal written
        written += len(self.data) + 20 * len(self.references)
        return to_bytes(self)

    monkeypatch.setattr(Value, "to_bytes", counting)
    large = Value(1, "T", b"a" * 100_000)
    for value in (large, Value(1, "T", b"", references=(ValueRef(1, "1/a"),) * 5_000)):
        written = 0
        with pytest.raises(TemplateBudgetExceeded, match=r"^the template takes more than 10,000 steps$"):
            run_template("<foreach>" + '<def parameter="x"><value/></def>' * 400 + "</foreach>", values=(value,) * 10)
        assert written <= (MAX_TEMPLATE_STEPS + 200) * CHARACTERS_PER_STEP


def test_captured_groups_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    matched = 0
    match = JavaRegex.match

    def counting(self: JavaRegex, text: str) -> tuple[str, ...] | None:
        nonlocal matched
        matched += 1
        return match(self, text)

    monkeypatch.setattr(JavaRegex, "match", counting)
    text = f'<foreach><if test="matches" value="nothing" expression="{"()" * 400}"/></foreach>'
    with pytest.raises(TemplateBudgetExceeded, match=r"^the template takes more than 10,000 steps$"):
        run_template(text, values=LOTS)
    assert matched * 400 < 10 * MAX_TEMPLATE_STEPS


@pytest.mark.parametrize(
    "value",
    [
        f'<value type="T"><c{WIDE}/></value>',
        f'<value type="T">{"<c>" * 20}{"${x}<b/>" * 60}{"</c>" * 20}</value>',
        f'<value type="T"><c a="{"${x}" * 10}">{"${x}" * 10}</c></value>',
    ],
    ids=["attributes", "nested", "both"],
)
def test_intermediate_text_is_limited_like_the_final_text(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    meaning = implementation._Evaluation._expand

    def counting(self: implementation._Evaluation, token: "re.Match[str]") -> str:
        nonlocal longest
        found = meaning(self, token)
        longest += len(found)
        return found

    define = '<def parameter="x"><value type="T" data="%s"/></def>'
    text = define % ("y" * 800) + define % ("${x}" * 40)
    assert len(data(text + '<value type="T" data="${x}"/>')[0]) == 32_000
    monkeypatch.setattr(implementation._Evaluation, "_expand", counting)
    with pytest.raises(TemplateBudgetExceeded, match="more than 262,144 bytes"):
        run_template(text + value)
    assert longest <= 32_000 + MAX_TEMPLATE_BYTES + 32_000


def test_elements_without_content_are_written_as_empty() -> None:
    assert data('<value type="T"><a>${nothing}</a><b x="${nothing}"><c/></b></value>') == ['<a/><b x=""><c/></b>']
    assert data('<value type="T">${nothing}<a>${nothing}<b/>${nothing}</a></value>') == ["<a><b/></a>"]


@pytest.mark.parametrize("count", [5, 4_200, 4_400, 60_000])
def test_group_number_has_at_most_four_digits(count: int) -> None:
    digits = "0" * count
    for text in (f'<value type="T" data="${digits}"/>', f'<value type="T">${digits}</value>')[count > 8_000 :]:
        assert data(text) == ["ext" + "0" * (count - 4)]


def test_number_of_references_is_limited() -> None:
    requested: list[str] = []

    def look_up(reference: ValueRef) -> bytes:
        requested.append(reference.handle)
        return b"<template/>"

    with pytest.raises(TemplateBudgetExceeded, match=r"^the template takes more than 10,000 steps$"):
        run_template("".join(f'<template ref="10:1/{number}"/>' for number in range(100)), look_up=look_up)
    assert len(requested) == 19
    requested.clear()
    assert run_template('<template ref="10:1/same"/>' * 100, look_up=look_up) == ()
    assert requested == ["1/same"], "what was read once is not read again"


# Validation

WRONG = {
    '<template><vlaue type="T" data="a"/></template>': "<vlaue> is unknown; use template, value, foreach",
    "<template>text</template>": "<template> contains text",
    '<template><value type="T"/></template>': "<value> requires data outside <foreach>",
    "<template><value/></template>": "<value> requires type and data",
    '<template><value type="T" data="" ttl="5"/></template>': "<value> has the unknown attribute",
    '<template><value index="0" type="T" data="a"/></template>': "an invalid index: '0'",
    '<template><value index="x" type="T" data="a"/></template>': "an invalid index",
    '<template><value index="2147483648" type="T" data="a"/></template>': "an invalid index",
    "<template><foreach><if expression='a'><foreach/></if></foreach></template>": "<foreach> cannot be nested",
    "<template><else/></template>": "<else> has no <if> before it",
    '<template><if expression="a"><else/></if></template>': "<else> has no <if> before it",
    "<template><if/></template>": "<if> has no expression",
    '<template><if test="like" expression="a"/></template>': "an invalid test: 'like'",
    '<template><if expression="a" negate="perhaps"/></template>': "an invalid negate: 'perhaps'",
    '<template><if test="matches" expression="(a)\\1"/></template>': "<if> has an invalid expression: in",
    '<template><if test="matches" expression="(?=a)"/></template>': "begins a lookaround",
    '<template><if test="matches" expression="[a&amp;&amp;b]"/></template>': "intersection of classes",
    "<template><def/></template>": "<def> has no parameter attribute",
    '<template ref="x:y:z"><value/></template>': "without an index",
    '<template ref="12345/a"/>': "without an index; write INDEX:HANDLE",
    '<template ref=""/>': "an invalid reference",
    '<template ref="1:12345/a"> </template>': "a reference and content",
    "<template/><template><notfound>x</notfound></template>": "<notfound> contains text",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=WRONG)
def test_invalid_template_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidData) as caught:
        check_templates(Namespace(f"<namespace>{text}</namespace>"))
    assert sentence in str(caught.value)


def test_number_of_expressions_is_limited() -> None:
    def namespace(count: int, template: str = '<if test="matches" expression="x{}"/>') -> Namespace:
        return Namespace(f"<n><template>{''.join(map(template.format, range(count)))}</template></n>")

    check_templates(namespace(MAX_TEMPLATE_EXPRESSIONS))
    check_templates(namespace(500, '<if test="matches" expression="x"/>'))
    check_templates(namespace(500, '<if expression="{}"/>'))
    with pytest.raises(InvalidData, match="<if> exceeds the maximum of 64 regular expressions"):
        check_templates(namespace(MAX_TEMPLATE_EXPRESSIONS + 1))


def test_every_construct_is_valid() -> None:
    text = """
    <namespace><status>active</status>
      <template delimiter="@">
        <foreach>
          <if value="type" expression="URL"><value data="${data}?$1"/></if> <else><value/></else>
        </foreach>
        <if test="matches" expression="(\\d+)" negate="no" parameter="n"><value type="T"><a b="c"/></value></if>
        <else><def parameter="x"><value type="T" data=""/></def><notfound/></else>
        <template ref="10:1/a"/>
      </template>
      <template ref="10:1/b"/>
    </namespace>"""
    check_templates(Namespace(text))
    check_templates(Namespace("<anything><other/></anything>"))


# Comparison with the model

_extensions = st.sampled_from(["", "a", "ab", "a=b", "12", "URL", "é", "a\nb"])


@given(templates, _extensions, base_values, st.booleans())
@settings(max_examples=150, deadline=None)
def test_evaluation_matches_the_model(
    template: Node, extension: str, values: tuple[Value, ...], ignore_case: bool
) -> None:
    model = Model(f"12345/a@{extension}", "12345/a", extension, values, ignore_case)
    output: list[Value] = []
    expected: list[Value] | None = output
    try:
        model.run(template.children, None, output)
    except NameNotFound:
        expected = None
    subject = TemplateInput(f"12345/a@{extension}", "12345/a", extension, values, ignore_case)
    found = evaluate((parse_xml(template.xml().encode()),), subject, NOTHING)
    assert (None if found is None else list(found)) == expected


@given(templates)
@settings(max_examples=50, deadline=None)
def test_valid_template_can_be_evaluated(template: Node) -> None:
    """A template is refused with a message or can be evaluated for any name."""
    namespace = Namespace(f"<n x={quoteattr('ü')}>{template.xml()}</n>")
    try:
        check_templates(namespace)
    except InvalidData:
        with pytest.raises(InvalidData, match=r"^in a template, <"):
            check_templates(namespace)
        return
    evaluate(namespace.templates, TemplateInput("1/a@b", "1/a", "b", (URL,)), NOTHING)

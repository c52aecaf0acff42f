"""`create`, `resolve`, `set`, `add`, `remove`, `delete`, `list` on an installation."""

import json
from pathlib import Path

import pytest

from perseid.names.handle import Handle
from perseid.records.record import Value
from perseid.registry.commands.records import Create
from perseid.registry.identity import LocalIdentity
from perseid.registry.installation.installation import Installation
from tests.cli.installation import Site, refused, site

WORK = "102.100.272/8RBZF0DQH"
NEW = "102.100.272/BCDFGHJKH"
CORDRA = "2000.01/EEF4DF17361A42E2B975E554663B70C3"


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    """An installation with the namespaces of the seed documents."""
    return site(tmp_path, "--demo")


@pytest.fixture
def plain(tmp_path: Path) -> Site:
    """An installation with a namespace without required types."""
    return site(tmp_path, "--prefix", "12345")


def test_create_prints_only_the_registered_handle(demo: Site) -> None:
    done = demo.ok("create 102.100.272/bcdfghjkh --url https://example.org/ --value EMAIL!private=a@example.org")
    assert (done.out, done.err) == (f"{NEW}\n", "")
    assert demo.lines(f"resolve {NEW} --type URL --type HS_ADMIN") == [
        "  1  URL       https://example.org/",
        "100  HS_ADMIN  200:0.NA/102.100.272",
    ]
    assert "2  EMAIL!private" in demo.ok(f"resolve {NEW} --private").out


def test_create_prints_json(plain: Site) -> None:
    done = plain.ok("create hdl:12345/A%2Fb --value 7:DESC=text --json")
    assert done.json["handle"] == "12345/A/b"
    assert plain.ok("resolve 12345/a/B --json").json["handle"] == "12345/A/b"
    assert plain.lines("list 12345") == ["12345/A/b"]
    assert done.json["seq"] == json.loads(plain.ok("list 12345 --json").out)["seq"]


def test_url_that_leads_nowhere_is_stored_with_a_warning(plain: Site) -> None:
    done = plain.ok("create 12345/j --url javascript:alert(1)")
    assert done.out == "12345/j\n"
    start = (
        "Warning: Value 1 of type URL, 'javascript:alert(1)', has the scheme javascript, which is none of http, https, "
    )
    assert done.err.startswith(start)
    advice = "Use an absolute URL, such as https://example.org/1"
    message = "Value 1 of type URL, 'notaurl', is not an absolute URL"
    parameters = {"index": 1, "type": "URL", "data": "notaurl", "problem": "is not an absolute URL"}
    assert plain.ok("set 12345/j URL=notaurl --json").json["warnings"] == [
        {
            "code": "unusable_url",
            "message": message,
            "parameters": parameters,
            "advice": advice,
            "advice_kind": "USE_ABSOLUTE_URL",
        }
    ]
    done = plain.ok("mint 12345 --url example.org")
    assert done.err.startswith("Warning: Value 1 of type URL, 'example.org', is not an absolute URL. ")
    assert done.err.endswith(". Use https://example.org instead\n")
    assert plain.ok("add 12345/j EMAIL=x").err == "", "what it had before is not reported again"
    minted = plain("mint 12345 --count 2 --url notaurl")
    assert minted.err.splitlines()[-1] == f"Warning: {message}. {advice}"
    assert "warnings" not in plain.ok("mint 12345 --url https://example.org/ --json").json


def test_probable_mistakes_are_stored_with_a_warning(plain: Site) -> None:
    mistakes = {
        "URLL": "URL",
        "url": "URL",
        "ULR": "URL",
        "HS_ALIASS": "HS_ALIAS",
        "EMIAL.x": "EMAIL",
        "TITEL": "TITLE",
    }
    for type_, meant in mistakes.items():
        done = plain.ok(f"create 12345/of-{type_} --value {type_}=https://example.org/")
        warning = f"Value 1 has the type '{type_}', which clients may not know. Use {meant}, if you mean that"
        assert done.err == f"Warning: {warning}\n"
    assert plain.ok("set 12345/of-URLL URLL=https://example.org/2").err == "", "it had the type before"
    assert plain.ok("create 12345/o --value CHECKSUM=x --value URL.us=https://example.org/ --value URI=x").err == ""
    assert plain.ok("add 12345/o dc.title=x 10320/url=x DATA=x").err == ""
    assert "'url', which clients may not know. Use URL, " in plain.ok("set 12345/o url=https://example.org/").err
    assert "'Title', which clients may not know. Use TITLE, " in plain.ok("add 12345/o TITLE=x Title=y").err
    assert "'Ulr', which clients may not know. Use URL, " in plain.ok("mint 12345 --value Ulr=x").err
    done = plain.ok("create", "12345/z", "--url", "https://exam\u200bple.org/")
    assert "'https://exam\\u200bple.org/', contains U+200B, an invisible, format or private-use character" in done.err
    assert plain.ok("add 12345/z EMAIL=x").err == "", "what it had before is not reported again"


def test_warning_and_redirect_have_the_same_schemes(plain: Site) -> None:
    warned = plain.ok("create 12345/u --url urn:isbn:9780000000000").err
    assert "is none of http, https, ftp, mailto. Use a URL with one of these schemes" in warned
    environ = {"PERSEID_HTTP_SCHEMES": "https,urn"}
    assert plain("create 12345/v --url urn:isbn:9780000000000", environ=environ).err == ""


def test_s2_alias_of_a_missing_handle_is_stored_with_a_warning(plain: Site) -> None:
    plain.ok("reserve 12345/later")
    for target in ("12345/none", "12345/later"):  # for aliases, handles that are not public do not exist
        done = plain.ok(f"create 12345/of-{target.partition('/')[2]} --value HS_ALIAS={target}")
        fix = f"Correct the alias, or create {target}: perseid create {target} --url URL"
        assert done.err == f"Warning: Value 1 is an alias of {target}, which does not exist. {fix}\n"
    plain.ok("create 12345/x --url https://example.org/")
    for target in ("12345/X", "98765/elsewhere"):
        assert plain.ok(f"set 12345/of-none HS_ALIAS={target}").err == ""
    assert len(plain.ok("mint 12345 --value HS_ALIAS=12345/none --json").json["warnings"]) == 1


def test_pilin_namespace_refuses_a_url_that_leads_nowhere(demo: Site) -> None:
    for command in ("create 102.100.272/BCDFGHJKH", "mint 102.100.272"):
        done = demo(f"{command} --url notaurl")
        assert (done.code, done.out) == (4, "")
        assert (
            "Value 1 of type 'URL', 'notaurl', is not an absolute URL; the policy of this namespace says: url_"
            in done.err
        )
        assert "Use an absolute URL, such as https://example.org/1" in done.err


def test_h3_record_whose_handle_is_not_legal_any_more_is_replaced_with_overwrite(plain: Site) -> None:
    old, options = "12345/old\u200b", ("--url", "https://example.org/2", "--overwrite")
    with Installation.open(plain.directory) as installation:
        create = Create(Handle.parse_lenient(old), (Value.text(1, "URL", "https://example.org/1"),))
        installation.registry().do(create, LocalIdentity("test"), "import")
    assert plain.ok("explain create", old, *options).out.startswith("allowed")
    assert plain.ok("create", old, *options, "--json").json["handle"] == old
    for words in (("12345/new\u200b", *options), (old, *options[:2])):
        refused(plain("create", *words), "the suffix ends with U+200B", code=2)


def test_invisible_characters_inside_a_handle_are_stored_with_a_warning(plain: Site) -> None:
    name = "12345/a\u200bb"
    warning = "'12345/a\\u200bb' contains U+200B, an invisible, format or private-use character"
    advice = "If it is there by mistake, write it without this character"
    assert plain.ok("create", name, "--url", "https://example.org/").err == f"Warning: {warning}. {advice}\n"
    assert plain.ok("create", name, "--url", "https://example.org/2", "--overwrite").err == ""
    assert plain.ok("set", name, "URL=https://example.org/3").err == ""
    reserved = plain.ok("reserve", f"{name}b", "--json").json
    (found,) = reserved["warnings"]
    assert (found["message"], found["advice"]) == (warning.replace("bb'", "bbb'"), advice)
    assert plain.ok("create", f"{name}b", "--url", "https://example.org/").err == "", "said when it was reserved"
    assert [each["message"] for each in plain.ok("mint", name, "--json").json["warnings"]] == [warning]


def test_blank_in_a_type_is_stored_with_a_warning(plain: Site) -> None:
    warning = (
        "Value {} has the type {}, which contains {}: clients that ask for the type without it do not find the value"
    )
    done = plain.ok("create 12345/t --value", "U RL=https://example.org/")
    assert done.err.startswith(f"Warning: {warning.format(1, repr('U RL'), 'a space (U+0020)')}. If it is there by ")
    added = plain.ok("add 12345/t", "U RL=x", "E\tMAIL=x", "D\u200b=x", "URN X=x", "--json").json
    assert [each["message"] for each in added["warnings"]] == [
        warning.format(3, repr("E\tMAIL"), "a control character (U+0009)"),
        warning.format(4, repr("D\u200b"), "an invisible, format or private-use character (U+200B)"),
        warning.format(5, repr("URN X"), "a space (U+0020)"),
    ], "what it had before is not reported again"


def test_existing_handle_is_replaced_only_with_overwrite(plain: Site) -> None:
    plain.ok("create 12345/x --url https://example.org/1 --value DESC=one")
    refused(plain("create 12345/X --url https://example.org/2"), "Handle 12345/X already exists", "overwrite")
    plain.ok("create 12345/x --url https://example.org/2 --overwrite")
    assert plain.lines("resolve 12345/x --type URL --type DESC") == ["1  URL  https://example.org/2"]


WHOLE = b'[{"index": 1, "type": "URL", "data": "https://example.org/2"}]'
AT_100 = b'[{"index": 100, "type": "URL", "data": "https://example.org/2"}]'


@pytest.mark.parametrize(
    ("command", "stdin", "expected"),
    [
        ("create 12345/x --url https://example.org/2 --overwrite", b"", ["1 URL", "100 HS_ADMIN", "101 HS_ADMIN"]),
        ("create 12345/x --from - --overwrite", WHOLE, ["1 URL", "100 HS_ADMIN", "101 HS_ADMIN"]),
        ("set 12345/x --from -", WHOLE, ["1 URL", "100 HS_ADMIN", "101 HS_ADMIN"]),
        ("set 12345/x --from -", AT_100, ["100 URL", "101 HS_ADMIN", "102 HS_ADMIN"]),
        ("create 12345/x --value HS_ADMIN=300:12345/bea --overwrite", b"", ["100 HS_ADMIN"]),
    ],
)
def test_replacing_a_record_preserves_its_administrators_by_default(
    plain: Site, command: str, stdin: bytes, expected: list[str]
) -> None:
    plain.ok("create 12345/x --url https://example.org/1 --value HS_ADMIN=300:12345/a --value HS_ADMIN=300:12345/b")
    plain.ok(command, stdin=stdin)
    lines = [line.split() for line in plain.lines("resolve 12345/x")]
    assert [f"{index} {type_}" for index, type_, *_ in lines] == expected
    administrators = [identity for _, type_, identity in lines if type_ == "HS_ADMIN"]
    assert administrators == (["300:12345/bea"] if "bea" in command else ["300:12345/a", "300:12345/b"])


def test_removed_administrators_are_not_restored_by_overwrite(plain: Site) -> None:
    plain.ok("create 12345/x --url https://example.org/1")
    plain.ok("remove 12345/x 100")
    plain.ok("create 12345/x --url https://example.org/2 --overwrite")
    assert plain.lines("resolve 12345/x") == ["1  URL  https://example.org/2"]


def test_replacing_a_record_requires_no_permission_for_administrators(plain: Site) -> None:
    permissions = "300:12345/ann:add_value,modify_value,remove_value"
    plain.ok(f"create 12345/x --url https://example.org/1 --value HS_ADMIN={permissions}")
    plain.ok("create 12345/x --url https://example.org/2 --overwrite --as 300:12345/ann")
    plain.ok("set 12345/x --from - --as 300:12345/ann", stdin=WHOLE.replace(b"org/2", b"org/3"))
    assert plain.lines("resolve 12345/x --type URL") == ["1  URL  https://example.org/3"]


def test_reserved_handle_preserves_its_owner_when_created_with_overwrite(plain: Site) -> None:
    plain.ok("create 12345/ann --value 300:HS_SECKEY!private=secret")
    (name,) = plain.lines("reserve 12345 --owner 300:12345/ann")
    plain.ok(f"create {name} --url https://example.org/ --overwrite --as 300:12345/ann")
    assert plain.lines(f"resolve {name} --type HS_ADMIN") == ["100  HS_ADMIN  300:12345/ann"]


def test_deleted_handle_is_reused_only_with_reuse_deleted(plain: Site) -> None:
    plain.ok("create 12345/x --url https://example.org/1")
    assert plain.ok("delete 12345/x").out == "12345/x\n"
    gone = plain("resolve 12345/x --json")
    problem = json.loads(gone.err)
    last = problem["deleted"]["last_seq"]
    assert problem["detail"] == f"Handle 12345/x was deleted at {problem['deleted']['at']}"
    advice = f"To see its last version: perseid resolve 12345/x --at {last}"
    for words in ("resolve", "resolve --authority", "cite", "resolve --follow", "qr"):
        refused(plain(f"{words} 12345/x"), "Handle 12345/x was deleted at ", advice, code=3)
    assert plain.ok(f"resolve 12345/x --at {last} --type URL").out == "1  URL  https://example.org/1\n"
    refused(plain(f"resolve 12345/x --at {last + 1}"), "Handle 12345/x was deleted at ", advice, code=3)
    first = f"its first version is entry {last} of "
    advice = f"To see its first version: perseid resolve 12345/x --at {last}"
    plain.ok("create 12345/xx --url https://example.org/1")  # not suggested: the name is right
    for words, at, shown in (("resolve", "2020-01-01", "2020-01-01"), ("cite", last - 1, f"entry {last - 1}")):
        earlier = plain(f"{words} 12345/x --at {at}")
        refused(earlier, f"Handle 12345/x did not exist at {shown}; {first}", advice, code=3)
        assert "12345/xx" not in earlier.err
    refused(
        plain("resolve 12345/xy --at 2020-01-01"), "Handle 12345/xy does not exist", "Did you mean 12345/xx?", code=3
    )
    refused(plain("create 12345/x --url https://example.org/2"), "was deleted", "add --reuse-deleted to perseid create")
    plain.ok("create 12345/x --url https://example.org/2 --reuse-deleted")
    assert plain.lines("list 12345") == ["12345/x", "12345/xx"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("create 102.100.272/foo --url https://example.org/", ("PILIN alphabet", 'scheme = "pilin"', "perseid mint")),
        (f"create {CORDRA}?part=2 --url https://example.org/", ("query or fragment", 'scheme = "cordra"')),
        (f"delete {WORK}", ("cannot be deleted", 'deletion = "tombstone"', "perseid tombstone")),
        (f"remove {WORK} 9001", ("the date of creation, cannot be removed", "creation_date_type")),
        (f"set {WORK} 9002:102.100.TYPE/CREATOR=102.100.272/D7J1G0DQH", ("the creator, cannot be changed",)),
        (f"add {WORK} 1:URL=https://example.org/", ("Index conflict for 1",)),
        (f"create {NEW} --url https://example.org/ --as 300:99999/x", ("cannot create", "ADD_HANDLE")),
        (f"set {WORK} DESC=mine --as 300:99999/x", ("cannot modify",)),
        ("list 102.100.272 --as 300:99999/x", ("cannot list",)),
    ],
)
def test_error_has_a_reason_and_advice(demo: Site, command: str, words: tuple[str, ...]) -> None:
    refused(demo(command), *words)


@pytest.mark.parametrize(
    "command",
    [
        f"resolve {NEW}",
        f"resolve {WORK} --index 77",
        f"resolve {WORK} --type NONE",
        "resolve 99999/x",
        f"set {NEW} URL=https://example.org/",
        f"add {NEW} URL=https://example.org/",
        f"remove {NEW} 1",
        f"remove {WORK} 77",
        f"delete {NEW}",
        "list 99999",
        f"resolve {NEW} --at 30",
        f"resolve {WORK} --at 1",
    ],
)
def test_not_found_has_its_own_exit_code(demo: Site, command: str) -> None:
    refused(demo(command), code=3)


@pytest.mark.parametrize(
    "command",
    [
        "create",
        f"create {WORK} --value URL",
        f"set {WORK}",
        f"set {WORK} URL=a --from x.json",
        f"add {WORK}",
        f"remove {WORK}",
        f"remove {WORK} 0",
        f"remove {WORK} URL",
        "delete hdl:102.100.272/8RBZF0DQH?a=b",
        f"set {WORK} URL=a --as nobody",
        f"set {WORK} URL=a --as x:12345/x",
        f"resolve {WORK} --index x",
    ],
)
def test_wrong_usage_has_its_own_exit_code(demo: Site, command: str) -> None:
    done = demo(command)
    assert (done.code, done.out) == (2, "")
    assert "Usage: perseid" in done.err


def test_ambiguous_type_requires_an_index(demo: Site) -> None:
    refused(demo(f"set {WORK} 102.100.TYPE/LINK.EXPRESSION=x"), "LINK.EXPRESSION", "Name the index of the value")


def test_malformed_handle_is_refused_with_its_rule(demo: Site) -> None:
    done = demo("create nonsense --url https://example.org/")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("To read the rule: perseid name rules H1\n")


def test_missing_file_is_reported(demo: Site) -> None:
    for command in ("create 102.100.272/BCDFGHJKH --from none.json", f"set {WORK} X=@none.json"):
        done = demo(command)
        assert (done.code, done.out, done.err) == (1, "", "perseid: none.json: No such file or directory\n")


# Resolving


@pytest.mark.parametrize(
    "form", [WORK, WORK.lower(), f"hdl:{WORK}", f"hdl://{WORK}", f"http://resolver.net.au/hdl/{WORK}"]
)
def test_resolve_accepts_every_form(demo: Site, form: str) -> None:
    assert demo.lines("resolve", form, "--index", "1") == [
        "1  DESC  Authority Metadata for the PILIN Project: the latest version"
    ]


def test_resolve_selects_by_type_and_index(demo: Site) -> None:
    lines = demo.lines(f"resolve {WORK} --type 102.100.TYPE/LINK. --index 1")
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    found = demo.ok(f"resolve {WORK} --index 3 --index 100 --json").json
    assert [value["index"] for value in found["values"]] == [3, 100]


def test_c5_query_and_fragment_are_returned(demo: Site) -> None:
    for form in (f"{CORDRA}?part=2#page3", f"hdl:{CORDRA}?part=2#page3"):
        done = demo.ok("resolve", form)
        assert "DESC" in done.out
        assert done.err == (
            "The query belongs to the name, not to the record: part=2\n"
            "The fragment belongs to the name, not to the record: page3\n"
        )
        found = demo.ok("resolve", form, "--json").json
        assert (found["query"], found["fragment"]) == ("part=2", "page3")


def test_private_values_require_an_option_and_permission(plain: Site) -> None:
    assert plain.lines("resolve 0.NA/12345") == [
        "100  HS_ADMIN  200:0.NA/12345",
        "200  HS_VLIST  300:0.NA/12345",
    ]
    assert plain.lines("resolve 0.NA/12345 --private --index 300") == [
        "300  HS_SECKEY!private  (secret; --json shows it)"
    ]
    assert len(plain.ok("resolve 0.NA/12345 --private --json").json["values"][2]["data"]["value"]) == 43
    assert plain.ok("resolve 0.NA/12345 --private --as 300:0.NA/12345").code == 0
    refused(plain("resolve 0.NA/12345 --private --as 300:99999/x"), "READ_VALUE")


def test_earlier_version_is_shown_with_its_entry(plain: Site) -> None:
    first = plain.ok("create 12345/x --url https://example.org/1 --json").json["seq"]
    plain.ok("set 12345/x URL=https://example.org/2")
    done = plain.ok(f"resolve 12345/x --at {first} --type URL")
    assert done.out == "1  URL  https://example.org/1\n"
    assert done.err.startswith(f"As of entry {first}; the record is from entry {first} (20")
    found = plain.ok(f"resolve 12345/x --at {first + 1} --json").json
    assert (found["as_of"], found["seq"]) == (first + 1, first + 1)
    assert found["values"][0]["data"]["value"] == "https://example.org/2"
    assert plain.ok("resolve", "12345/x", "--at", found["changed"]).code == 0
    refused(plain("resolve 12345/x --at yesterday"), "Invalid time", code=2)


def test_json_of_resolve_is_accepted_by_create_and_set(plain: Site, tmp_path: Path) -> None:
    plain.ok(
        "create 12345/x --url https://example.org/1 --value 5:X=base64:AP8= --value EMAIL!private=a@example.org "
        "--value HS_ADMIN=200:0.NA/12345:add_value"
    )
    record = tmp_path / "record.json"
    printed = plain.ok("resolve 12345/x --private --json").out
    record.write_text(printed)
    plain.ok(f"create 12345/y --from {record}")
    plain.ok("create 12345/z --from -", stdin=printed.encode())
    before = json.loads(printed)["values"]
    for name in ("12345/y", "12345/z"):
        after = plain.ok(f"resolve {name} --private --json").json["values"]
        assert [{**value, "timestamp": ""} for value in after] == [{**value, "timestamp": ""} for value in before]
    record.write_text(json.dumps({"values": before[:1]}))
    plain.ok(f"set 12345/y --from {record}")
    expected = ["  1  URL       https://example.org/1", "100  HS_ADMIN  200:0.NA/12345:add_value"]
    assert plain.lines("resolve 12345/y --private") == expected
    refused(plain(f"set 12345/none --from {record}"), "Handle 12345/none does not exist", code=3)
    record.write_text("{")
    done = plain(f"set 12345/y --from {record}")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("perseid: Invalid JSON")


# Changing


def test_set_replaces_or_adds_values(plain: Site) -> None:
    plain.ok("create 12345/x --url https://example.org/1 --value 7:DESC=one")
    assert plain.ok("set 12345/x URL=https://example.org/2 DESC=two EMAIL=a@example.org").out == "12345/x\n"
    plain.ok("set 12345/x 7:NOTE=three")
    assert plain.lines("resolve 12345/x --index 1 --index 2 --index 7") == [
        "1  URL    https://example.org/2",
        "2  EMAIL  a@example.org",
        "7  NOTE   three",
    ]


def test_set_hides_and_shows_a_value(plain: Site) -> None:
    plain.ok("create 12345/x --value EMAIL=a@example.org")
    plain.ok("set 12345/x EMAIL!private=a@example.org")
    refused(plain("resolve 12345/x --type EMAIL"), "no matching values", code=3)
    plain.ok("set 12345/x EMAIL=b@example.org")
    refused(plain("resolve 12345/x --type EMAIL"), "no matching values", code=3)
    plain.ok("set 12345/x EMAIL!public=b@example.org")
    assert plain.lines("resolve 12345/x --type EMAIL") == ["1  EMAIL  b@example.org"]


def test_add_and_remove(plain: Site) -> None:
    plain.ok("create 12345/x --url https://example.org/1")
    assert plain.ok("add 12345/x URL=https://example.org/2 HS_ADMIN=300:0.NA/12345").out == "12345/x\n"
    assert [line.split()[0] for line in plain.lines("resolve 12345/x")] == ["1", "2", "100", "101"]
    assert plain.ok("remove 12345/x 1 101 --json").json["handle"] == "12345/x"
    assert [line.split()[0] for line in plain.lines("resolve 12345/x")] == ["2", "100"]


def test_set_is_refused_if_the_record_has_another_version(plain: Site) -> None:
    seq = plain.ok("create 12345/x --url https://example.org/1 --json").json["seq"]
    plain.ok(f"set 12345/x URL=https://example.org/2 --if-version {seq}")
    refused(plain(f"set 12345/x URL=x --if-version {seq}"), "has changed since you read it", code=1)
    assert plain.lines("resolve 12345/x --type URL") == ["1  URL  https://example.org/2"]


def test_identity_acts_with_its_permissions(plain: Site) -> None:
    """The first administrator can create handles; a key with one permission can use only that permission."""
    plain.ok("create 12345/x --url https://example.org/1 --value HS_ADMIN=300:12345/x:modify_value --as 300:0.NA/12345")
    plain.ok("set 12345/x URL=https://example.org/2 --as 300:12345/x")
    refused(plain("add 12345/x URL=https://example.org/2 --as 300:12345/x"), "ADD_VALUE")
    refused(plain("delete 12345/x --as 300:12345/x"), "DELETE_HANDLE")


def test_list_reads_all_pages(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        plain.ok(f"create 12345/{number} --url https://example.org/{number}")
    plain.ok("delete 12345/3")
    monkeypatch.setattr("perseid.registry.queries.paging.MAX_PAGE", 2)
    assert plain.lines("list 12345") == [f"12345/{number}" for number in (0, 1, 2, 4, 5, 6)]
    with_deleted = [json.loads(line) for line in plain.lines("list 12345 --deleted --json")]
    assert [(item["handle"], item["state"]) for item in with_deleted][3] == ("12345/3", "absent")
    assert plain.lines("list 0.NA") == ["0.NA/12345"]
    plain.ok("unpublish 12345/4")
    done = plain.ok("list 12345 --limit 4")
    assert done.out.splitlines() == ["12345/0", "12345/1", "12345/2", "12345/4  unpublished"]
    cursor = done.err.removeprefix("There may be more results. To continue: --after ").strip()
    rest = plain.ok(f"list 12345 --limit 2 --after {cursor}")
    assert (rest.out, rest.err) == ("12345/5\n12345/6\n", "")
    assert plain.lines("list 12345 --state unpublished") == ["12345/4"]
    for words in ("--state hidden", "--after x", "--limit 0"):
        assert plain(f"list 12345 {words}").code == 2

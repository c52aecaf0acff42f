"""`perseid namespace`: create, derive, list, show, change."""

import json
import re
import stat
from pathlib import Path

import pytest

from tests.cli.installation import Site, refused, site


@pytest.fixture
def demo(tmp_path: Path) -> Site:
    return site(tmp_path, "--demo")


def test_add_prints_the_prefix(demo: Site) -> None:
    done = demo.ok("namespace add 12345")
    assert (done.out, done.err) == ("12345\n", "")
    assert demo.lines("namespace list") == ["102.100.272", "102.100.TYPE", "12345", "2000.01"]
    assert demo.lines("resolve 0.NA/12345") == [
        "100  HS_ADMIN  200:0.NA/12345",
        "200  HS_VLIST  300:0.NA/0.NA",
    ]
    refused(
        demo("namespace add 12345"),
        "Namespace 12345 already exists",
        "Change its policy instead: perseid namespace policy 12345 --edit",
    )


def test_namespace_is_removed_or_retired(demo: Site) -> None:
    refused(
        demo("namespace remove 2000.01"),
        "Handles were registered under 2000.01, and they are never reused",
        "perseid namespace remove 2000.01 --retire",
    )
    assert demo.lines("namespace remove 2000.01 --retire") == ["2000.01"]
    demo.ok("namespace add 12345")
    assert demo.lines("namespace list") == ["102.100.272", "102.100.TYPE", "12345", "2000.01  retired"]
    assert "retired         yes" in demo.lines("namespace show 2000.01")
    refused(demo("mint 2000.01"), "Namespace 2000.01 is retired", "retired = false: perseid namespace policy 2000.01 ")
    found = json.loads(demo("--json mint 2000.01").err)
    assert (found["type"].partition("#")[2], found["status"]) == ("state-conflict", 409)
    demo.ok("namespace derive 2000.01 5")
    demo.ok("namespace derive 2000.01 6")
    demo.ok("namespace remove 2000.01.6")
    refused(demo("namespace remove 2000.01.6"), "Namespace 2000.01.6 is already removed, by entry ")
    added = demo.ok("namespace derive 2000.01 7 --administrator 300:2000.01/nobody --administrator 300:0.NA/2000.01")
    assert added.err.startswith("Warning: Administrator 300:2000.01/nobody does not exist here")
    assert added.err.count("Warning") == 1
    assert "perseid user add 2000.01 nobody\n" in added.err
    demo.ok("mint 2000.01.5")
    assert demo.ok("namespace remove 12345 --json").json == {
        "prefix": "12345",
        "seq": int(demo.lines("log --since 0")[-2].split()[0]),
        "retired": False,
    }
    refused(demo("namespace show 12345"), "Namespace 12345 not found", code=3)
    demo.ok("namespace policy 2000.01 --file -", stdin=b"retired = false\n")
    demo.ok("mint 2000.01")


@pytest.mark.parametrize(
    ("administrator", "advice"),
    [
        ("300:0.NA/77", ""),
        ("300:77/eve", ""),
        ("300:2000.01/eve", ", or add the user: perseid user add 2000.01 eve"),
        ("300:12345/eve", ", or add the user: perseid user add 12345 eve"),
    ],
)
def test_missing_administrator_can_be_added_under_a_prefix_that_is_hosted(
    demo: Site, administrator: str, advice: str
) -> None:
    added = demo.ok(f"namespace add 12345 --administrator {administrator}")
    assert added.err.endswith(f" until it does. Name an existing key or group as INDEX:HANDLE{advice}\n")


def test_prefix_ignores_case(demo: Site) -> None:
    demo.ok("namespace add 10.ABC")
    refused(demo("namespace add 10.abc"), "already")
    demo.ok("create 10.abc/x --url https://example.org/")
    assert demo.lines("list 10.Abc") == ["10.abc/x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"profile": "free", "scheme": "free", "case": "insensitive", "authority": False}),
        ("--profile exact", {"profile": "exact", "scheme": "free", "case": "sensitive"}),
        ("--profile exact --case insensitive", {"profile": "exact", "case": "insensitive"}),
        ("--profile cordra", {"scheme": "cordra", "case": "path", "deletion": "tombstone"}),
        (
            "--profile pilin --creator hdl:102.100.272/0N8J991QH",
            {"scheme": "pilin", "authority": True, "creator": "102.100.272/0N8J991QH"},
        ),
        ("--purpose 'Maps of the survey'", {"purpose": "Maps of the survey"}),
        ("--administrator 300:0.NA/0.NA --administrator 301:0.NA/0.NA", {"administrators": ["200:0.NA/12345"]}),
    ],
)
def test_options_set_the_policy(demo: Site, options: str, expected: dict[str, object]) -> None:
    demo.ok(f"namespace add 12345 {options}")
    found = demo.ok("namespace show 12345 --json").json
    assert {key: found[key] for key in expected} == expected


def test_h5_case_is_significant_if_the_policy_says_so(demo: Site) -> None:
    demo.ok("namespace add 20.500 --profile exact")
    for name in ("20.500/a", "20.500/A"):
        demo.ok(f"create {name} --url https://example.org/{name[-1]}")
    assert demo.lines("list 20.500") == ["20.500/A", "20.500/a"]


def test_a4_default_creator_is_created_and_reported(demo: Site) -> None:
    done = demo.ok("namespace add 10.5072 --profile pilin")
    (creator,) = demo.lines("list 10.5072")
    assert done.out == "10.5072\n"
    assert done.err == f"The default creator is {creator}. Describe it in its record.\n"


def test_a4_namespace_is_not_created_without_permission_for_its_creator(demo: Site) -> None:
    demo.ok("add 0.NA/2000.01 HS_ADMIN=300:2000.01/ann:add_na")
    derive = "namespace derive 2000.01 5 --profile pilin --administrator 300:2000.01/bea --as 300:2000.01/ann"
    refused(
        demo(derive),
        "default creator of namespace 2000.01.5 cannot be created",
        "cannot create handles under 2000.01.5",
        "Name an existing creator",
    )
    refused(demo("namespace show 2000.01.5"), code=3)
    assert demo.lines("namespace list") == ["102.100.272", "102.100.TYPE", "2000.01"]
    done = demo.ok("namespace derive 2000.01 5 --profile pilin --administrator 300:2000.01/ann --as 300:2000.01/ann")
    assert done.out == "2000.01.5\n"
    assert demo.ok("namespace show 2000.01.5 --json").json["creator"].startswith("2000.01.5/")


def test_a6_external_types_are_reported(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    done = installation.ok("namespace add 10.5072 --profile pilin --json")
    assert done.json["external_types"][0] == "102.100.TYPE/CREATION_DATE"
    assert "Types defined at another service" in installation.ok("namespace add 10.5073 --profile pilin").err
    shown = installation.ok("type show 102.100.type/creator")
    assert shown.out.splitlines()[:2] == ["handle       102.100.TYPE/CREATOR", "name         CREATOR"]
    assert "This is a copy: another service hosts the type." in shown.err
    advice = "See the copy of the definition: perseid type show 102.100.TYPE/CREATOR"
    resolved = installation.ok("resolve 102.100.type/creator --follow --type DESC")
    assert resolved.out.startswith("1  DESC  CREATOR: The party that created the identifier.")
    assert "This is a copy: another service hosts the type." in resolved.err
    refused(installation("resolve 102.100.TYPE/CREATOR --at 1"), "does not host prefix 102.100.TYPE", advice, code=3)


def test_namespace_with_a_custom_policy(demo: Site, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('profile = "tickets"\nscheme = "pattern:T-dddd"\nrequired_types = ["URL"]\n')
    demo.ok(f"namespace add 12345 --policy {rules} --creator 1/x")
    found = demo.ok("namespace policy 12345 --json").json["rules"]
    assert (found["profile"], found["required_types"], found["default_creator"]) == ("tickets", ["URL"], "1/x")
    refused(demo("create 12345/T-1234 --value DESC=none"), "required_types")
    refused(demo("create 12345/T-ABCD --url https://example.org/"), 'scheme = "pattern:T-dddd"')
    demo.ok("create 12345/T-1234 --url https://example.org/")
    assert demo(f"namespace add 12346 --policy {rules} --profile free").code == 2
    rules.write_text('profil = "free"\n')
    done = demo(f"namespace add 12346 --policy {rules}")
    assert (done.code, done.out) == (1, "")
    assert done.err == "perseid: profil: unknown key; did you mean profile?\n"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("namespace add 12345 --as 300:99999/x", 4, "cannot create the namespace 12345"),
        ("namespace add ten.1 --profile cordra", 4, "A CORDRA naming authority consists of decimal digits and dots"),
        ("namespace add 12345 --profile pilin --case sensitive", 1, "ignores case"),
        ("namespace add a/b", 2, "rule H2"),
        ("namespace add 0.SITE", 2, "is reserved for the system"),
        ("namespace add 12345 --administrator me", 2, "the form INDEX:HANDLE; for example: 300:0.NA/12345"),
        ("namespace derive 99999 1", 3, "Namespace 99999 not found"),
        ("namespace derive 2000.01 x", 4, "decimal digits and dots; 2000.01.x does not"),
        ("namespace show 99999", 3, "Namespace 99999 not found"),
        ("namespace policy 99999", 3, "Namespace 99999 not found"),
        ("namespace policy 2000.01 --edit --file x", 2, "not both"),
        ("namespace list --as 300:99999/x", 4, "cannot list"),
    ],
)
def test_invalid_namespace_commands_are_refused(demo: Site, command: str, code: int, words: str) -> None:
    before = demo.lines("namespace list")
    done = demo(command)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert demo.lines("namespace list") == before


def test_h6_derived_prefix_has_the_policy_and_administrators_of_its_parent(demo: Site) -> None:
    assert demo.ok("namespace derive 102.100.272 maps").out == "102.100.272.maps\n"
    found = demo.ok("namespace show 102.100.272.maps --json").json
    assert (found["scheme"], found["creator"]) == ("pilin", "102.100.272/0N8J991QH")
    assert demo.lines("resolve 0.NA/102.100.272.maps --type HS_VLIST") == ["200  HS_VLIST  200:0.NA/102.100.272"]
    demo.ok("create 102.100.272.maps/BCDFGHJKH --url https://example.org/ --as 300:0.NA/0.NA")
    assert demo.ok("namespace derive 2000.01 2000.01.7").out == "2000.01.7\n"
    demo.ok("namespace derive 2000.01 8 --profile free --purpose Other --administrator 300:0.NA/2000.01")
    assert demo.ok("namespace show 2000.01.8 --json").json["profile"] == "free"


def test_h6_permission_on_the_parent_is_sufficient(demo: Site) -> None:
    demo.ok("add 0.NA/2000.01 HS_ADMIN=300:12345/ann:add_na")
    demo.ok("namespace derive 2000.01 5 --as 300:12345/ann")
    refused(demo("namespace derive 102.100.272 5 --as 300:12345/ann"), "ADD_NA")


def test_list_prints_json_lines(demo: Site) -> None:
    found = [json.loads(line) for line in demo.lines("namespace list --json")]
    assert [item["prefix"] for item in found] == ["102.100.272", "102.100.TYPE", "2000.01"]
    assert found[0]["who_may_mint"] == "administrators"


def test_show_prints_one_field_per_line(demo: Site) -> None:
    assert demo.lines("namespace show 2000.01") == [
        "prefix          2000.01",
        "profile         cordra",
        "purpose         Identifiers of CORDRA's specifications, and of the metadata records that describe these.",
        "scheme          cordra",
        "case            path",
        "who may mint    administrators",
        "who may list    administrators",
        "retired         no",
        "authority       no",
        "deletion        tombstone",
        "administrators  200:0.NA/2000.01",
    ]


# Policies


def test_printed_policy_is_accepted_as_input(demo: Site, tmp_path: Path) -> None:
    text = demo.ok("namespace policy 102.100.272").out
    assert 'scheme = "pilin"' in text.splitlines()
    done = demo.ok("namespace policy 102.100.272 --file -", stdin=text.encode())
    assert (done.out, done.err) == ("102.100.272\n", "The policy is unchanged.\n")
    path = tmp_path / "policy.toml"
    path.write_text(text.replace('who_may_mint = "administrators"', 'who_may_mint = "server"'))
    done = demo.ok(f"namespace policy 102.100.272 --file {path}")
    assert done.out == "102.100.272\n"
    assert done.err == '- who_may_mint = "administrators"\n+ who_may_mint = "server"\n'
    assert demo.ok("namespace policy 102.100.272 --json").json["rules"]["who_may_mint"] == "server"
    done = demo.ok("namespace policy 102.100.272 --file - --json", stdin=text.encode())
    assert done.json["changed"] == ["who_may_mint"]


def test_policy_file_may_contain_only_the_changes(demo: Site) -> None:
    done = demo.ok("namespace policy 2000.01 --file -", stdin=b'who_may_list = "public"')
    assert done.err == '- who_may_list = "administrators"\n+ who_may_list = "public"\n'
    done = demo.ok("namespace policy 2000.01 --file -", stdin=b'profile = "cordra"\ndeletion = "allowed"')
    assert done.err.splitlines() == [
        '- who_may_list = "public"',
        '+ who_may_list = "administrators"',
        '- deletion = "tombstone"',
        '+ deletion = "allowed"',
    ]
    found = demo.ok("namespace policy 2000.01 --json").json["rules"]
    assert found["default_administrators"] == ["200:0.NA/{prefix}"]
    assert found["purpose"].startswith("Identifiers of CORDRA")


def test_h5_case_rule_changes_only_with_change_case(demo: Site) -> None:
    text = demo.ok("namespace policy 102.100.TYPE").out.replace('case = "insensitive"', 'case = "sensitive"').encode()
    refused(demo("namespace policy 102.100.TYPE --file -", stdin=text), "rule H5", "--change-case")
    done = demo("namespace policy 102.100.TYPE --file - --change-case --note agreed --json", stdin=text)
    assert (done.code, done.json["changed"]) == (0, ["case"])
    assert demo("resolve 102.100.TYPE/creator").code == 3
    assert "CREATOR: The party" in demo.ok("resolve 102.100.TYPE/CREATOR").out
    assert demo.ok("history 102.100.TYPE/CREATOR --json").json["versions"][0]["note"] == "case rule: agreed"


def test_h5_colliding_handles_are_listed(demo: Site) -> None:
    demo.ok("namespace add 20.500 --profile exact")
    for name in ("a", "A", "b"):
        demo.ok(f"create 20.500/{name} --url https://example.org/{name}")
    change = b'case = "insensitive"'
    done = demo("namespace policy 20.500 --file - --change-case", stdin=change)
    refused(done, "would collide: 20.500/A and 20.500/a\n")


def test_policy_can_require_nfc_and_a_single_script(demo: Site) -> None:
    demo.ok("namespace add 12345 --profile free")
    demo.ok("namespace policy 12345 --file -", stdin=b"nfc = true\nsingle_script = true\n")
    refused(
        demo("create", "12345/cafe\u0301", "--url", "https://example.org/"), "nfc = true", "Register 12345/caf\u00e9"
    )
    refused(demo("create", "12345/p\u0430per"), "single_script = true", "is Cyrillic", "in one script")
    demo.ok("create", "12345/caf\u00e9", "--url", "https://example.org/")


def test_policy_change_requires_permission(demo: Site) -> None:
    text = demo.ok("namespace policy 2000.01").out.encode()
    demo.ok("namespace policy 2000.01 --file - --as 300:0.NA/0.NA", stdin=text)
    refused(demo("namespace policy 2000.01 --file - --as 300:99999/x", stdin=text), "cannot set the policy")


def editor(tmp_path: Path, script: str) -> dict[str, str]:
    path = tmp_path / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(stat.S_IRWXU)
    return {"VISUAL": "", "EDITOR": str(path), "TMPDIR": str(tmp_path)}


@pytest.mark.usefixtures("terminal")
def test_policy_is_changed_in_an_editor(demo: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = editor(tmp_path, "sed -i 's/^default_ttl = .*/default_ttl = 60/' \"$1\"")
    done = demo("namespace policy 2000.01 --edit", environ=environ)
    assert (done.code, done.out, done.err) == (0, "2000.01\n", "- default_ttl = 86400\n+ default_ttl = 60\n")
    demo.ok("create 2000.01/0123456789ABCDEF0123456789ABCDEF --url https://example.org/")
    assert demo.ok("resolve 2000.01/0123456789ABCDEF0123456789ABCDEF --type URL --json").json["values"][0]["ttl"] == 60
    assert not list(tmp_path.glob("perseid-policy-*"))


@pytest.mark.usefixtures("terminal")
def test_invalid_edit_is_saved_for_correction(demo: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = editor(tmp_path, "sed -i 's/^default_ttl = .*/default_ttl = -1/' \"$1\"")
    done = demo("namespace policy 2000.01 --edit", environ=environ)
    assert (done.code, done.out) == (1, "")
    (draft,) = re.findall(r"your text is in (\S+): correct it", done.err)
    text = Path(draft).read_text()
    assert "default_ttl = -1" in text
    demo.ok(f"namespace policy 2000.01 --file {draft}".replace(draft, "-"), stdin=text.replace("-1", "5").encode())


def test_editor_requires_a_terminal(demo: Site) -> None:
    done = demo("namespace policy 2000.01 --edit", environ={"EDITOR": "cat"})
    assert (done.code, done.out) == (1, "")
    assert done.err == "perseid: The editor requires a terminal\nTo change the policy without one: --file FILE\n"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"EDITOR": "'"}, 'EDITOR is not a command: "\'"'),
        ({"EDITOR": "no-such-editor"}, "Cannot run the editor 'no-such-editor'"),
        ({"EDITOR": "  ", "PATH": "/nowhere"}, "Cannot run the editor 'vi'"),
    ],
)
def test_editor_is_missing(
    demo: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], message: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = demo("namespace policy 2000.01 --edit", environ={"VISUAL": "", **environ})
    refused(done, message, "Set EDITOR, as in: export EDITOR=nano", code=1)
    assert not list(tmp_path.glob("perseid-policy-*"))


@pytest.mark.usefixtures("terminal")
def test_failing_editor_changes_nothing(demo: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = demo("namespace policy 2000.01 --edit", environ=editor(tmp_path, "exit 7"))
    assert (done.code, done.out) == (1, "")
    assert "failed with exit code 7; nothing was changed" in done.err
    assert not list(tmp_path.glob("perseid-policy-*"))

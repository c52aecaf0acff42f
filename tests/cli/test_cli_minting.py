"""`mint` and `reserve`: identifiers are durable when they are printed, one per line."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perseid.ledger.errors import StorageFull
from perseid.registry.registry import Registry
from tests.cli.installation import Site, refused, site
from tests.cli.program import ENVIRON, PERSEID, run

UUID = r"12345/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
COUNTER_POLICY = b'profile = "own"\nscheme = "pattern:TR-dddd"\ncase = "insensitive"\n'
URL_REQUIRED_POLICY = b'profile = "free"\nrequired_types = ["URL"]\n'


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return site(tmp_path, "--prefix", "12345")


def add_counter_namespace(here: Site) -> None:
    here.ok("namespace add 12346 --policy -", stdin=COUNTER_POLICY)


def test_mint_creates_one_identifier(here: Site) -> None:
    done = here.ok("mint 12345 --url https://example.org/1")
    assert done.err == ""
    (name,) = done.out.splitlines()
    assert re.fullmatch(UUID, name)
    assert here.lines(f"resolve {name}") == [
        "  1  URL       https://example.org/1",
        "100  HS_ADMIN  200:0.NA/12345",
    ]


def test_mint_prints_many_identifiers_in_order(here: Site) -> None:
    add_counter_namespace(here)
    assert here.lines("mint 12346 --count 3") == ["12346/TR-0000", "12346/TR-0001", "12346/TR-0002"]
    assert here.lines("mint 12346 -n 2500")[-1] == "12346/TR-2502"
    assert len(here.lines("list 12346")) == 2503


def test_mint_with_the_start_of_a_suffix(here: Site) -> None:
    (name,) = here.lines("mint 12345/report-")
    assert name.startswith("12345/report-")


def test_json_has_one_document_per_commit(here: Site) -> None:
    minted = here.ok("mint 12345 --count 2 --json").json
    assert set(minted) == {"handles", "seq"}
    versions = [here.ok(f"history {handle} --json").json["versions"] for handle in minted["handles"]]
    assert [version["seq"] for (version,) in versions] == [minted["seq"], minted["seq"] + 1]
    documents = [json.loads(line) for line in here.lines("mint 12345 --count 1001 --json")]
    assert [len(each["handles"]) for each in documents] == [1000, 1]


def test_mint_with_values(here: Site) -> None:
    (name,) = here.lines("mint 12345 --url https://example.org/1 --value EMAIL!private=a@example.org --value 7:DESC=x")
    values = here.ok(f"resolve {name} --json --private").json["values"]
    assert [(value["index"], value["type"]) for value in values] == [
        (1, "URL"),
        (2, "EMAIL"),
        (7, "DESC"),
        (100, "HS_ADMIN"),
    ]
    assert values[1]["permissions"] == "1100"


def test_values_have_the_ttl_of_the_policy(here: Site) -> None:
    here.ok("namespace add 12347 --policy -", stdin=b'profile = "free"\ndefault_ttl = 77\n')
    (name,) = here.lines("mint 12347 --url https://example.org/1")
    assert here.ok(f"resolve {name} --json").json["values"][0]["ttl"] == 77


def test_mint_unpublished_identifier(here: Site) -> None:
    (name,) = here.lines("mint 12345 --unpublished --url https://example.org/1")
    assert here.ok(f"history {name} --json").json["versions"][0]["state"] == "unpublished"


@pytest.mark.parametrize("command", ["reserve 12345 --count 2", "mint 12345 --reserve --count 2"])
def test_reserved_identifiers_do_not_resolve(here: Site, command: str) -> None:
    names = here.lines(command)
    assert len(names) == 2
    for name in names:
        assert here(f"resolve {name} --as 300:12345/nobody").code == 3
        assert here.ok(f"history {name} --json").json["versions"][0]["action"] == "reserve"
        here.ok(f"create {name} --url https://example.org/")


def test_s1_reserve_chosen_handles(here: Site) -> None:
    assert here.lines("reserve 12345/my-chosen-name hdl:12345/other") == ["12345/my-chosen-name", "12345/other"]
    refused(here("reserve 12345/new 12345/other"), "12345/other already exists")
    assert [json.loads(line)["state"] for line in here.lines("list 12345 --json")] == ["reserved", "reserved"]
    assert here("reserve 12345/report- --count 3").code == 2
    assert here("reserve 12345 12345/x").code == 2


def test_reserve_with_values_is_refused(here: Site) -> None:
    refused(here("mint 12345 --reserve --url https://example.org/"), "cannot have values")


def test_mint_and_reserve_with_an_owner(here: Site) -> None:
    (name,) = here.lines("mint 12345 --owner 300:98765/ann")
    assert here.lines(f"resolve {name}") == ["100  HS_ADMIN  300:98765/ann"]
    (name,) = here.lines("reserve 12345 --owner 300:98765/ann")
    values = here.ok(f"history {name} --json").json["versions"][0]["values"]
    assert values[0]["data"]["value"]["handle"] == "98765/ann"
    assert here("mint 12345 --owner nobody").code == 2


def test_mint_with_a_metadata_record_for_each_identifier(here: Site) -> None:
    command = (
        "mint 12345 --count 2 --with-metadata --url https://example.org/1 --metadata-url https://example.org/1.xml"
    )
    names = here.lines(command)
    assert len(names) == 4
    handle, metadata = names[:2]
    assert f"  9101  LINK.METADATA  {metadata}" in [f"  {line}" for line in here.lines(f"resolve {handle}")]
    assert any(line.endswith(handle) for line in here.lines(f"resolve {metadata}"))
    assert any(line.endswith("https://example.org/1.xml") for line in here.lines(f"resolve {metadata}"))
    minted = here.ok("mint 12345 --with-metadata --json").json
    assert (len(minted["handles"]), len(minted["metadata"])) == (1, 1)


def test_actor_and_note_are_recorded(here: Site) -> None:
    (name,) = here.lines("mint 12345", "--note", "for the spring list")
    (version,) = here.ok(f"history {name} --json").json["versions"]
    assert (version["interface"], version["note"]) == ("cli", "for the spring list")
    assert version["actor"].startswith("local:")


# Tables


def test_mint_creates_one_identifier_per_table_row(here: Site, tmp_path: Path) -> None:
    table = tmp_path / "things.csv"
    table.write_text(
        '\ufeffURL,EMAIL!private,DESC\r\nhttps://example.org/1,a@example.org,"one,\ntwo"\r\n\r\nhttps://example.org/2\r\n',
        encoding="utf-8",
    )
    handles = here.ok(f"mint 12345 --from {table} --value LANG=en --json").json["handles"]
    first, second = [here.ok(f"resolve {handle} --json --private").json["values"] for handle in handles]
    assert [(value["type"], value["data"]["value"]) for value in first[:4]] == [
        ("LANG", "en"),
        ("URL", "https://example.org/1"),
        ("EMAIL", "a@example.org"),
        ("DESC", "one,\ntwo"),
    ]
    assert [value["type"] for value in second] == ["LANG", "URL", "HS_ADMIN"]


def test_table_with_types_of_every_kind(here: Site) -> None:
    here.ok("type add 12345/SCALE --definition x")
    table = b"2:URL,DC.TITLE,HS_ALIAS,12345/SCALE,21.T11148/x,LINK.WORK,CHECKSUM!private\na,b,12345/x,c,d,12345/x,e\n"
    here.ok("mint 12345 --from - --allow-type CHECKSUM", stdin=table)


def test_table_on_standard_input_is_minted_in_row_order(here: Site) -> None:
    rows = "URL\n" + "".join(f"https://example.org/{number}\n" for number in range(1_500))
    names = here.ok("mint 12345 --from -", stdin=rows.encode()).out.splitlines()
    assert len(set(names)) == 1_500
    for number in (0, 999, 1_000, 1_499):
        assert here.lines(f"resolve {names[number]} --type URL")[0].endswith(f"/{number}")


def test_table_cannot_read_files(here: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (name,) = here.ok("mint 12345 --from -", stdin=f"DESC\n@{secret}\n".encode()).out.splitlines()
    assert here.lines(f"resolve {name} --type DESC") == [f"1  DESC  @{secret}"]


def test_empty_table_mints_nothing(here: Site) -> None:
    assert here.ok("mint 12345 --from -", stdin=b"URL\n").out == ""


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (b"", ("is empty",)),
        (b"URL,\nx,\n", ("'' is not a type",)),
        (b"https://example.org/1\nhttps://example.org/2\n", ("is not a type", "the first row")),
        (b"URL\na\nb,c\n", ("line 3", "2 cells")),
        (b'URL\n"a\n', ("invalid CSV",)),
        (b"URL\n\xff\n", ("is not UTF-8 at byte 5",)),
        (b"URL,HS_ADMIN\na,300:0.NA/12345\nb,bogus:bogus\n", ("line 3", "HS_ADMIN")),
    ],
)
def test_invalid_table_mints_nothing(here: Site, table: bytes, words: tuple[str, ...]) -> None:
    before = here.lines("list 12345")
    refused(here("mint 12345 --from -", stdin=table), "Standard input", *words, code=2)
    assert here.lines("list 12345") == before


def test_unknown_columns_are_wrong_usage_and_all_are_named(here: Site) -> None:
    before = here.lines("list 12345")
    for table, words in (
        (b"handle,url,title\n12345/a,https://example.org/,x\n", ("unknown columns: 'handle', 'url', 'title'",)),
        (b"url,title,EMIAL!private\nx,x,y\n", ("did you mean URL?", "did you mean TITLE?", "did you mean EMAIL?")),
        (b"URL,12345/UNKNOWN\nx,y\n", ("'12345/UNKNOWN'", "perseid type list")),
        (b"URL,Name/Title\nx,y\n", ("unknown columns: 'Name/Title'",)),
        (b"URL,CHECKSUM,a b\nx,y,z\n", ("--allow-type CHECKSUM --allow-type 'a b'",)),
    ):
        refused(here("mint 12345 --from -", stdin=table), "Standard input", *words, code=2)
    found = json.loads(here("mint 12345 --from - --json", stdin=b"CHECKSUM\nx\n").err)
    assert (found["type"].partition("#")[2], found["exit_code"]) == ("unknown-columns", 2)
    assert here.lines("list 12345") == before


def test_policy_violation_stops_the_job_and_printed_identifiers_remain(here: Site) -> None:
    here.ok("namespace add 12347 --policy -", stdin=URL_REQUIRED_POLICY)
    rows = "URL,DESC\n" + "https://example.org/1,\n" * 1_000 + ",no URL\n"
    done = here("mint 12347 --from -", stdin=rows.encode())
    assert done.code == 4
    names = done.out.splitlines()
    assert len(names) == 1_000
    assert here.lines("list 12347") == sorted(names)
    first, _, note = done.err.splitlines()
    assert first.startswith("perseid: Record 1,001: the record has no value of type 'URL'")
    assert note == "The 1,000 of 1,001 identifiers that were printed are minted"


# Refusals and failures


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("mint 99999", 3, ("This server does not host prefix 99999",)),
        ("mint 0.NA", 2, ("is reserved for the system",)),
        ("mint 12345.", 2, ("(rule H2)",)),
        ("mint 12345 --as 300:12345/nobody", 4, ("create handles",)),
        ("mint 12345 --value 1:URL=x --value 1:URL=y", 4, ("Index conflict",)),
    ],
)
def test_mint_without_permission_or_namespace_is_refused(
    here: Site, command: str, code: int, words: tuple[str, ...]
) -> None:
    refused(here(command), *words, code=code)


@pytest.mark.parametrize(
    "command",
    [
        "mint",
        "mint 12345 --count 0",
        "mint 12345 --count many",
        "mint 12345 --count 99999999999999999999",
        "mint 12345 --value URL",
        "mint 12345 --value 0:URL=x",
        "mint 12345 --from - --count 2",
        "mint 12345 --metadata-url https://example.org/",
        "reserve 12345 --count -1",
    ],
)
def test_wrong_usage(here: Site, command: str) -> None:
    done = here(command)
    assert (done.code, done.out) == (2, "")


def test_missing_table_is_reported(here: Site) -> None:
    done = run("mint", "12345", "--from", "none.csv", environ={"PERSEID_DIR": str(here.directory)})
    assert (done.code, done.out) == (1, "")
    assert done.err == "perseid: none.csv: No such file or directory\n"


def test_exhausted_counter_reports_the_remaining_names(here: Site) -> None:
    add_counter_namespace(here)
    here.ok("mint 12346 --count 9999")
    refused(here("mint 12346 --count 2"), "has 1 of 10,000 names left")
    assert here.lines("mint 12346") == ["12346/TR-9999"]


def test_concurrent_minting_creates_distinct_identifiers(here: Site) -> None:
    add_counter_namespace(here)
    command = [str(PERSEID), "mint", "12346", "--count", "1200", "-d", str(here.directory)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRON) for _ in range(4)]
    names = [line for each in running for line in each.communicate(timeout=60)[0].splitlines()]
    assert [each.returncode for each in running] == [0] * 4
    assert len(names) == len(set(names)) == 4_800


# Progress


def test_progress_bar_is_on_standard_error_of_a_terminal(here: Site, tmp_path: Path) -> None:
    output = tmp_path / "names"
    terminal, terminal_end = pty.openpty()
    with output.open("wb") as stdout:
        done = subprocess.Popen(
            [PERSEID, "mint", "12345", "--count", "3000", "-d", here.directory],
            stdout=stdout,
            stderr=terminal_end,
            env=ENVIRON,
        )
        os.close(terminal_end)
        shown = b""
        while True:
            try:
                chunk = os.read(terminal, 65_536)
            except OSError:  # the other end is closed
                break
            shown += chunk
        assert done.wait(60) == 0
    os.close(terminal)
    assert b"minting" in shown
    assert b"identifiers/s" in shown
    assert b"/3000" in shown
    names = output.read_text().splitlines()
    assert len(names) == 3_000
    assert all(re.fullmatch(UUID, name) for name in names)


def test_no_progress_bar_without_a_terminal(here: Site) -> None:
    done = run("mint", "12345", "--count", "3000", "-d", str(here.directory))
    assert (done.code, done.err) == (0, "")


def test_identifiers_are_printed_after_each_commit(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure, all minted identifiers have been printed."""
    commits: list[object] = []
    do = Registry.do

    def fail_at_third_call(self: Registry, command: Any, *more: Any) -> Any:
        commits.append(command)
        if len(commits) == 3:
            raise StorageFull("there is no room to write")
        return do(self, command, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Registry, "do", fail_at_third_call)
        done = here("mint 12345 --count 2500")
    assert done.code == 1
    note = "The 2,000 of 2,500 identifiers that were printed are minted"
    advice = "Free disk space, then retry. To see what is affected: perseid check"
    assert done.err.splitlines() == ["perseid: There is no room to write", advice, note]
    assert sorted(done.out.splitlines()) == here.lines("list 12345")

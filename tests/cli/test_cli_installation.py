"""`init`, `config`, `upgrade`."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from perseid.cli.serve import _welcome_lines
from perseid.registry.installation.settings import Config
from perseid.server.state.runtime import WRITER_LINK, RuntimeDirectory, lock_installation
from tests.cli.installation import Site, call, refused, site
from tests.cli.program import PERSEID, run


def test_init_creates_an_installation_and_shows_the_secret_once(tmp_path: Path) -> None:
    done = run("init", str(tmp_path / "names"), "--prefix", "12345")
    assert done.code == 0
    assert done.out == f"installation  {tmp_path}/names\nnamespace     12345 (free)\n"
    assert "The first administrator is 300:0.NA/12345" in done.err
    mint, serve = done.err.splitlines()[-2:]
    assert mint == f"To create an identifier: perseid mint 12345 --url URL -d {tmp_path}/names"
    assert serve == f"To serve it: perseid serve -d {tmp_path}/names"
    (secret,) = re.findall(r"^    (\S{43})$", done.err, re.MULTILINE)
    installation = Site(tmp_path / "names")
    assert installation.ok("resolve 0.NA/12345 --private --index 300 --json").json["values"] == [
        {
            "index": 300,
            "type": "HS_SECKEY",
            "data": {"format": "string", "value": secret},
            "permissions": "1100",
            "ttl": 86400,
            "timestamp": installation.ok("resolve 0.NA/12345 --json").json["values"][0]["timestamp"],
        }
    ]
    settings = tomllib.loads((installation.directory / "perseid.toml").read_text())
    assert settings == {
        "administrators": {"server": ["300:0.NA/12345"]},
        **{section: {} for section in set(settings) - {"administrators"}},
    }
    for words in ("config", "namespace show 12345", "log", "history 0.NA/12345"):
        assert secret not in installation(words).out + installation(words).err


def test_init_writes_the_secret_alone_to_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    done = call("init", f"{tmp_path}/a", "--prefix", "12345", "--secret-file", str(path))
    assert (done.code, path.stat().st_mode & 0o777) == (0, 0o600)
    assert re.fullmatch(r"\S{43}\n", path.read_text())
    assert path.read_text().strip() not in done.out + done.err
    assert f"The first administrator is 300:0.NA/12345 with the secret in {path}." in done.err
    stored = Site(tmp_path / "a").ok("resolve 0.NA/12345 --private --index 300 --json").json["values"]
    assert stored[0]["data"]["value"] == path.read_text().strip()
    again = call("init", f"{tmp_path}/b", "--secret-file", str(path))
    assert (again.code, "secret.txt already exists; use another file name" in again.err) == (2, True)
    assert not (tmp_path / "b").exists()
    failed = call("init", f"{tmp_path}/a", "--secret-file", f"{tmp_path}/new")
    assert (failed.code, (tmp_path / "new").exists()) == (1, False)
    assert "cannot create" in call("init", f"{tmp_path}/b", "--secret-file", f"{tmp_path}/none/new").err
    assert "no administrator" in call("init", f"{tmp_path}/b", "--root", "global", "--secret-file", "new").err


def test_first_administrator_has_all_permissions(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    first = "--as 300:0.NA/12345"
    installation.ok(f"create 12345/x --url https://example.org/ {first}")
    installation.ok(f"set 12345/x URL=https://example.org/2 {first}")
    assert installation.lines(f"list 12345 {first}") == ["12345/x"]
    installation.ok(f"namespace add 20.500 {first}")
    installation.ok(f"create 20.500/x --url https://example.org/ {first}")
    installation.ok(f"namespace derive 12345 1 {first}")
    installation.ok(f"create 12345.1/x --url https://example.org/ {first}")


def test_init_suggests_commands_for_the_default_directory(tmp_path: Path) -> None:
    done = call("init", environ={"PERSEID_DIR": str(tmp_path / "a b")})
    assert done.err.splitlines()[-2:] == [
        "To add a namespace: perseid namespace add PREFIX",
        "To serve it: perseid serve",
    ]
    other = call("init", str(tmp_path / "c d"), "--demo")
    assert other.err.splitlines()[-1] == f"To serve it: perseid serve -d '{tmp_path}/c d'"
    assert "To add a namespace" not in other.err


def test_suggested_commands_begin_with_the_path_of_a_program_that_is_not_in_path(tmp_path: Path) -> None:
    done = run("init", f"{tmp_path}/a", "--prefix", "12345", environ={"PATH": "/nonexistent"})
    assert done.err.splitlines()[-1] == f"To serve it: {PERSEID} serve -d {tmp_path}/a"


def test_init_without_a_prefix_creates_the_administrator_in_the_root(tmp_path: Path) -> None:
    done = call("init", str(tmp_path / "made"), "--json")
    found = done.json
    assert (found["administrator"], found["prefix"], found["creator"], found["demo"]) == (
        "300:0.NA/0.NA",
        None,
        None,
        [],
    )
    assert len(found["secret"]) == 43
    assert done.err == ""
    installation = Site(tmp_path / "made")
    assert (
        installation.ok("resolve 0.NA/0.NA --private --index 300 --json").json["values"][0]["data"]["value"]
        == found["secret"]
    )
    installation.ok("namespace add 12345 --as 300:0.NA/0.NA")


def test_a4_default_creator_is_created_if_the_policy_requires_one(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "10.5072", "--profile", "pilin")
    (creator,) = installation.lines("list 10.5072")
    values = {
        value["type"]: value["data"]["value"] for value in installation.ok(f"resolve {creator} --json").json["values"]
    }
    assert values["102.100.TYPE/CREATOR"] == creator
    assert values["DESC"] == "The creator of identifiers under 10.5072"
    assert installation.ok("namespace show 10.5072 --json").json["creator"] == creator
    installation.ok("create 10.5072/BCDFGHJKH --url https://example.org/")
    assert f"102.100.TYPE/CREATOR        {creator}" in installation.ok("resolve 10.5072/BCDFGHJKH").out


def test_creator_is_accepted_in_every_form(tmp_path: Path) -> None:
    options = (
        "--prefix",
        "10.5072",
        "--profile",
        "pilin",
        "--creator",
        "http://resolver.net.au/hdl/102.100.272/0N8J991QH",
    )
    done = call("init", str(tmp_path / "made"), *options, "--json")
    assert done.json["creator"] == "102.100.272/0N8J991QH"
    assert Site(tmp_path / "made").lines("list 10.5072") == []


def test_prefix_handle_under_the_global_root_is_used_but_not_hosted(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345", "--root", "global")
    assert installation.ok("config --json").json["settings"][0] == {
        **installation.ok("config --json").json["settings"][0],
        "name": "root",
        "value": "global",
    }
    refused(installation("resolve 0.NA/12345"), "This server does not host prefix 0.NA", code=3)
    installation.ok("create 12345/x --url https://example.org/ --as 300:0.NA/12345")
    refused(installation("create 12345/y --url https://example.org/ --as 300:99999/x"), "ADD_HANDLE")
    installation.ok("namespace add 20.500")
    installation.ok("create 20.500/x --url https://example.org/ --as 300:0.NA/12345")


def test_global_root_without_a_prefix_has_no_administrator(tmp_path: Path) -> None:
    done = call("init", str(tmp_path / "made"), "--root", "global")
    assert (done.code, done.out) == (0, f"installation  {tmp_path}/made\n")
    assert "There is no administrator over the network yet" in done.err


def test_directory_is_an_argument_an_option_or_a_variable(tmp_path: Path) -> None:
    assert call("init", "-d", str(tmp_path / "one")).code == 0
    assert call("init", environ={"PERSEID_DIR": str(tmp_path / "two")}).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    done = call("init", str(tmp_path / "three"), "-d", str(tmp_path / "three"))
    assert (done.code, done.out) == (2, "")
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--profile", "pilin"), 2, "require --prefix"),
        (("--creator", "1/x"), 2, "require --prefix"),
        (("--prefix", "12345", "--profile", "own"), 2, "own"),
        (("--prefix", "12345", "--root", "mine"), 2, "mine"),
        (("--prefix", "12345", "--creator", "hdl:1/x?a=b"), 2, "without query"),
        (("--prefix", "12345", "--creator", "nonsense"), 2, "rule H1"),
        (("--prefix", "a/b"), 2, "rule H2"),
        (("--prefix", "0.NA"), 2, "is reserved for the system"),
        (("--prefix", "hdl:12345"), 2, "Prefix hdl:12345 would be read as a URI"),
        (("--prefix", "hdl:12345"), 2, "Write the prefix alone: 12345\n"),
        (("--prefix", "<hdl:12345"), 2, "Write the prefix alone: 12345\n"),
        (("--prefix", "https:"), 2, "Use a prefix such as 12345\n"),
        (("--prefix", "https:"), 2, "Prefix https: would be read as a URI"),
        (
            ("--prefix", "ten.1", "--profile", "cordra"),
            4,
            "A CORDRA naming authority consists of decimal digits and dots; ten.1 does not",
        ),
        (("--prefix", "2000.01", "--demo"), 4, "Namespace 2000.01 of the demonstration already exists"),
    ],
)
def test_failed_init_leaves_no_files(tmp_path: Path, options: tuple[str, ...], code: int, words: str) -> None:
    done = call("init", str(tmp_path / "made"), *options)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert not (tmp_path / "made").exists()


def test_init_does_not_change_an_existing_installation(tmp_path: Path) -> None:
    installation = site(tmp_path, "--demo")
    before = installation.ok("list 102.100.272 --json").out
    for options in ((), ("--demo",), ("--prefix", "12345")):
        done = call("init", str(installation.directory), *options)
        assert (done.code, done.out) == (1, "")
        assert "already contains an installation" in done.err
    assert installation.ok("list 102.100.272 --json").out == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    assert call("init", str(tmp_path / "full")).code == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_config_shows_values_and_their_sources(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    variables = {"PERSEID_HTTP_PORT": "8080", "PERSEID_HTTP_PROT": "1"}
    done = installation("config", environ=variables)
    assert done.code == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.out.splitlines()}
    assert lines["http.port"] == "8080  (PERSEID_HTTP_PORT)"
    assert lines["native.port"] == "2641  (default)"
    assert re.fullmatch(r'\["300:0\.NA/12345"\]  \(perseid\.toml:\d+\)', lines["administrators.server"])
    assert "PERSEID_HTTP_PROT has no effect; did you mean PERSEID_HTTP_PORT?" in done.err
    found = installation("config --json", environ=variables).json
    assert found["directory"] == str(installation.directory)
    assert len(found["settings"]) == len(lines)
    assert set(found["settings"][0]) == {"name", "value", "source", "unit", "about"}
    assert len(found["remarks"]) == 1


def test_invalid_setting_is_reported_with_its_source(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    for words in ("config", "list 12345"):
        done = installation(words, environ={"PERSEID_HTTP_PORT": "many"})
        message = "perseid: PERSEID_HTTP_PORT: Expected a whole number from 0 to 65,535, not 'many'\n"
        assert (done.code, done.out, done.err) == (1, "", message)


def test_upgrade_reports_that_nothing_changed(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    assert re.fullmatch(r"The tables of the ledger already have version \d{4}\.\n", installation.ok("upgrade").out)
    assert installation.ok("upgrade --json").json["upgraded"] is False


def test_upgrade_is_refused_beside_a_running_server(tmp_path: Path) -> None:
    installation = site(tmp_path, "--prefix", "12345")
    lock = lock_installation(installation.directory)
    assert lock is not None
    problem = json.loads(installation("upgrade --json").err)
    os.close(lock)
    assert problem["type"].endswith("state-conflict")
    assert "is running" in problem["detail"]
    (installation.directory / WRITER_LINK).symlink_to(tmp_path / "socket")
    installation.ok("upgrade")  # a link that a killed server left


def test_upgrade_is_refused_beside_processes_of_a_killed_server(tmp_path: Path) -> None:
    """The next server has another runtime directory; when it stops, nothing leads to the first."""
    installation = site(tmp_path, "--prefix", "12345")
    killed = RuntimeDirectory.create(installation.directory)
    following = RuntimeDirectory.create(installation.directory)
    following.remove()
    try:
        problem = json.loads(installation("upgrade --json").err)
        assert problem["type"].endswith("state-conflict")
        assert f"or end them with: kill {os.getpid()}" in problem["detail"]
    finally:
        killed.remove()
    installation.ok("upgrade")


def test_actor_is_the_operating_system_user(tmp_path: Path) -> None:
    """Environment variables do not change the actor."""
    installation = site(tmp_path, "--prefix", "12345")
    installation("create 12345/x --url https://example.org/", environ={"LOGNAME": "mallory", "USER": "mallory"})
    actors = {json.loads(line)["actor"] for line in installation.lines("log --json")}
    assert len(actors) == 1
    assert "mallory" not in actors.pop()


def test_serve_announces_the_metrics_if_there_are_any(tmp_path: Path) -> None:
    settings = "[metrics]\nenabled = {}\n"
    for enabled in (True, False):
        line, *_ = _welcome_lines(tmp_path, Config.parse(settings.format(str(enabled).lower()), {}), init_demo=False)
        assert ("metrics" in line) is enabled
        assert line.endswith(".")

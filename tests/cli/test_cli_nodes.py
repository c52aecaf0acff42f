"""`init --database`, `node export` and `node join`, with a real PostgreSQL."""

import json
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from perseid import __version__
from perseid.cli import _ports
from perseid.cli._findings import Level
from perseid.cli.check import MAX_CLOCK_DIFFERENCE, node_findings
from perseid.ledger.backup import encryption
from perseid.ledger.store.node_reports import KEPT_SECONDS, NodeReport, read_reports, remove_report, save_report
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.sections import strip_password
from perseid.registry.installation.settings import Config
from perseid.server.processes.sockets import check_port
from tests.cli.installation import Site, call, site
from tests.cli.program import Done
from tests.postgres import Cluster, postgres
from tests.server.failover import request, wait_until
from tests.server.running import serving
from tests.server.test_nodes import commands

__all__ = ["postgres"]

PASSWORD = "swordfish"
NODE = NodeReport("a:/names", "1.0", 3.0, 0.01, 0)


@pytest.fixture(autouse=True)
def _cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "SCRYPT_COST", 2)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """The option with the passphrase."""
    path = tmp_path / "passphrase"
    path.write_text("a long passphrase\n")
    path.chmod(0o600)
    return f"--passphrase-file {path}"


@pytest.fixture
def here(tmp_path: Path, postgres: Cluster) -> Site:
    url = postgres.database().replace("perseid@", f"perseid:{PASSWORD}@")
    return site(tmp_path, "--prefix", "12345", "--database", url)


def test_init_saves_the_database_and_hides_its_password(here: Site) -> None:
    assert PASSWORD in (here.directory / "perseid.toml").read_text()
    assert not (here.directory / "ledger.db").exists()
    shown = here.ok("config").out
    assert "ledger.database" in shown
    assert PASSWORD not in shown
    here.ok("create 12345/a --url https://example.org/a")
    assert "https://example.org/a" in here.ok("resolve 12345/a").out


def test_init_refuses_a_database_that_a_variable_overrides(tmp_path: Path) -> None:
    words = ("init", str(tmp_path / "new"), "--database", "postgresql:///one")
    done = call(*words, environ={"PERSEID_LEDGER_DATABASE": "postgresql:///other"})
    assert done.code == 2
    assert "PERSEID_LEDGER_DATABASE names another database" in " ".join(done.err.split())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_store_every_text_is_refused(tmp_path: Path, postgres: Cluster, encoding: str) -> None:
    postgres.execute(f"CREATE DATABASE {encoding} TEMPLATE template0 ENCODING '{encoding}'")
    url = str(make_url(postgres.database()).set(database=encoding.lower()))
    done = call("init", str(tmp_path / "new"), "--prefix", "12345", "--database", url)
    advice = "Create another one with: createdb --encoding UTF8 --template template0 NAME"
    assert (done.code, f"has the encoding {encoding}" in done.err, advice in done.err) == (1, True, True), done
    assert not (tmp_path / "new").exists()


def test_the_encoding_of_other_clients_is_not_used(
    tmp_path: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    here = site(tmp_path, "--prefix", "12345", "--database", postgres.database())
    here.ok("create 12345/日本 --url https://example.org/日本")
    assert "https://example.org/日本" in here.ok("resolve 12345/日本").out


def test_unreachable_database_is_reported_with_the_option(tmp_path: Path) -> None:
    done = call("init", str(tmp_path / "new"), "--database", f"postgresql://me:{PASSWORD}@127.0.0.1:1/names")
    assert (done.code, "setting ledger.database (--database)" in done.err, PASSWORD in done.err) == (1, True, False)
    assert not (tmp_path / "new").exists()


def test_public_records_are_read_from_the_view_while_the_database_is_unreachable(here: Site) -> None:
    here.ok("create 12345/a --url https://example.org/a")
    here.ok("rebuild answers")  # which a copy of an installation has to do first
    entry = json.loads(here.ok("resolve 12345/a --json").out)["seq"]
    url = f"postgresql://me:{PASSWORD}@127.0.0.1:1/names"

    def away(command: str) -> Done:
        return call(*command.split(), "-d", str(here.directory), environ={"PERSEID_LEDGER_DATABASE": url})

    refused = 'names: connection to server at "127.0.0.1", port 1 failed: Connection refused; check that it runs'
    source = f"This is from the answers view, which has the changes up to entry {entry}."
    for command in ("resolve 12345/a 12345/a", "cite 12345/a", f"qr 12345/a -o {here.directory / 'code.svg'}"):
        done = away(command)
        assert (done.code, done.err.count(refused), done.err.count(source)) == (0, 1, 1), done
        assert (done.out, PASSWORD in done.err) == (here.ok(command).out, False)
    unanswered = f"The answers view, which has the changes up to entry {entry}, cannot answer this."
    for command, in_view in {
        "resolve 12345/none": True,  # it may have been created at another node
        "resolve 12345/a --private": False,
        "cite 12345/a --at 1": False,
        "create 12345/b --url https://example.org/b": False,
    }.items():
        done = away(command)
        assert (done.code, done.out, refused in done.err, unanswered in done.err) == (1, "", True, in_view), done
        assert "Until then, perseid resolve HANDLE shows public records" in done.err


def test_each_of_several_hosts_is_reported_once(tmp_path: Path) -> None:
    done = call("init", str(tmp_path / "new"), "--database", "postgresql://me@127.0.0.1:1,127.0.0.2:2/names")
    first, second = (f'connection to server at "127.0.0.{n}", port {n} failed: Connection refused' for n in (1, 2))
    assert f"names: {first}; {second}; check that it runs" in done.err, done


def test_check_connects_to_every_database_server(tmp_path: Path, postgres: Cluster) -> None:
    url = make_url(postgres.database())
    several = f"postgresql://{url.username}@/{url.database}?host={postgres.folder},{{}}"
    here = site(tmp_path, "--prefix", "12345", "--database", str(url))
    for other, words in [
        (tmp_path, f"cannot connect to {tmp_path}: "),
        (postgres.folder, f"{postgres.folder} and {postgres.folder} accept changes; there must be one primary"),
    ]:
        environ = {"PERSEID_LEDGER_DATABASE": several.format(other)}
        done = call("check", "--quick", "-d", str(here.directory), environ=environ)
        assert (done.code, words in " ".join(done.out.split())) == (1, True), done
    assert "  database  " not in here("check --quick").out


def test_a_missing_password_is_reported_with_the_reason(tmp_path: Path, postgres: Cluster) -> None:
    hba = postgres.folder / "data" / "pg_hba.conf"
    hba.write_text(f"local all guarded scram-sha-256\n{hba.read_text()}")
    postgres.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'", "SELECT pg_reload_conf()")
    url = f"postgresql://guarded@/nowhere?host={postgres.folder}"

    def reason(options: str = "") -> str:
        printed = call("init", str(tmp_path / "new"), "--database", url + options).err
        return " ".join(printed.split()).partition("no password supplied; ")[2]

    file = tmp_path / "pgpass"
    options = f"&passfile={file}"
    assert reason().startswith("write it to a password file that only the user of the server can read, and name it")
    assert reason(options) == f"the password file {file} does not exist"
    file.write_text("db.example.org:*:*:*:another\n")
    file.chmod(0o640)
    assert reason(options) == f"{file} is ignored, because other users have access to it; run: chmod 600 {file}"
    file.chmod(0o600)
    assert reason(options) == f"{file} has no line for {postgres.folder}:5432:nowhere:guarded"
    file.write_text(f"*:*:*:guarded:{PASSWORD}\n")
    done = call("init", str(tmp_path / "new"), "--database", url + options)
    assert 'database "nowhere" does not exist' in done.err, done


def test_a_node_joins_with_the_file_of_another(here: Site, secret: str, tmp_path: Path) -> None:
    file = tmp_path / "node"
    here.ok("create 12345/a --url https://example.org/a")
    done = here.ok(f"node export {file} {secret}")
    assert "password file (~/.pgpass)" in done.err
    assert json.loads(here.ok(f"node export {file}2 {secret} --json").out)["password_left_out"] is True
    assert file.stat().st_mode & 0o777 == 0o600
    second = Site(tmp_path / "second")
    done = second.ok(f"node join {file} {secret}")
    assert done.err == f"Delete {file}, which has the keys. To start this node: perseid serve -d {second.directory}\n"
    settings = (second.directory / "perseid.toml").read_text()
    assert PASSWORD not in settings
    assert settings == (here.directory / "perseid.toml").read_text().replace(f":{PASSWORD}@", "@")
    for name in ("siteinfo.json", "keys/privkey.bin", "keys/checkpoint.key"):
        assert (second.directory / name).read_bytes() == (here.directory / name).read_bytes()
    assert "https://example.org/a" in second.ok("resolve 12345/a").out
    second.ok("create 12345/b --url https://example.org/b")
    assert "https://example.org/b" in here.ok("resolve 12345/b").out


def test_keys_that_one_node_has_rotated_are_taken_over_as_the_guide_says(
    here: Site, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, file = Site(tmp_path / "names"), tmp_path / "node.perseid"
    here.ok(f"node export {file} {secret}")
    second.ok(f"node join {file} {secret}")
    file.unlink()
    settings = second.directory / "perseid.toml"
    settings.write_text(settings.read_text() + "\n# of the second node\n")
    settings.chmod(0o600)
    for purpose in ("checkpoint", "server"):
        assert "Other nodes of the database have the old key" in here.ok(f"key rotate {purpose}").err
    done = second("check --quick")
    advice = "if another node has rotated it, take the keys of that node: perseid node export there"
    assert (done.code, advice in " ".join(done.out.split())) == (1, True), done
    here.ok(f"node export {file} {secret}")
    monkeypatch.chdir(tmp_path)
    for command, _ in commands("Rotate keys"):
        program, *words = shlex.split(command)
        if program == "perseid":
            assert call(*words).code == 0
        else:
            subprocess.run(command, shell=True, check=True)
    for name in ("siteinfo.json", "siteinfo.bin", "keys/privkey.bin", "keys/checkpoint.key"):
        assert (second.directory / name).read_bytes() == (here.directory / name).read_bytes()
        assert (second.directory / name).stat().st_mode & 0o777 == 0o600
    assert "# of the second node" in settings.read_text()
    assert not (second.directory / "new").exists()
    assert "checkpoints are signed as" in second.ok("check --quick").out
    assert second.ok("create 12345/signed --url https://example.org/").err == ""


URL = f"postgresql://me:{PASSWORD}@db/names"


def test_passwords_are_removed_from_any_file_of_settings(here: Site, secret: str, tmp_path: Path) -> None:
    """Also if a variable overrides the setting, and from comments."""
    path, environ = here.directory / "perseid.toml", {}
    environ["PERSEID_LEDGER_DATABASE"] = Config.load(here.directory, {}).ledger.database
    for number, settings in enumerate(
        [
            f'[ledger]\ndatabase = "{URL}" # of db\n',
            f"\ufeff[ ledger ]\r\n\tdatabase='{URL}'\r\n",
            f'ledger.database = "{URL}"\n',
            f'[ledger]\n#database = "{URL}"\n',
            f'# \u2028\n[ledger]\ndatabase = "{URL}"\n',
            f'ledger = {{ database = "{URL}" }}\n',
            f'[ledger]\n"database" = """\\\n{URL}"""\n',
            f"# Before: {URL}, and {URL}\n[ledger]\ndatabase = ''  # {URL.replace('ql', '')}\n",
        ]
    ):
        path.write_bytes(settings.encode())
        file, second = tmp_path / f"file-{number}", tmp_path / f"node-{number}"
        done = call("node", "export", str(file), *secret.split(), "-d", str(here.directory), environ=environ)
        assert (done.code, "is not in it" in done.err) == (0, True), done
        done = call("node", "join", str(file), *secret.split(), "-d", str(second), environ=environ)
        assert done.code == 0, done
        expected = settings.removeprefix("\ufeff").replace(f":{PASSWORD}@", "@")
        assert (second / "perseid.toml").read_bytes() == expected.encode()


def test_a_password_that_cannot_be_removed_is_not_exported(here: Site, secret: str, tmp_path: Path) -> None:
    for settings in (
        f'[ledger]\ndatabase = "{URL.replace("@", chr(92) + "u0040")}"\n',
        f'[ledger]\ndatabase = "{URL.replace(PASSWORD, chr(39) + PASSWORD)}"\n',
    ):
        (here.directory / "perseid.toml").write_text(settings)
        done = here(f"node export {tmp_path / 'node'} {secret}")
        assert (done.code, 'without escapes and other quotes, as in: database = "postgresql' in done.err) == (
            1,
            True,
        ), done
        assert PASSWORD not in done.err
        assert not (tmp_path / "node").exists()


def test_check_names_the_nodes_with_problems(here: Site) -> None:
    with Installation.open(here.directory) as installation:
        store = installation.log.store
        save_report(store, "one", "1.0", 0)
        save_report(store, "two", "1.0", 0)
        with installation.ledger.open_reader() as reader:
            size = reader.size
        assert [(node.name, node.version, node.behind) for node in read_reports(store)] == [
            ("one", "1.0", size),
            ("two", "1.0", size),
        ]
        save_report(store, "two", "1.1", size)
        remove_report(store, "one")
        (second,) = read_reports(store)
        assert (second.name, second.version, second.behind) == ("two", "1.1", 0)
        assert abs(second.clock_difference) < MAX_CLOCK_DIFFERENCE
        with store.writing() as connection:
            connection.exec_driver_sql("UPDATE node_reports SET seen_at = seen_at - 61000000")
        save_report(store, "one", "1.0", size)
    assert "two is unresponsive" in here("check --quick").out
    with Installation.open(here.directory) as installation:
        store = installation.log.store
        with store.writing() as connection:
            connection.exec_driver_sql(f"UPDATE node_reports SET seen_at = seen_at - {KEPT_SECONDS}000000")
        save_report(store, "three", "1.0", 0)
        assert [node.name for node in read_reports(store)] == ["three"]


@pytest.mark.parametrize(
    ("reports", "level", "words"),
    [
        ([], Level.OK, "no node is running"),
        ([NODE], Level.OK, "1 node running, at most 0 entries behind the ledger"),
        ([NODE, replace(NODE, age=61)], Level.ERROR, "a:/names is unresponsive: its last report is 61 s old"),
        ([replace(NODE, clock_difference=2.5)], Level.ERROR, "the clock of a:/names is 2.5 s ahead of the database's"),
        ([replace(NODE, clock_difference=-2.5)], Level.ERROR, "the clock of a:/names is 2.5 s behind the database's"),
        ([replace(NODE, behind=1001)], Level.ERROR, "a:/names was 1,001 entries behind the ledger"),
        ([NODE, replace(NODE, name="b", version="1.1")], Level.NOTE, "a:/names has 1.0, b has 1.1"),
    ],
)
def test_findings_about_nodes(reports: list[NodeReport], level: Level, words: str) -> None:
    found = list(node_findings(reports))
    assert [each.level for each in found if words in each.message] == [level]
    assert [each.level for each in found if each.level is not Level.OK] == [level] * (level is not Level.OK)


def test_a_server_reports_until_it_is_stopped(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And `check` recognizes its ports."""
    monkeypatch.setattr(_ports, "check_port", check_port)
    with Installation.open(here.directory, writable=False) as installation:
        store = installation.log.store
        with serving(here.directory) as server:
            wait_until(lambda: bool(read_reports(store)), "a report")
            (node,) = read_reports(store)
            assert (node.name, node.version) == (f"{socket.gethostname()}:{here.directory.resolve()}", __version__)
            assert server.metrics is not None
            _, body = request(server.metrics, "GET", "/metrics")
            assert f'perseid_node_info{{node="{node.name}",version="{__version__}"}} 1.0' in body.decode()
            for name in ("report_age_seconds", "lag_entries", "clock_difference_seconds"):
                assert f'perseid_node_{name}{{node="{node.name}"}}' in body.decode()
            addresses = {"native": server.native, "http": server.http, "metrics": server.metrics}
            ports = {f"PERSEID_{name.upper()}_PORT": str(port) for name, (_, port) in addresses.items()}
            done = here("check --quick --json", environ=ports)
            found = [(each["level"], each["message"]) for each in done.json["findings"] if each["about"] == "ports"]
            assert len(found) == len(ports)
            for level, message in found:
                assert (level, message.partition(") ")[2]) == (
                    "ok",
                    "is in use by the running server of this installation",
                )
            with monkeypatch.context() as patched:  # as for another installation
                patched.setattr(_ports, "find_users", lambda _: None)
                assert here("check --quick --json", environ=ports).json["ok"] is False
        assert read_reports(store) == []


def test_files_of_nodes_are_refused_with_the_reason(here: Site, secret: str, tmp_path: Path, postgres: Cluster) -> None:
    file, second = tmp_path / "node", Site(tmp_path / "second")
    here.ok(f"node export {file} {secret}")
    (tmp_path / "other").write_text("another long passphrase\n")
    (tmp_path / "other").chmod(0o600)
    for words, reason in [
        (f"{file} --passphrase-file {tmp_path / 'other'}", "passphrase"),
        (f"{tmp_path / 'passphrase'} {secret}", "is not a file of `perseid node export`"),
    ]:
        done = second(f"node join {words}")
        assert (done.code, reason in done.err) == (1, True), done
    environ = {"PERSEID_LEDGER_DATABASE": postgres.database()}
    done = call("node", "join", str(file), *secret.split(), "-d", str(second.directory), environ=environ)
    assert (done.code, "No ledger in" in done.err) == (1, True), done
    assert not second.directory.exists()


def test_the_database_of_another_ledger_is_refused(here: Site, tmp_path: Path, postgres: Cluster) -> None:
    here.ok("create 12345/a --url https://example.org/a")
    url = postgres.database()
    site(tmp_path / "other", "--prefix", "777", "--database", url)
    for command in ("create 12345/b --url https://example.org/b", "check --quick"):
        done = call(*command.split(), "-d", str(here.directory), environ={"PERSEID_LEDGER_DATABASE": url})
        printed = " ".join(f"{done.out} {done.err}".split())
        assert done.code == 1, done
        assert f"/{make_url(url).database}?" in printed
        assert "correct the setting ledger.database (PERSEID_LEDGER_DATABASE)" in printed
    assert "https://example.org/a" in here.ok("resolve 12345/a").out


def test_an_installation_with_a_file_has_no_other_nodes(tmp_path: Path, secret: str) -> None:
    done = site(tmp_path, "--prefix", "12345")(f"node export {tmp_path / 'node'} {secret}")
    assert (done.code, "perseid restore FILE --settings COPY" in done.err) == (1, True), done
    assert not (tmp_path / "node").exists()


def test_read_only_mode_of_no_installation_creates_nothing(tmp_path: Path) -> None:
    done = Site(tmp_path / "nowhere")("read-only on")
    assert (done.code, "No installation in" in done.err) == (1, True), done
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("url", "stripped"),
    [
        ("postgresql://me:p%40ss@h/d?host=/x", "postgresql://me@h/d?host=/x"),
        ("postgresql://me@h/d?password=p&sslpassword=q&sslmode=require", "postgresql://me@h/d?sslmode=require"),
        ("postgresql://one,two/d?password=p", "postgresql://one,two/d"),
        ("postgresql://me@h/d?passfile=/etc/perseid/pgpass", "postgresql://me@h/d?passfile=/etc/perseid/pgpass"),
    ],
)
def test_passwords_are_removed_from_urls(url: str, stripped: str) -> None:
    assert strip_password(url) == stripped

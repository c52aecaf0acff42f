"""The server key and site information on the command line: create, list, rotate, import, check."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from perseid.cli import _ports, keys
from perseid.records.errors import InvalidData
from perseid.records.private_keys import read_key_file, read_private_key
from perseid.records.site import Site as SiteRecord
from perseid.registry.installation import site as site_module
from perseid.registry.installation.site import with_key
from perseid.server.processes.sockets import PortOwner, PortStatus
from tests.cli.installation import Site, call, refused, site
from tests.registry.installation.server_files import PASSPHRASE, put, put_key, put_site
from tests.registry.installation.server_files import site as site_record
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY
from tests.wire.recorded import key_file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An installation that uses a recorded key instead of generating keys, which is slow."""
    installation = site(tmp_path, "--prefix", "12345")
    monkeypatch.setattr(site_module, "generate_key", lambda: RSA_KEY)
    return installation


def put_recorded_files(of: Site, folder: str = "keys", name: str = "siteinfo.bin") -> None:
    """Put the recorded key and site information into an installation."""
    put(of.directory / "keys" / "privkey.bin", key_file("privkey.bin"))
    put(of.directory / folder / name, key_file(name))


def findings(of: Site, about: str, code: int = 0, environ: dict[str, str] | None = None) -> list[dict[str, str]]:
    done = of("check --quick --json", environ=environ)
    assert done.code == code, done
    return [finding for finding in done.json["findings"] if finding["about"] == about]


def server_key(of: Site) -> dict[str, Any]:
    (document,) = [each for line in of.lines("key list --json") if (each := json.loads(line))["purpose"] == "server"]
    return dict(document)


# Create and list


def test_init_creates_the_server_key_and_site_information(here: Site) -> None:
    forms = [SiteRecord.from_file((here.directory / f"siteinfo.{form}").read_bytes()) for form in ("bin", "json")]
    assert forms[0] == forms[1]
    key = read_key_file((here.directory / "keys" / "privkey.bin").read_bytes(), None)
    assert forms[0].servers[0].key == key.public
    assert (forms[0].serial, forms[0].is_primary) == (1, True)


def test_failed_init_leaves_no_server_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "generate_key", lambda: RSA_KEY)
    (tmp_path / "x").mkdir()
    refused(call("init", str(tmp_path / "x"), "--demo", "--prefix", "102.100.272"), "already")
    assert list((tmp_path / "x").iterdir()) == []


def test_key_list_shows_the_server_key(here: Site) -> None:
    put_recorded_files(here)
    document = server_key(here)
    assert set(document) == {"purpose", "key", "fingerprint", "active", "serial_number", "position"}
    assert (document["key"]["kty"], document["serial_number"], document["position"]) == ("RSA", 1, 1)
    assert "d" not in document["key"]
    first = here.lines("key list")[0]
    assert first == f"server  {document['fingerprint']}  active, serial number 1 of the site"


def test_missing_server_key_does_not_hide_other_keys(here: Site) -> None:
    (here.directory / "keys" / "privkey.bin").unlink()
    done = here.ok("key list")
    assert done.out.startswith("checkpoint  ")
    assert len(done.out.splitlines()) == 1
    assert done.err.startswith("perseid: the server's key cannot be shown: No server key in ")


def test_restored_installation_has_a_server_key(here: Site, tmp_path: Path) -> None:
    here.ok(f"backup {tmp_path}/full")
    restored = Site(tmp_path / "again")
    done = restored.ok(f"restore {tmp_path}/full --settings {here.directory}/perseid.toml")
    assert "and remove siteinfo.bin" in done.err
    assert findings(restored, "server")[-1]["level"] == "ok"
    for name in ("siteinfo.json", "keys/privkey.bin"):
        shutil.copy(here.directory / name, restored.directory / name)
    assert server_key(restored) == server_key(here)


# Rotate


def test_rotation_replaces_the_server_key(here: Site) -> None:
    before = server_key(here)
    done = here.ok("key rotate server --json")
    assert set(done.json) == {"purpose", "key", "fingerprint", "serial_number", "site_information"}
    assert done.json["key"] == RSA_KEY.public.to_json()
    assert done.json["serial_number"] == before["serial_number"] + 1
    assert server_key(here)["fingerprint"] == done.json["fingerprint"] != before["fingerprint"]
    assert done.json["site_information"] == [str(here.directory / f"siteinfo.{form}") for form in ("bin", "json")]
    assert all(finding["level"] == "ok" for finding in findings(here, "server"))


def test_rotation_prints_a_summary(here: Site) -> None:
    done = here.ok("key rotate server")
    assert [line.split("  ")[0] for line in done.out.splitlines()] == [
        "active key",
        "serial number",
        "site information",
    ]
    assert done.err.startswith("A running server loads the key on SIGHUP.")


def test_rotation_creates_missing_server_files(here: Site) -> None:
    for name in ("siteinfo.bin", "siteinfo.json", "keys/privkey.bin", "keys/pubkey.bin"):
        (here.directory / name).unlink()
    (finding,) = findings(here, "server", code=1)
    assert finding["message"].endswith("create a new key and site information with: perseid key rotate server")
    assert here.ok("key rotate server --json").json["serial_number"] == 1
    assert findings(here, "server")[-1]["level"] == "ok"


def test_interrupted_rotation_is_found_and_finished(here: Site) -> None:
    put_key(here.directory / "keys" / "privkey.bin.next", RSA_KEY)
    record = SiteRecord.from_bytes((here.directory / "siteinfo.bin").read_bytes())
    put_site(here.directory / "siteinfo.bin", with_key(record, 0, RSA_KEY.public))
    wrong, note, _ = findings(here, "server", code=1)[:3]
    assert wrong["message"] == "the rotation of the server's key was interrupted"
    assert wrong["advice"] == "finish it with: perseid key rotate server"
    assert "siteinfo.json (serial number 1) differs from" in note["message"]
    assert server_key(here)["key"] == RSA_KEY.public.to_json()
    assert here.ok("key rotate server --json").json["serial_number"] == 2
    assert [finding["level"] for finding in findings(here, "server")] == ["ok"]


# Import


@pytest.mark.parametrize("name", ["siteinfo.bin", "siteinfo.json"])
@pytest.mark.parametrize("folder", [".", "keys"])
def test_deployed_files_are_used(here: Site, folder: str, name: str) -> None:
    put_recorded_files(here, folder, name)
    document = server_key(here)
    assert document["key"] == SERVER_KEY.public.to_json()
    ok = findings(here, "server", environ={"PERSEID_NATIVE_PORT": "22641", "PERSEID_HTTP_PORT": "28000"})[-1]
    assert (ok["level"], document["fingerprint"] in ok["message"]) == ("ok", True)


def test_passphrase_is_never_printed(here: Site) -> None:
    put_key(here.directory / "keys" / "privkey.bin", DSA_KEY, PASSPHRASE)
    for name in ("siteinfo.bin", "siteinfo.json"):
        put_site(here.directory / name, site_record(DSA_KEY))
    (wrong,) = findings(here, "server", code=1)
    assert "is protected by a passphrase, but none is set" in wrong["message"]
    environ = {"PERSEID_KEYS_PASSPHRASE": PASSPHRASE}
    results = [
        here(words, environ=environ)
        for words in ("check --quick", "key list", "key list --json", "config", "config --json")
    ]
    assert [done.code for done in results] == [0] * 5
    results.append(here("check --quick", environ={"PERSEID_KEYS_PASSPHRASE": PASSPHRASE + "!"}))
    assert "is wrong for" in results[-1].out
    assert not any(PASSPHRASE in done.out + done.err for done in results)
    passphrase_file = put(here.directory.parent / "word", PASSPHRASE.encode(), mode=0o644)
    notes = findings(here, "server", environ={"PERSEID_KEYS_PASSPHRASE_FILE": str(passphrase_file)})
    assert (notes[0]["level"], notes[0]["advice"]) == ("note", f"restrict access with: chmod 0600 {passphrase_file}")
    passphrase_file.chmod(0o440)
    environ = {"PERSEID_KEYS_PASSPHRASE_FILE": str(passphrase_file)}
    assert "chmod" in str(findings(here, "server", environ=environ))
    credentials = {"CREDENTIALS_DIRECTORY": str(passphrase_file.parent)}
    assert "chmod" not in str(findings(here, "server", environ=environ | credentials))


# Check


def _another_key(of: Site) -> None:
    put_key(of.directory / "keys" / "privkey.bin", DSA_KEY)


def _another_public_key(of: Site) -> None:
    put(of.directory / "keys" / "pubkey.bin", DSA_KEY.public.to_bytes())


def _unused_next_key(of: Site) -> None:
    put_key(of.directory / "keys" / "privkey.bin.next", DSA_KEY)


def _change_site(change: Callable[[dict[str, Any]], object]) -> Callable[[Site], None]:
    """A function that changes the site information, in JSON only."""

    def apply(of: Site) -> None:
        (of.directory / "siteinfo.bin").unlink()
        document = json.loads((of.directory / "siteinfo.json").read_text())
        change(document)
        put(of.directory / "siteinfo.json", json.dumps(document).encode())

    return apply


def _older_form(of: Site) -> None:
    document = json.loads((of.directory / "siteinfo.json").read_text())
    put(of.directory / "siteinfo.json", json.dumps(document | {"serialNumber": 4}).encode())


def _interfaces(document: dict[str, Any], **changes: object) -> None:
    for interface in document["servers"][0]["interfaces"]:
        interface.update(changes)


@pytest.mark.parametrize(
    ("change", "level", "message", "advice"),
    [
        (_another_key, "error", "does not match server 1 in", ""),
        (_another_public_key, "note", "pubkey.bin is not the public key of the server", "remove it"),
        (_unused_next_key, "note", "was never used", "the next rotation removes it"),
        (_older_form, "note", "differs from", ""),
        (_change_site(lambda document: document.update(primarySite=False)), "note", "refuses changes", ""),
        (
            _change_site(lambda document: document.update(servers=[])),
            "error",
            "site.position is 1 (default), but {}/siteinfo.json has 0 servers; correct the setting, or install",
            "",
        ),
        (
            _change_site(lambda document: _interfaces(document, port=99)),
            "note",
            "sends clients to TCP 99, UDP 99, but native.port",
            "raise",
        ),
        (
            _change_site(lambda document: _interfaces(document, protocol="HTTP")),
            "note",
            "lists no UDP interface of this server",
            "correct",
        ),
        (
            _change_site(lambda document: document["servers"][0].update(address="192.0.2.1")),
            "note",
            "sends clients to 192.0.2.1",
            "raise",
        ),
    ],
)
def test_check_reports_problems_of_the_server(
    here: Site, change: Callable[[Site], None], level: str, message: str, advice: str
) -> None:
    change(here)
    found = findings(here, "server", code=1 if level == "error" else 0)
    (finding,) = [finding for finding in found if message.format(here.directory) in finding["message"]]
    assert finding["level"] == level
    assert advice in finding["advice"]


@pytest.mark.parametrize(("host", "notes"), [("0.0.0.0", 1), ("192.0.2.9", 1), ("127.0.0.1", 0), ("localhost", 0)])
def test_check_notes_an_address_that_is_not_in_the_site_information(here: Site, host: str, notes: int) -> None:
    found = findings(here, "server", environ={"PERSEID_NATIVE_HOST": host})
    assert [finding["level"] for finding in found] == ["note"] * notes + ["ok"]


OWN = PortOwner(os.getpid(), "python -m perseid.server.processes.supervisor")
ANOTHER = PortOwner(9, "perseid: supervisor other")
OTHER = PortOwner(8, "java -jar handle.jar")


IN_USE = PortStatus("in use", True)
STOP = "stop it, or change native.port"


@pytest.mark.parametrize(
    ("users", "tcp", "udp", "code", "expected"),
    [
        ([os.getpid()], PortStatus(), PortStatus(), 0, [("ok", "TCP, UDP) is free", "")]),
        (
            [os.getpid()],
            replace(IN_USE, owners=(OWN,)),
            replace(IN_USE, owners=(OWN,)),
            0,
            [("ok", "TCP, UDP) is in use by the running server of this installation", "")],
        ),
        (
            None,
            PortStatus(),
            replace(IN_USE, owners=(OTHER, ANOTHER)),
            1,
            [("ok", "TCP) is free", ""), ("error", f"UDP) is in use by {OTHER}, {ANOTHER}", STOP)],
        ),
        (
            [],
            PortStatus(),
            replace(IN_USE, owners=(OTHER, ANOTHER)),
            0,
            [("ok", "TCP) is free", ""), ("note", f"UDP) is in use by {OTHER}, {ANOTHER}", STOP)],
        ),
        (
            [os.getpid()],
            replace(IN_USE, owners=(OTHER,)),
            PortStatus(),
            1,
            [("error", f"TCP) is in use by {OTHER}", STOP), ("ok", "UDP) is free", "")],
        ),
        (
            [os.getpid()],
            IN_USE,
            IN_USE,
            1,
            [
                (
                    "error",
                    "TCP, UDP) is in use by an unknown process, perhaps of another user",
                    f"find it with: ss -lntup; {STOP}",
                )
            ],
        ),
        (
            [os.getpid()],
            PortStatus("No"),
            PortStatus("No"),
            1,
            [
                (
                    "error",
                    "cannot listen on 127.0.0.1:2641 (native, TCP, UDP): No",
                    "correct native.host or native.port (default)",
                )
            ],
        ),
    ],
)
def test_check_reports_ports_in_use(
    here: Site,
    monkeypatch: pytest.MonkeyPatch,
    users: list[int] | None,
    tcp: PortStatus,
    udp: PortStatus,
    code: int,
    expected: list[tuple[str, str, str]],
) -> None:
    statuses = {False: tcp, True: udp}
    monkeypatch.setattr(_ports, "check_port", lambda _host, _port, udp: statuses[udp])
    monkeypatch.setattr(_ports, "find_users", lambda _: users)
    found = findings(here, "ports", code, environ={"PERSEID_METRICS_ENABLED": "no", "PERSEID_HTTP_ENABLED": "no"})
    where = "127.0.0.1:2641 (native, "
    assert [(each["level"], each["message"].removeprefix(where), each["advice"]) for each in found] == expected


def test_check_reports_http_and_metrics_ports(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = {8641: PortStatus(), 28000: replace(IN_USE, owners=(OTHER,))}
    monkeypatch.setattr(_ports, "check_port", lambda _host, port, **_: statuses[port])
    native, http, metrics = findings(here, "ports", 1, {"PERSEID_NATIVE_PORT": "0", "PERSEID_HTTP_PORT": "28000"})
    assert native["message"] == "the system chooses a free port (native.port is 0)"
    assert http["message"] == f"127.0.0.1:28000 (http, TCP) is in use by {OTHER}"
    assert http["advice"] == "stop it, or change http.port"
    assert metrics["message"] == "127.0.0.1:8641 (metrics, TCP) is free"
    monkeypatch.setattr(_ports, "check_port", lambda *_, **__: PortStatus("Permission denied"))
    low, _, metrics = findings(here, "ports", 1, environ={"PERSEID_NATIVE_PORT": "264", "PERSEID_NATIVE_HOST": "::1"})
    assert low["message"] == "cannot listen on [::1]:264 (native, TCP, UDP): Permission denied"
    assert "(PERSEID_NATIVE_HOST, PERSEID_NATIVE_PORT); a port below 1024 requires the capability" in low["advice"]
    assert metrics["advice"] == "correct metrics.host or metrics.port (default)"


# HTTP


def test_check_reports_the_http_settings(here: Site) -> None:
    (found,) = findings(here, "http")
    own = here.directory / "keys" / "https.pem"
    assert (found["level"], found["message"]) == ("ok", f"HTTPS uses a self-signed certificate: {own}")
    own.unlink()
    (found,) = findings(here, "http")
    assert found["level"] == "note"
    assert found["advice"] == "the server creates one when it starts, or on SIGHUP"
    assert not own.exists()
    (found,) = findings(here, "http", environ={"PERSEID_HTTP_ENABLED": "no"})
    assert found["message"] == "disabled (http.enabled is false)"
    proxied = {"PERSEID_HTTP_LISTEN": "http", "PERSEID_HTTP_PUBLIC_URL": "https://hdl.example.org"}
    note, ok = findings(here, "http", environ=proxied)
    assert "list the proxy in http.trusted_proxies" in note["advice"]
    assert ok["message"].startswith("plain HTTP only")
    (ok,) = findings(here, "http", environ=proxied | {"PERSEID_HTTP_TRUSTED_PROXIES": "192.0.2.7"})
    (wrong,) = findings(here, "http", 1, environ={"PERSEID_HTTP_CERTIFICATE_FILE": "web.pem"})
    assert wrong["level"] == "error"
    assert f"Cannot read {here.directory}/web.pem: " in wrong["message"]


@pytest.mark.parametrize(
    ("days", "level", "message"),
    [(-1, "error", "expired at "), (5, "note", "expires in 4 days"), (60, "ok", "is valid for another 59 days")],
)
def test_check_reports_the_expiry_of_a_certificate(here: Site, days: int, level: str, message: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "web")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=90))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = put(here.directory / "web.pem", certificate.public_bytes(Encoding.PEM) + private)
    environ = {"PERSEID_HTTP_CERTIFICATE_FILE": "web.pem"}
    found = findings(here, "http", int(level == "error"), environ)
    assert [each["level"] for each in found] == [level]
    assert f"he certificate in {path} {message}" in found[0]["message"]
    path.chmod(0o604)
    found = findings(here, "http", int(level == "error"), environ)
    assert found[-1]["advice"] == f"restrict access with: chmod o= {path}"


# Keys of users


@pytest.mark.parametrize("options", ["", "--format handle"])
@pytest.mark.parametrize("passphrase", ["", "--passphrase-file passphrase"])
def test_generated_key_pair_is_read_back(
    options: str, passphrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keys, "generate_key", lambda: RSA_KEY)
    Path("passphrase").write_text("correct horse\n", encoding="ascii")
    done = call(*f"key generate my.key --json {options} {passphrase}".split())
    assert done.code == 0, done
    assert done.json == {
        "fingerprint": RSA_KEY.public.fingerprint,
        "key": RSA_KEY.public.to_json(),
        "private_key_file": "my.key",
        "public_key_file": "my.key.pub",
    }
    assert Path("my.key").stat().st_mode & 0o777 == 0o600
    private = Path("my.key").read_bytes()
    assert read_private_key(private, b"correct horse") == RSA_KEY
    if passphrase:
        for wrong in (None, b"wrong"):
            with pytest.raises(InvalidData):
                read_private_key(private, wrong)
    again = call("key", "generate", "my.key")
    assert (again.code, "my.key exists; choose another file" in again.err) == (2, True)


def test_empty_passphrase_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n", encoding="ascii")
    done = call("key", "generate", "my.key", "--passphrase-file", "empty")
    assert (done.code, "the file is empty" in done.err) == (2, True)
    assert not Path("my.key").exists()

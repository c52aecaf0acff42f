"""`perseid token`: create, list, show and revoke tokens; and what `check` reports about them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perseid.cli import check
from perseid.ledger.store import idempotency
from perseid.registry.access.token_records import PATTERN, Secret
from perseid.registry.access.tokens import TokenUses
from perseid.registry.installation.installation import Installation
from perseid.registry.results import Refused
from perseid.schema.namespaces import SCOPES
from tests.cli.installation import Site, refused, site
from tests.registry.registries import authenticated


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return site(tmp_path, "--prefix", "12345")


def create(of: Site, words: str = "--scope read --all-namespaces") -> dict[str, Any]:
    return dict(of.ok(f"token create {words} --json").json)


def list_tokens(of: Site, words: str = "") -> list[dict[str, Any]]:
    return [json.loads(line) for line in of.lines(f"token list {words} --json")]


def test_token_is_printed_only_once(here: Site) -> None:
    done = here.ok("token create --scope mint,update --scope publish --namespace 12345 --label catalog")
    assert re.fullmatch(PATTERN + "\n", done.out)
    secret = Secret.parse(done.out.strip())
    assert secret.id in done.err
    assert done.out.strip() not in done.err
    assert f"perseid token revoke {secret.id}" in done.err
    for words in ("token list", "token list --all --json", f"token show {secret.id}", "token show last --json", "log",
                  f"history 0.SITE/TOKENS/{secret.id.upper()} --json", "check --quick"):  # fmt: skip
        result = here.ok(words)
        for hidden in (secret.text(), secret.text()[16:], secret.raw.hex(), secret.digest().hex()):
            assert hidden not in result.out + result.err, words


def test_token_goes_to_a_file_that_only_its_owner_can_read(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "token"
    done = here.ok(f"token create --scope mint --namespace 12345 --output {path}")
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(PATTERN + "\n", path.read_text())
    assert done.out == f"token  {Secret.parse(path.read_text().strip()).id}\nfile   {path}\n"
    assert "Only you can read the file." in done.err
    assert "already exists; use another file name" in here(f"token create --scope mint --all-namespaces -o {path}").err
    assert len(list_tokens(here)) == 1


def test_json_has_all_fields_of_a_token(here: Site) -> None:
    token = create(
        here, "--scope create,read --namespace 12345 --namespace 12345.* --expires-in 30d --label 'the catalog'"
    )
    assert set(token) == {"token", "id", "expires"}
    (item,) = list_tokens(here)
    assert item == {
        "id": token["id"],
        "label": "the catalog",
        "issuer": item["issuer"],
        "scopes": ["read", "create"],
        "namespaces": ["12345", "12345.*"],
        "created": item["created"],
        "expires": token["expires"],
        "state": "active",
        "seq": item["seq"],
    }
    assert item["issuer"].startswith("local:")
    assert here.ok(f"token show {token['id']} --json").json == item
    create(here)
    assert here.ok("token show last --json").json["namespaces"] is None


def test_token_authenticates_until_it_is_revoked(here: Site) -> None:
    token = create(here, "--scope mint --namespace 12345")
    with Installation.open(here.directory) as installation:
        tokens = TokenUses(installation.registry())
        identity = authenticated(installation.registry(), token["token"])
        tokens.note(identity.token)
        assert str(identity).startswith(f"token:{token['id']} by local:")
    here.ok(f"token revoke {token['id']}")
    with Installation.open(here.directory) as installation, pytest.raises(Refused, match="was revoked"):
        authenticated(installation.registry(), token["token"])
    assert list_tokens(here, "--all")[0]["last_used"] is not None


def test_token_is_listed_and_shown_as_text(here: Site) -> None:
    here.ok("token create --scope mint,read --namespace 12345 --label 'the catalog'")
    (line,) = here.lines("token list")
    assert re.fullmatch(
        r"[a-z2-7]{8}  active  until \d{4}-\d\d-\d\d  never used  local:\S+  read,mint  12345  the catalog", line
    )
    fields = dict(re.split("  +", line, maxsplit=1) for line in here.lines("token show last"))
    assert fields["scopes"] == "read, mint"
    assert fields["last used"] == "never"
    assert fields["state"] == "active"
    assert "revoked" not in fields
    here.ok("token revoke last --note found")
    assert here.ok("token list").out == ""
    assert "  revoked  " in here.ok("token list --all").out
    assert "revoked" in here.ok("token show last").out


def test_token_belongs_to_its_issuer(here: Site) -> None:
    token = create(here, "--scope read --namespace 12345 --as 300:0.NA/12345")
    (item,) = list_tokens(here, "--as 300:0.NA/12345")
    assert (item["id"], item["issuer"]) == (token["id"], "300:0.NA/12345")
    assert list_tokens(here, "--as 300:12345/nobody") == []
    refused(here(f"token revoke {token['id']} --as 300:12345/nobody"), f"Token {token['id']} does not exist", code=3)
    refused(here(f"token show {token['id']} --as 300:12345/nobody"), "does not exist", code=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--all-namespaces", "Name at least one scope with --scope: read, "),
        ("--scope read", "use either --namespace or --all-namespaces"),
        ("--scope read --all-namespaces --namespace 12345", "use either --namespace or --all-namespaces"),
        ("--scope everything --all-namespaces", "is not a scope"),
        ("--scope admin --namespace 12345", "applies to the whole server"),
        ("--scope read --namespace 12345/x", "Write a prefix"),
        ("--scope read --all-namespaces --expires-in 0d", "--expires-in"),
        ("--scope read --all-namespaces --expires-in 401d", "--expires-in"),
    ],
)
def test_wrong_usage(here: Site, words: str, message: str) -> None:
    done = here(f"token create {words}", environ={"COLUMNS": "300"})
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_invalid_token_commands_are_refused(here: Site) -> None:
    refused(here("token create --scope read --namespace 777"), "This server does not host prefix 777", code=3)
    refused(here("token create --scope read --all-namespaces --as 300:12345/nobody"), "cannot create a token")
    refused(here("token create --scope read --all-namespaces --label", "two\nlines"), "one printable line")
    refused(here("token show zzzzzzzz"), "Token zzzzzzzz does not exist", code=3)
    refused(here("token show last"), "There are no tokens", code=3)
    refused(here("token revoke zzzzzzzz"), "Token zzzzzzzz does not exist", code=3)
    assert here("token revoke").code == 2


def test_token_is_identified_by_its_secret(here: Site) -> None:
    token = create(here)
    assert here.ok(f"token show {token['token']} --json").json["id"] == token["id"]
    assert here.lines(f"token revoke {token['token']}") == [token["id"]]


def test_all_tokens_of_an_issuer_are_revoked(here: Site) -> None:
    ann = [create(here, "--scope read --namespace 12345 --as 300:0.NA/12345")["id"] for _ in range(3)]
    other = create(here)["id"]
    assert sorted(here.lines(f"token revoke {ann[0]} --issuer 300:0.NA/12345")) == sorted(ann)
    assert [item["id"] for item in list_tokens(here)] == [other]
    done = here.ok("token revoke --issuer 300:0.NA/12345")
    assert (done.out, done.err) == ("", "perseid: 300:0.NA/12345 has no active tokens\n")
    revoked = here.ok(f"token revoke {other} --json").json
    assert (revoked["id"], revoked["state"]) == (other, "revoked")
    assert revoked["revoked"]


def test_help_explains_all_scopes(here: Site) -> None:
    shown = here.ok("token create --help").out.partition("The scopes:")[2]
    assert [scope for scope in SCOPES if scope not in shown] == []


# Check


def findings(of: Site) -> Iterator[tuple[str, str]]:
    for each in of.ok("check --quick --json").json["findings"]:
        if each["about"] == "tokens":
            yield each["level"], each["message"]


def test_check_reports_active_and_unused_tokens(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(findings(here)) == []
    first, second = create(here)["id"], create(here)["id"]
    assert list(findings(here)) == [("ok", "2 active")]
    here.ok(f"token revoke {second}")
    assert list(findings(here)) == [("ok", "1 active")]
    monkeypatch.setattr(check, "UNUSED_DAYS", 0)
    assert list(findings(here)) == [("note", f"not used for 0 days: {first}"), ("ok", "1 active")]
    for _ in range(6):
        create(here)
    assert next(findings(here))[1].endswith(" and 2 more")


def test_check_uses_the_time_of_last_use(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token_id = create(here)["id"]
    monkeypatch.setattr(check, "UNUSED_DAYS", 1)
    monkeypatch.setattr(check, "DAY", 0)
    assert len(list(findings(here))) == 2
    with Installation.open(here.directory) as installation:
        installation.registry().ledger.change(idempotency.RecordUse(token_id, 40_000))
    assert list(findings(here)) == [("ok", "1 active")]


def test_check_notes_tokens_restored_from_a_backup(here: Site, tmp_path: Path) -> None:
    token = create(here)
    here.ok(f"backup {tmp_path}/full")
    here.ok(f"token revoke {token['id']}")
    restored = Site(tmp_path / "again")
    restored.ok(f"restore {tmp_path}/full --settings {here.directory}/perseid.toml")
    note, ok = findings(restored)
    assert note[0] == "note"
    assert note[1].startswith(f"restored from a backup: {token['id']}")
    assert ok == ("ok", "1 active")
    restored.ok(f"token revoke {token['id']}")
    create(restored)
    assert list(findings(restored)) == [("ok", "1 active")]

"""`perseid user`, `grant`, `revoke` and `access` on an installation."""

import json
from pathlib import Path

import pytest

from tests.cli.installation import Site, site
from tests.wire.key_material import RSA_KEY


@pytest.fixture
def here(tmp_path: Path) -> Site:
    return site(tmp_path, "--prefix", "12345")


def test_user_is_added_granted_shown_and_disabled(here: Site) -> None:
    added = here.ok("user add 12345 ann --email ann@example.org")
    (identity, secret) = [line.split()[1] for line in added.out.splitlines()]
    assert identity == "300:12345/ann"
    assert secret not in added.err
    assert "only once" in added.err
    here.ok("create 12345/x --url https://example.org/")
    assert here("add 12345/x DESC=x --as 300:12345/ann").code == 4
    granted = here.ok("grant ann editor --on 12345")
    assert granted.out == "300:12345/ann\n"
    assert "1 existing record does not name the group 201:0.NA/12345" in granted.err
    assert "Nothing changed" in here.ok("grant 12345/ann editor --on 12345").err
    assert "To add it: perseid grant 300:12345/ann editor --on 12345 --existing" in granted.err
    assert here("add 12345/x DESC=x --as 300:12345/ann").code == 4
    started = here.ok("grant 12345/ann editor --on 12345 --existing --yes")
    assert "changed  1" in started.out
    here.ok("add 12345/x DESC=x --as 300:12345/ann")
    here.ok("create 12345/y --url https://example.org/")
    here.ok("add 12345/y DESC=x --as 300:12345/ann")
    assert here.lines("access 12345") == [
        "owner   300:0.NA/12345  active  value 100, group 200:0.NA/12345",
        "editor  300:12345/ann  active  value 101, group 201:0.NA/12345",
    ]
    assert here.lines("user list 12345")[0] == "active    300:12345/ann  ann@example.org"
    here.ok("grant hdl:12345/ann reader --on hdl:12345/x")
    revoked = here.ok("revoke 12345/ann editor --on 12345/x")
    assert "Still has: editor  300:12345/ann  active  value 101, group 201:0.NA/12345" in revoked.err
    assert "Nothing would change" in here.ok("revoke 12345/ann --on 12345/x --dry-run").err
    assert "Would change: 0.NA/12345" in here.ok("revoke 12345/ann --on 12345 --dry-run").err
    here.ok("token create --scope read --namespace 12345 --as 300:0.NA/12345")
    disabled = here.ok("user disable 12345/ann --note 'left in spring'")
    assert disabled.out == "12345/ann\n"
    assert "Removed keys and groups: 300:12345/ann. Revoked tokens: 0." in disabled.err
    assert "Nothing changed" in here.ok("user disable 12345/ann").err
    assert "editor  300:12345/ann  disabled" in here.ok("access 12345").out
    assert here.lines("user list 12345")[0] == "disabled  12345/ann  ann@example.org"
    for words in ("log", "history 12345/ann --json", "access 12345 --json", "user list --json"):
        assert secret not in here.ok(words).shown


def test_key_of_a_file_is_stored_as_handle_key(here: Site, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(RSA_KEY.public.to_text())
    (tmp_path / "private.json").write_text(RSA_KEY.to_text())
    added = here.ok(f"user add 12345 bob --key {tmp_path / 'key.json'} --json")
    assert json.loads(added.out) == {"handle": "12345/bob", "identity": "300:12345/bob", "seq": added.json["seq"]}
    assert "HS_PUBKEY" in here.ok("resolve 12345/bob").out
    here.ok(f"create 12345/carl --value 300:HS_PUBKEY=@{tmp_path / 'key.json'}")
    stored = [here.ok(f"resolve 12345/{name} --json").json["values"][-1]["data"] for name in ("bob", "carl")]
    assert stored[0] == stored[1]
    assert here(f"add 12345/carl HS_PUBKEY=@{tmp_path / 'private.json'}").code == 2
    refused = here(f"user add 12345 eve --key {tmp_path / 'private.json'}")
    assert (refused.code, "private key" in refused.err) == (2, True)
    assert here(f"user add 12345 eve --secret --key {tmp_path / 'key.json'}").code == 2
    assert here(f"user reset 12345/bob --key {tmp_path / 'none'}").code != 0


def test_long_lines_about_users_are_broken_before_the_person(here: Site) -> None:
    for length, gap in ((40, "  "), (41, "\n" + " " * 10)):
        address = f"{'z' * length}@example.org"
        here.ok(f"user add 12345 zoe-{length} --email {address}")
        found = f"active    300:12345/zoe-{length}{gap}{address}\n"
        assert found in here.ok("user list 12345").out
        assert max(map(len, found.splitlines())) <= 80


REFUSALS = (
    ("grant 12345/ann editor --on 12345/x --existing", 2, "requires a prefix"),
    ("grant 12345/ann boss --on 12345", 2, "perseid: 'boss' is neither a role nor a permission"),
    ("grant 12345/ann boss --on 12345", 2, "owner, editor, minter, reader"),
    (f"grant 12345/ann {'editor ' * 21}--on 12345", 2, "21 roles and permissions are named. At most 20 are allowed"),
    ("grant 12345/none editor --on 12345", 4, "does not exist\n"),
    ("grant 12345/none editor --on 12345", 4, "or add the user: perseid user add 12345 none\n"),
    ("grant 12345/anne editor --on 12345", 4, "handle 12345/anne does not exist; did you mean 12345/ann?"),
    ("grant amn editor --on 12345/x", 4, "handle 12345/amn does not exist; did you mean 12345/ann?"),
    ("user add 12345 ann", 4, "or give the user a new key: perseid user reset 12345/ann\n"),
    ("user add 12345 x", 4, "Handle 12345/x already exists\nChoose another handle\n"),
    ("grant 12345/ann add_value --on 12345", 2, "Grant a role on the prefix"),
    ("grant 12345/ann editor --on 99", 3, "does not host"),
    ("user reset 12345/none", 3, "does not exist"),
    ("revoke 300:0.NA/12345 --on 12345", 4, "would have no administrator"),
    ("access 12345/none", 3, "does not exist"),
    ("user add 12345 ann --as 300:12345/ann", 4, "cannot add users"),
    ("user add 12345 ann --as 300:12345/ann", 4, "To see who has it: perseid access 12345\n"),
    ("set 12345/x EMAIL=x --as 300:12345/ann", 4, "To see who has it: perseid access 12345/x\n"),
    ("grant 12345/anne reader --on 12345/own --as 300:12345/ann", 4, "handle 12345/anne does not exist\n"),
)


def test_refusals_name_problem_and_fix(here: Site) -> None:
    here.ok("user add 12345 ann")
    for name in ("x", "own"):
        here.ok(f"create 12345/{name} --url https://example.org/")
    here.ok("grant ann owner --on 12345/own")
    for words, code, text in REFUSALS:
        done = here(words)
        assert done.code == code, done
        assert text in done.err, done


def test_secret_of_a_user_goes_to_a_file_that_only_its_owner_can_read(here: Site, tmp_path: Path) -> None:
    path = tmp_path / "ann"
    added = here.ok(f"user add 12345 ann -o {path}")
    assert (path.stat().st_mode & 0o777, len(path.read_text())) == (0o600, 44)
    assert path.read_text().strip() not in added.out + added.err
    assert f"The secret is in {path}: give it" in added.err
    assert "already exists; use another file name" in here(f"user reset 12345/ann -o {path}").err
    assert "without --json" in here(f"user reset 12345/ann -o {tmp_path}/new --json").err
    failed = here(f"user add 12345 ann -o {tmp_path}/new")
    assert (failed.code, (tmp_path / "new").exists()) == (4, False)
    here.ok(f"user reset 12345/ann -o {tmp_path}/new")
    assert (tmp_path / "new").read_text() != path.read_text()

"""`edit`: a record in an editor, with the differences before they are saved."""

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.cli.installation import Site, refused, site
from tests.cli.program import PERSEID, Done


@pytest.fixture
def here(tmp_path: Path) -> Site:
    installation = site(tmp_path, "--prefix", "12345")
    installation.ok("create 12345/x --url https://example.org/a --value 5:EMAIL!private=a@example.org")
    return installation


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def edit(here: Site, script: str, words: str = "", stdin: bytes = b"") -> Done:
    """Edit 12345/x with a shell script, whose first argument is the file."""
    return here(f"edit 12345/x {words}", stdin=stdin, environ={"EDITOR": f"sh -c {shlex.quote(script)} sh"})


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_output", "edit"):
        monkeypatch.setattr(f"perseid.cli.{module}.is_terminal", lambda _: True)


def test_differences_are_shown_and_saved(here: Site, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    done = edit(here, f'stat -c "%a %n" "$1" > {noted}; sed -i s,org/a,org/b, "$1"', "--yes --note corrected")
    assert (done.code, done.out) == (0, "12345/x\n")
    assert done.err.splitlines() == ["    - 1  URL  https://example.org/a", "    + 1  URL  https://example.org/b"]
    version, before = here.ok("history 12345/x --json").json["versions"]
    assert version["note"] == "corrected"
    assert [value["index"] for value in version["values"]] == [1, 5, 100]
    assert version["values"][1:] == before["values"][1:]
    mode, path = noted.read_text().split()
    assert mode == "600"
    assert not Path(path).parent.exists()


def test_only_the_ttl_is_changed(here: Site) -> None:
    done = edit(here, 'sed -i "0,/86400/s/86400/60/" "$1"', "--yes --json")
    assert json.loads(done.out)["handle"] == "12345/x"
    assert "+ 1  URL  https://example.org/a  (TTL 60, permissions 1110)" in done.err


def test_misspelled_type_is_pointed_out(here: Site) -> None:
    done = edit(here, 'sed -i s/EMAIL/EMIAL/ "$1"', "--yes")
    assert "has the type 'EMIAL', which clients may not know. Use EMAIL, if you mean that" in done.err


def test_value_that_nobody_can_read_stays(here: Site, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    whole = here.ok("resolve 12345/x --private --json").json
    hidden = {"index": 9, "type": "NOTE", "data": "sealed", "permissions": "0000"}
    record.write_text(json.dumps({"values": [*whole["values"], hidden]}))
    here.ok(f"set 12345/x --from {record}")
    assert "sealed" not in here.ok("resolve 12345/x --private").out
    assert edit(here, 'sed -i s,org/a,org/b, "$1"', "--yes").code == 0
    refused(here("add 12345/x 9:DESC=text"), "Index conflict for 9")


def test_unchanged_record_is_not_saved(here: Site) -> None:
    done = edit(here, 'cp "$1" "$1~"', "--yes")
    assert (done.code, done.out, done.err) == (0, "12345/x\n", "Nothing was changed\n")
    assert len(here.ok("history 12345/x --json").json["versions"]) == 1


def test_refused_text_is_kept_without_a_terminal(here: Site, temporary: Path) -> None:
    done = edit(here, 'echo broken > "$1"', "--yes")
    assert done.code == 1
    (kept,) = temporary.iterdir()
    assert f"Nothing was saved. Your text is in {kept}\n" in done.err
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("broken\n", 0o600)


def test_difference_is_shown_without_a_terminal(here: Site, temporary: Path) -> None:
    done = edit(here, 'sed -i s,org/a,org/b, "$1"')
    assert (done.code, done.out) == (1, "")
    assert "+ 1  URL  https://example.org/b\n" in done.err
    assert "12345/x will change. Confirmation required, but there is no terminal\nTo confirm: --yes\n" in done.err
    (kept,) = temporary.iterdir()
    assert f"Your text is in {kept}\n" in done.err


def test_record_that_changed_meanwhile_is_refused(here: Site, temporary: Path) -> None:
    done = edit(here, f'sed -i s,org/a,org/b, "$1"; {PERSEID} set 12345/x URL=c -d {here.directory}', "--yes")
    assert done.code == 1
    assert "has changed since you read it" in done.err
    assert here.lines("resolve 12345/x --type URL") == ["1  URL  c"]
    (kept,) = temporary.iterdir()
    assert "https://example.org/b" in kept.read_text()


@pytest.mark.usefixtures("terminal")
def test_confirmation_and_another_attempt(here: Site, temporary: Path) -> None:
    done = edit(here, 'sed -i s,org/a,org/b, "$1"', stdin=b"n\n")
    assert (done.code, done.out) == (1, "")
    assert "12345/x will change. Continue? [y/N]" in done.err
    fix = 'grep -q broken "$1" && sed -i "s/broken//;s,org/a,org/b," "$1" || echo broken >> "$1"'
    done = edit(here, fix, stdin=b"y\ny\n")
    assert (done.code, done.out) == (0, "12345/x\n")
    assert "Edit again? [Y/n]" in done.err
    done = edit(here, 'sed -i s,12345/x,12345/y, "$1"', stdin=b"n\n")
    assert done.code == 1
    assert "The handle cannot be changed to '12345/y'" in done.err
    assert list(temporary.iterdir()) == [], "given up"


@pytest.mark.parametrize(
    ("environ", "words", "message", "advice"),
    [
        ({"EDITOR": "", "VISUAL": ""}, "--yes", "No editor is set", "export EDITOR=nano"),
        ({"EDITOR": " ", "VISUAL": " \t"}, "--yes", "No editor is set", "export EDITOR=nano"),
        ({"EDITOR": "'"}, "--yes", 'EDITOR is not a command: "\'"', "export EDITOR=nano"),
        ({"EDITOR": "true", "VISUAL": "x 'y"}, "--yes", 'VISUAL is not a command: "x \'y"', "export EDITOR=nano"),
        ({"EDITOR": "no-such-editor"}, "--yes", "Cannot run the editor 'no-such-editor'", "Set EDITOR"),
        ({"EDITOR": "false"}, "--yes", "The editor 'false' failed with exit code 1", ""),
        ({"EDITOR": "sh -c 'echo x > $0'"}, "--yes", "JSON", ""),
    ],
)
def test_editor_or_terminal_is_missing(
    here: Site, environ: dict[str, str], words: str, message: str, advice: str
) -> None:
    refused(here(f"edit 12345/x {words}", environ=environ), message, advice, code=1)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("text", ["", "  "])
def test_default_editor_is_vi(here: Site, tmp_path: Path, text: str) -> None:
    vi = tmp_path / "vi"
    vi.write_text('#!/bin/sh\nexec sed -i s,org/a,org/b, "$1"\n')
    vi.chmod(0o700)
    environ = {"EDITOR": text, "VISUAL": text, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = here("edit 12345/x --yes", environ=environ)
    assert (done.code, done.out) == (0, "12345/x\n"), done
    assert here.lines("resolve 12345/x --type URL") == ["1  URL  https://example.org/b"]


def test_handles_without_a_record_cannot_be_edited(here: Site) -> None:
    here.ok("reserve 12345/r")
    environ = {"EDITOR": "true"}
    refused(here("edit 12345/none --yes", environ=environ), "does not exist", code=3)
    refused(here("edit 12345/r --yes", environ=environ), "is reserved and does not resolve yet")
    refused(here("edit 12345/x --yes --as 300:12345/nobody", environ=environ), "cannot read")

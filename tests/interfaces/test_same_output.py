"""A command prints the same on an installation and on a server: output, errors and exit code.

The commands run in order on two copies of one installation: on the first as usual, on the second through the HTTP API
of a server in this process. `test_native_output` has the commands over the native protocol.
"""

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from perseid.cli._common_options import REMOTE
from perseid.client.api import Client, make_options
from perseid.ledger.merkle import Signer
from perseid.registry.queries.prove import ensure_checkpoint
from tests.cli.installation import call
from tests.cli.program import Done
from tests.client.in_process import URL, InProcess
from tests.server.http.v1.interfaces import BothInterfaces, both_interfaces
from tests.server.installations import ADMINISTRATOR, SECRET

COMMANDS: Final = (
    # Resolution
    "resolve 12345/n0",
    "resolve hdl:12345/N0 --type URL --index 100",
    "resolve 12345/n0 --at 20",
    "resolve 12345/private --private",
    "resolve 12345/n0 --authority",
    "resolve 12345/none",
    "resolve 12345/n0 12345/none 12345/n1",
    # Records
    "create 12345/made --url https://example.org/made --value 5:EMAIL!private=a@example.org --note first",
    "create 12345/made --url https://example.org/other",
    "create 12345/alias --value HS_ALIAS=12345/none",
    "set 12345/alias HS_ALIAS=12345/nowhere --json",
    "create 12345/made --url https://example.org/other --overwrite",
    "add 12345/made DESC=text HS_ADMIN=300:0.NA/12345:add_value",
    "add 12345/made 1:DESC=text",
    "set 12345/made URL=https://example.org/set DESC!private=text",
    "set 12345/made DESC=text --if-version 1",
    "set 12345/none DESC=text",
    "remove 12345/made 2",
    "remove 12345/made 77",
    "delete 12345/made",
    "delete 12345/made",
    "create 12345/made --url https://example.org/again",
    "create 12345/made --url https://example.org/again --reuse-deleted",
    "list 12345 --state published",
    "list 12345 --deleted",
    # Search
    "find --host example.org",
    "find --url https://example.org/1*",
    "find --url *example*",
    "find --prefix 12345 --owner hdl:0.NA/12345",
    "find --type EMAIL",
    "find --words example --prefix 12345",
    "find --words !",
    "find --host none.example",
    "find --changed-since nonsense",
    # History
    "history 12345/made",
    "history hdl:12345/N0 --limit 1",
    "history 12345/none",
    "diff 12345/made 1",
    "diff 12345/made 60 62",
    "diff 12345/n0 20 20",
    "diff 12345/made 62 60",
    "diff 12345/n0 nonsense",
    "log --since 20",
    "log --since 2999-01-01",
    # Statistics
    "statistics --from 2026-11-01 --to 2026-11-03",
    "statistics 12345 --by namespace --from 2026-11-01T10:00:00Z --csv",
    "statistics 12345 --by hour --from nonsense",
    "statistics --from 2026-11-03 --to 2026-11-01",
    "statistics 54321",
    "statistics 12345/x",
    "statistics 12345 --wanted",
    "statistics --wanted",
    # Identifiers
    "unpublish 12345/n1 --keep-history --note embargo",
    "unpublish 12345/n1",
    "publish hdl:12345/n1",
    "publish 12345/none",
    "tombstone 12345/n2 --reason gone --replaced-by 12345/n1",
    "tombstone 12345/n2 --undo",
    "tombstone 12345/n2 --undo",
    "transfer 12345/n3 --to 300:12345/ann",
    "transfer 12345/n3 --to 300:0.NA/12345",
    "transfer 12345/n4 --to 300:12345/missing",
    "link version 12345/n5 12345/n6",
    "link version 12345/n7 12345/n6",
    "link metadata 12345/n8 12345/n9",
    # Citations and codes
    "cite 12345/n0",
    "cite hdl:12345/N0 --style bibtex --at 20",
    "cite 12345/n0 --style http --resolver https://hdl.example.org/x",
    "cite 12345/none",
    "qr 12345/n0 -o FOLDER/code.svg",
    "qr 12345/N0 -o FOLDER/code.png --scale 2 --resolver https://hdl.example.org/x",
    "reserve 12345/printed",
    "qr 12345/Printed -o FOLDER/code.svg",
    "qr 12345/none -o FOLDER/code.svg",
    # Explanations
    "explain create 12345/fresh --url https://example.org/",
    "explain create 12345/n0",
    "explain create 54321/n0",
    "explain set 12345/n0 URL=https://example.org/",
    "explain set 12345/n0 --from -",
    "explain set 12345/none URL=https://example.org/",
    "explain add 12345/n0 1:DESC=text",
    "explain remove 12345/n0 77",
    "explain delete 12345/n0",
    "explain mint 12345 --url https://example.org/",
    "explain publish 12345/n0",
    "explain unpublish 12345/n0",
    "explain tombstone 12345/n0 --undo",
    "explain tombstone 12345/n0",
    "explain transfer 12345/n0 --to 300:12345/missing",
    # Editing
    "edit 12345/n0 --yes --note corrected",
    "edit 12345/private --yes",
    "edit 12345/none --yes",
    # Jobs
    "rewrite --url https://example.org/1* --to https://new.example/1* --dry-run",
    "rewrite --url https://example.org/1* --to https://new.example/1* --yes --note moved",
    "rewrite --url https://example.org/1* --to https://new.example/1* --yes",
    "rewrite --to https://new.example/",
    "rewrite --host example.org --owner 12345/ann --to https://new.example/* --dry-run",
    "undo last --dry-run",
    "tombstone 12345/n1 --reason gone",
    "undo last --yes",
    "jobs list",
    "jobs show",
    "jobs show 0123456789abcdef",
    "jobs resume",
    "jobs cancel last",
    "transfer 12345/n4* --to 300:12345/ann --yes",
    "undo last --yes",
    "jobs undo last --yes",
    "transfer 54321 --to 300:12345/ann --yes",
    # Minting
    "mint 12345 --url https://example.org/new --owner 300:12345/ann --unpublished",
    "mint 12345 --count 3 --value EMAIL!private=keeper@example.org --value 7:URL=x",
    "mint 12345/map- --with-metadata --metadata-url https://example.org/about",
    "mint 12345 --from -",
    "mint 12345 --from - --allow-type COLOR",
    "mint 12345 --count 2 --reserve",
    "reserve 12345 --count 2",
    "reserve 12345/r1 12345/r2",
    "reserve 12345/r1",
    # Namespaces and types
    "namespace add 99 --purpose Maps",
    "namespace add 99",
    "namespace add 98 --profile exact --creator hdl:12345/n1 --case insensitive --administrator 300:12345/ann",
    "namespace add 97 --administrator 300:12345/missing",
    "namespace derive 12345 7",
    "namespace derive 54321 7",
    "namespace list",
    "namespace show 98",
    "namespace show 97",
    "namespace policy 99",
    "namespace policy 99 --file -",
    "namespace policy 99 --file -",
    "namespace remove 99",
    "namespace remove 98 --retire",
    "namespace list",
    "type add 12345/SCALE --definition Scale --pattern 1:[0-9]+ --example 1:25000",
    "type add 12345/SCALE --definition Scale",
    "type add 12345/WRONG --definition Scale --pattern [",
    "type add 12345/SHEET --definition Sheet --schema -",
    "type list",
    "type list 12345",
    "type show 12345/SCALE",
    "type show 12345/SHEET",
    "type show 102.100.TYPE/CREATOR",
    # Users and rights
    "user add 12345 zoe --email zoe@example.org",
    "user add 12345 zoe",
    "user list 12345",
    "grant 12345/zoe editor --on 12345 --dry-run",
    "grant 12345/zoe editor --on 12345",
    "grant hdl:12345/zoe editor --on 12345 --existing --yes",
    "grant 12345/zoe reader --on hdl:12345/n5",
    "grant 12345/zoe boss --on 12345",
    f"grant 12345/zoe {'reader ' * 21}--on 12345",
    f"revoke 12345/zoe {'reader ' * 21}--on 12345",
    "grant 12345/zoe minter --on 12345/n5",
    "grant 300:12345 minter --on 12345",
    "grant 300:12345/none owner --on 12345/n5",
    "access 12345",
    "access 12345/n5",
    "access 12345/none",
    "revoke 12345/zoe editor --on 12345",
    "revoke 12345/zoe minter --on 12345/n5",
    "revoke 12345/zoe --on 12345/n5",
    "user reset 12345/zoe",
    "user reset 12345/n5",
    "user disable 12345/zoe",
    "user disable 12345/zoe",
    # Tokens
    "token create --scope read,mint --namespace 12345 --label catalog",
    "token create --scope admin --namespace 12345",
    "token list",
    "token show last",
    "token show aaaaaaaa",
    "token revoke last",
    "token list --all",
    "token revoke --issuer 300:12345/ann",
)

INPUT: Final = {
    "explain set 12345/n0 --from -": b'[{"index": 2, "type": "URL", "data": "https://example.org/2"}]',
    "namespace policy 99 --file -": b'purpose = "Charts"\nwho_may_list = "public"\n',
    "mint 12345 --from -": b"URL,COLOUR,DESK\nhttps://example.org/1,red,x\n",
    "mint 12345 --from - --allow-type COLOR": b"URL,COLOR\nhttps://example.org/1,red\nhttps://example.org/2,\n",
    "type add 12345/SHEET --definition Sheet --schema -": b'{"type": "integer", "minimum": 1}',
}
"""The standard input of commands."""

VARYING: Final = re.compile(
    r"""
    perseid_(?P<token>[a-z2-7]{8})[0-9A-Za-z]{49}
    | \b[0-9a-f]{16}\b  # jobs
    | (?:(?<=secret[ ]{4})|(?<="secret":"))[\w-]{43}  # of a new user
    | [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}  # minted suffixes
    | "total":(?:\d+|null)  # only a server counts the handles of a transfer
    | (?<=\()(?:cli|http)(?=\)) | (?<="interface":")(?:cli|http)(?=")
    | (?<=--after[ ])\S+ | (?<="next":")[^"]+  # cursors
    | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z  # times
    """,
    re.VERBOSE,
)
"""What differs between two installations."""


class Copy:
    """A copy of the installation. What differs is replaced in what it prints."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def normalize(self, done: Done) -> tuple[int, str, str]:
        self._ids |= {match["token"] for match in VARYING.finditer(done.out) if match["token"]}
        ids = re.compile("|".join(self._ids) or "(?!)")
        out, err = (ids.sub("…", VARYING.sub("…", text)) for text in (done.out, done.err))
        return done.code, out, err


def run_remotely(both: BothInterfaces, words: str, *options: str, stdin: bytes = b"") -> Done:
    """Run a command on the server."""

    def connect() -> Client:
        connection = make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET})
        return Client(connection, InProcess(both.server))

    token = REMOTE.set(connect)
    try:
        return call(*words.split(), *options, stdin=stdin)
    finally:
        REMOTE.reset(token)


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_commands_print_the_same_on_a_server(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/keeper@/editor@/")
    monkeypatch.setenv("PERSEID_HTTP_PUBLIC_URL", URL)  # as of the server
    local, remote = Copy(), Copy()
    with both_interfaces() as both:
        for command in COMMANDS:
            stdin, words = INPUT.get(command, b""), command.replace("FOLDER", str(tmp_path))
            here = both.site(words, *options, "--as", ADMINISTRATOR, stdin=stdin)
            there = run_remotely(both, words, *options, stdin=stdin)
            assert local.normalize(here) == remote.normalize(there), words


def test_reserved_identifiers_and_records_of_others_are_not_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "false")
    with both_interfaces() as both:
        here, there = (
            (run("reserve 12345/r"), run("edit 12345/r"))[1] for run in (both.site, partial(run_remotely, both))
        )
        assert (here.code, here.err) == (there.code, there.err)
        assert "is reserved" in there.err


def test_proofs_of_a_server_are_files_that_verify(tmp_path: Path) -> None:
    with both_interfaces() as both:
        log = both.server.registry.ledger.log
        with log.open_reader() as reader:
            size = reader.size
        keys = both.site.directory.parent.parent / "api" / "installation" / "keys"
        ensure_checkpoint(log, Signer.from_bytes((keys / "checkpoint.key").read_bytes()), size, time.sleep)
        for name, run in (("here", both.site), ("there", partial(run_remotely, both))):
            path = tmp_path / name
            done = run(f"prove 12345/n0 -o {path} --json")
            assert done.code == 0, done.err
            made = json.loads(done.out)
            assert (made["handle"], made["file"]) == ("12345/n0", str(path))
            assert call("verify", str(path), "--key", made["key"]).code == 0
            printed = run("prove 12345/n0")
            assert json.loads(printed.out)["handle"] == "12345/n0"
        assert "does not exist" in run_remotely(both, "prove 12345/none").err


def test_commands_that_need_the_installation_refuse_a_server() -> None:
    token = REMOTE.set(lambda: pytest.fail("it must not connect"))
    try:
        done = call("redact", "12345/n0", "1", "--seq", "1", "--reason", "x")
    finally:
        REMOTE.reset(token)
    assert done.code == 1
    assert "works on a local installation only" in done.err

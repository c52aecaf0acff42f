"""Commands over the native protocol: the same output as on an installation, and a server whose key is pinned."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from perseid.cli import remote as command
from perseid.client.remotes import fetch_key, load_remote
from perseid.records.encoding import to_base64
from tests.cli.installation import Site, call, refused
from tests.cli.program import Done
from tests.interfaces.test_same_output import VARYING
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.running import Serving, serving
from tests.test_documentation import GUIDE_OF_SERVERS, agrees, blocks, session
from tests.wire.key_material import SERVER_KEY

NATIVE_COMMANDS: Final = (
    "resolve 12345/n0",
    "resolve hdl:12345/n0 --type URL --index 100",
    "resolve 12345/private --private",
    "resolve 12345/n0 --type NONE",
    "resolve 12345/none",
    "resolve 54321/none",
    "resolve 12345/n0 12345/none 12345/n1",
    "create 12345/made --url https://example.org/made --value 5:EMAIL!private=a@example.org",
    "create 12345/made --url https://example.org/other",
    "resolve 12345/made --private",
    "create 12345/made --url https://example.org/other --overwrite",
    "create 12345/new --value HS_ADMIN=300:12345/ann --overwrite",
    "create 54321/made --url https://example.org/made",
    "resolve 12345/made --private",
    "add 12345/made DESC=text HS_ADMIN=300:0.NA/12345:add_value",
    "add 12345/made 1:DESC=text",
    "set 12345/made URL=https://example.org/set DESC!private=text",
    "set 12345/made HS_ADMIN=300:0.NA/12345",
    "set 12345/made 1:URL=https://example.org/again",
    "set 12345/none DESC=text",
    "resolve 12345/made --private",
    "set 12345/made --from -",
    "resolve 12345/made --private",
    "remove 12345/made 2",
    "remove 12345/made 77",
    "delete 12345/made",
    "delete 12345/made",
    "create 12345/made --url https://example.org/again",
    "list 12345",
    "list 54321",
)

INPUT_NATIVELY: Final = {"set 12345/made --from -": b'[{"index": 2, "type": "URL", "data": "https://example.org/2"}]'}

UNKNOWN_NATIVELY: Final = re.compile(r"""(?<="state":")\w+ | (?<="seq":)\d+ | ,"changed":"[^"]+" """, re.VERBOSE)
"""What the native protocol does not tell."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory, PERSEID_SERVER_LISTING_ALLOWED="true") as running:
        yield running


class User:
    """A user with a secret, who has saved no server yet."""

    def __init__(self, server: Serving, folder: Path) -> None:
        self.server = ":".join(map(str, server.native))
        self.environ = {"XDG_CONFIG_HOME": str(folder)}
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.credentials = ("--as", ADMINISTRATOR, "--secret-file", str(secret))
        self.fingerprint = fetch_key(server.native).fingerprint

    def __call__(self, *words: str, stdin: bytes = b"") -> Done:
        return call(*words, stdin=stdin, environ=self.environ)

    def login(self, *options: str) -> Done:
        return self("login", self.server, "--name", "work", *self.credentials, *options)


@pytest.fixture
def user(server: Serving, tmp_path: Path) -> User:
    return User(server, tmp_path)


def test_commands_print_the_same_over_the_native_protocol(user: User, tmp_path: Path) -> None:
    site = Site(copy_to(tmp_path))
    assert user.login("--fingerprint", user.fingerprint).code == 0
    for options, where in (((), ("--remote", "work")), (("--json",), ("--server", user.server, *user.credentials))):
        for words in NATIVE_COMMANDS:
            parts = [*words.replace("made", f"made{len(options)}").split(), *options]
            stdin = INPUT_NATIVELY.get(words, b"")
            here = site("", *parts, "--as", ADMINISTRATOR, stdin=stdin)
            there = user(*parts, *where, stdin=stdin)
            assert natively(here) == natively(there), words


def natively(done: Done) -> tuple[int, str, list[str]]:
    """What a command prints, without what the native protocol does not tell: it has no advice and suggestions."""
    out = UNKNOWN_NATIVELY.sub("", VARYING.sub("…", done.out))
    problems = [line for line in done.err.splitlines() if line.startswith(("perseid: ", "{"))]
    return done.code, out, [json.loads(line)["detail"] if line.startswith("{") else line for line in problems]


def test_login_shows_the_key_and_pins_it_if_it_is_confirmed(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = user.fingerprint.rpartition(" ")[2]
    refused(user.login(), user.fingerprint, f"--fingerprint {digest}", code=1)
    refused(user.login("--fingerprint", f"SHA256:{'A' * 43}"), "not the expected one", "perseid key list", code=1)
    asked: list[str] = []
    monkeypatch.setattr(command, "is_terminal", lambda _: True)
    monkeypatch.setattr(command, "confirm", asked.append)
    assert user.login("--json").json == {"remote": "work", "server": user.server, "identity": ADMINISTRATOR}
    assert asked == [f"{user.server} has a key that is not known yet: {user.fingerprint}"]
    assert user.login().code == 0
    assert len(asked) == 1  # the same key needs no question
    saved = load_remote("work", user.environ)
    assert (saved.server_key != "", saved.fingerprint) == (True, "")
    assert user("whoami", "--json", "--remote", "work").json["identity"] == ADMINISTRATOR


def test_nothing_is_sent_to_a_server_with_another_key(user: User) -> None:
    user.login("--fingerprint", user.fingerprint)
    path = Path(user.environ["XDG_CONFIG_HOME"]) / "perseid" / "remotes" / "work.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"server_key": to_base64(SERVER_KEY.public.to_bytes())}))
    for where in (("--remote", "work"), ("--server", user.server, *user.credentials), ("--server", user.server)):
        refused(user("create", "12345/other-key", *where), "does not have the expected key", code=1)
    path.unlink()
    refused(user("resolve", "12345/n0", "--server", user.server, *user.credentials), "is not known", code=1)
    done = user("resolve", "12345/n0", "--server", user.server, "--fingerprint", f"SHA256:{'A' * 43}")
    refused(done, "not the expected one", code=1)
    refused(user("resolve", "12345/other-key", "--server", user.server), "does not exist", code=3)


def test_anonymous_users_read_and_learn_what_needs_credentials(user: User) -> None:
    assert user("whoami", "--server", user.server, "--json").json == {"server": user.server, "identity": "anonymous"}
    for words in ("list 12345", "create 12345/anonymous", "resolve 12345/private --private"):
        done = user(*words.split(), "--server", user.server)
        refused(done, "Authentication required", "--as INDEX:HANDLE with --secret-file FILE", "perseid login SERVER")
    problem = json.loads(user("list", "12345", "--server", user.server, "--json").err)
    assert (problem["type"], problem["code"]) == ("/docs/problems#authentication-required", 402)


def test_wrong_secret_is_not_saved(user: User, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("wrong")
    refused(user.login("--fingerprint", user.fingerprint), "Check the identity, as INDEX:HANDLE")
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.parametrize(
    "words",
    [
        "publish 12345/n0",
        "find --host example.org",
        "mint 12345",
        "history 12345/n0",
        "namespace list",
        "resolve 12345/n0 --at 1",
        "resolve 12345/n0 --authority",
        "create 12345/x --note x",
        "create 12345/x --reuse-deleted",
        "set 12345/n0 URL=x --if-version 1",
        "list 12345 --deleted",
    ],
)
def test_what_the_protocol_cannot_do_is_refused_with_advice(user: User, words: str) -> None:
    done = user(*words.split(), "--server", user.server)
    refused(done, "The native protocol does not support", "--server https://HOST", code=1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("resolve 12345/n0 --server 127.0.0.1:x", "is not a server"),
        ("resolve 12345/n0 --server a@b", "must not contain credentials"),
        ("resolve 12345/n0 --server 127.0.0.1/x", "is not a server"),
        ("resolve 12345/n0 --server 127.0.0.1 --token-file x", "name the server as https://127.0.0.1"),
        ("login 127.0.0.1:1", "Credentials required"),
    ],
)
def test_invalid_options_are_named(user: User, words: str, problem: str) -> None:
    done = user(*words.split())
    assert done.code in (1, 2)
    assert problem in done.err


def test_server_that_does_not_answer_is_unreachable(user: User) -> None:
    refused(user("resolve", "12345/n0", "--server", "127.0.0.1:1"), "Cannot connect to 127.0.0.1:1", code=5)


def test_guide_prints_what_it_shows(server: Serving, directory: Path, user: User, tmp_path: Path) -> None:
    """The commands of the guide, with the addresses and the key of this server, whose HTTP needs no certificate."""
    plain, secure = (f"{scheme}:{server.http[1]}" for scheme in ("http://127.0.0.1", "https://localhost"))
    words = "token create --scope read,mint,create,update --all-namespaces --json --server"
    created = user(*words.split(), plain, *user.credentials).json["token"]
    for name, text in (("token.txt", created), ("secret.txt", SECRET)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "https.pem").write_bytes((directory / "keys" / "https.pem").read_bytes())
    digest = user.fingerprint.rpartition(" ")[2]
    for block in blocks(GUIDE_OF_SERVERS):
        address = secure if "https.pem" in block.text else plain
        for typed, expected in session(block):
            if typed.startswith("export "):
                name, _, value = typed.removeprefix("export ").partition("=")
                user.environ[name] = value
                continue
            known = {"https://id.example.org": address, "id.example.org:2641": user.server}
            known |= dict.fromkeys(re.findall("SHA256:.{43}", typed), digest)
            for shown, real in known.items():
                typed = typed.replace(shown, real)  # noqa: PLW2901 - the real one
            with contextlib.chdir(tmp_path):
                printed = user(*typed.split()[1:]).shown
            for real, shown in ((plain, "https://id.example.org"), (secure, "https://id.example.org")):
                printed = printed.replace(real, shown)
            printed = printed.replace(user.server, "id.example.org:2641")
            texts = [re.sub("SHA256:.{43}| +", " ", text) for text in (printed, expected)]
            assert agrees(*texts), f"{block}: $ {typed}\n{printed}"

"""`login`, `logout` and `whoami`, and the options that select a server."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.bulk.export import export_parts, open_writer
from perseid.cli import remote as command
from perseid.cli._common_options import REMOTE
from perseid.client import remotes
from perseid.client.api import Client, make_options
from perseid.client.api_exchange import Failure, HttpRequest, NoResponse
from perseid.client.remotes import Remote
from perseid.records.record import ValueRef
from perseid.registry.identity import KeyIdentity, Proof
from perseid.registry.queries.export import Selection
from perseid.registry.queries.find import Search
from perseid.schema.exports import ExportFormat
from tests.cli.installation import call, refused
from tests.cli.program import Done
from tests.client.in_process import InProcess
from tests.server.http.contexts import Harness, harness
from tests.server.installations import ADMINISTRATOR, SECRET

SERVER = "https://hdl.example.org"
FINGERPRINT = "ab" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    with harness() as made:
        yield made


class User:
    """A user with a configuration folder, whose requests reach a server in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"XDG_CONFIG_HOME": str(folder), "PERSEID_REMOTE": ""}
        self.secret = self.write("secret", SECRET)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(f"{text}\n")
        path.chmod(0o600)
        return path

    def __call__(self, words: str, *more: str, stdin: bytes = b"", remote: str = "") -> Done:
        return call(*words.split(), *more, stdin=stdin, environ=self.environ | {"PERSEID_REMOTE": remote})

    def login(self, *options: str) -> Done:
        return self(f"login {SERVER} --as {ADMINISTRATOR}", "--secret-file", str(self.secret), *options)


@pytest.fixture
def user(tmp_path: Path, server: Harness, monkeypatch: pytest.MonkeyPatch) -> User:
    def connect(self: Remote) -> Client:
        options = original(self).options  # it checks them
        return Client(replace(options, fingerprint=""), InProcess(server))

    original = Remote.connect
    monkeypatch.setattr(Remote, "connect", connect)
    monkeypatch.setattr(remotes, "find_untrusted", lambda *_: None)
    return User(tmp_path)


def test_login_saves_a_server_that_commands_use(user: User) -> None:
    done = user.login("--name", "work")
    assert (done.code, done.out.split()) == (0, ["remote", "work", "server", SERVER, "identity", ADMINISTRATOR])
    assert user("whoami --json", "--remote", "work").json == {"server": SERVER, "identity": ADMINISTRATOR}
    assert user("whoami", remote="work").out == user("whoami --remote work").out
    assert user("resolve 12345/none --remote work").code == 3
    assert user("logout work --json").json == {"remote": "work"}
    done = user("whoami --remote work")
    assert (done.code, done.out) == (1, "")
    assert "There is no remote work" in done.err


def test_saved_servers_are_listed_and_damaged_files_can_be_removed(user: User) -> None:
    assert user("whoami --all").out == ""
    assert "perseid login SERVER" in user("whoami --all").err
    user.login("--name", "work")
    remotes.save_remote("b", Remote("id.example.org", server_key="AA=="), user.environ)
    path = remotes.save_remote("damaged", Remote("https://a.example"), user.environ)
    path.write_text("{")
    done = user("whoami --all")
    assert done.out.splitlines() == [
        "b     id.example.org           anonymous",
        f"work  {SERVER}  {ADMINISTRATOR}",
    ]
    assert "damaged.json is not a saved remote" in done.err
    assert "perseid logout damaged" in done.err
    assert SECRET not in user("whoami --all --json").out
    assert user("logout damaged", remote="damaged").err.endswith("Commands still look for it: unset PERSEID_REMOTE\n")
    assert user("whoami --all").err == ""
    refused(user("logout damaged"), "There is no remote damaged; saved remotes: b, work", code=1)


def test_token_identifies_its_issuer(user: User) -> None:
    user.login("--name", "work")
    created = user("token create --scope read --all-namespaces --json --remote work").json
    token_file = user.write("token", created["token"])
    done = user(f"login {SERVER} --json", "--token-file", str(token_file))
    assert done.json == {"remote": "hdl.example.org", "server": SERVER, "identity": ADMINISTRATOR}
    assert created["token"] not in done.out + done.err
    typo = user.write("typo", f"{created['token'][:-1]}~")
    refused(user(f"login {SERVER} --token-file {typo}"), "Invalid token", code=1)
    user(f"token revoke {created['id']} --remote work")
    done = user("whoami", remote="hdl.example.org")
    refused(done, "was revoked", "perseid login SERVER", "perseid token create")
    assert "POST" not in done.err


def test_wrong_credentials_are_not_saved(user: User) -> None:
    wrong = user.write("wrong", "not the secret")
    done = user(f"login {SERVER} --as {ADMINISTRATOR} --secret-file {wrong} --name work")
    assert done.code == 4, done
    assert remotes.list_remotes(user.environ) == []


def test_unknown_certificate_is_shown_confirmed_and_pinned(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "find_untrusted", lambda *_: remotes.UntrustedServer(FINGERPRINT, "for another host"))
    statement = f"The certificate of {SERVER} is not trusted: for another host"
    refused(user.login("--name", "work"), statement, f"--fingerprint {FINGERPRINT}", code=1)
    asked: list[str] = []
    monkeypatch.setattr(command, "is_terminal", lambda _: True)
    monkeypatch.setattr(command, "confirm", asked.append)
    done = user.login("--name", "work")
    assert (done.code, asked) == (0, [statement])
    assert ":".join(["AB"] * 32) in done.err
    assert remotes.load_remote("work", user.environ).fingerprint == FINGERPRINT
    ca_file = str(user.write("ca.pem", ""))
    refused(user.login("--name", "other", "--ca-file", ca_file), statement, f"instead of {ca_file}", code=1)
    assert len(asked) == 1


def test_token_is_typed_without_being_shown(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(user(f"login {SERVER}"), "Credentials required", "--token-file", code=1)
    monkeypatch.setattr(command, "is_terminal", lambda _: True)
    monkeypatch.setattr(command, "getpass", lambda _: "")
    refused(user(f"login {SERVER}"), "Nothing was saved", code=1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("whoami --server https://a.example -d x", "only one of --server, --remote and --directory"),
        ("whoami --server https://a.example --remote b", "only one of --server, --remote and --directory"),
        ("whoami --token-file x", "requires --server"),
        ("whoami --server https://a.example --as 300:1/a", "together with --secret-file or --key-file"),
        ("whoami --remote b --as 300:1/a", "cannot be used with a saved server"),
        ("login ftp://a.example --token-file {token}", "is not the URL of a server"),
        ("login https://a.example --token-file {token} --key-file {token}", "only one of --token-file"),
        ("login https://a.example --token-file {token} --proxy http://u:geheim@b", "must not contain a password"),
        ("login https://a.example --token-file {token} --proxy socks5://u:geheim@b", "is not the URL of a proxy"),
        ("login a.example --as 300:1/a --secret-file {token} --proxy http://b", "is for the HTTP API"),
    ],
)
def test_contradicting_options_are_wrong_usage(words: str, problem: str, user: User) -> None:
    done = user(words.format(token=user.write("token", "x")))
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert "geheim" not in done.err


def test_password_of_a_proxy_is_typed_and_saved(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--name", "work", "--proxy", "http://ann@proxy.example.org:3128")
    refused(user.login(*words), "The password of the proxy is missing", code=1)
    monkeypatch.setattr(command, "is_terminal", lambda _: True)
    monkeypatch.setattr(command, "getpass", lambda _: "a:b@c")
    assert user.login(*words).code == 0
    saved = remotes.load_remote("work", user.environ).proxy
    assert saved == "http://ann:a%3Ab%40c@proxy.example.org:3128"
    assert user.login("--name", "work", "--proxy", "http://proxy.example.org:3128").code == 0


def test_credentials_are_not_sent_over_plain_http(user: User) -> None:
    words = f"whoami --server http://hdl.example.org --as {ADMINISTRATOR} --secret-file {user.secret}"
    refused(user(words), "not sent over plain HTTP", code=1)


def test_whoami_on_an_installation_is_the_system_user(tmp_path: Path) -> None:
    done = call("whoami", "-d", str(tmp_path), "--json")
    assert (done.code, done.json["directory"]) == (0, str(tmp_path))
    assert f"No installation in {tmp_path}" in done.err
    assert done.json["identity"].startswith("local:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--server ftp://127.0.0.1", "'ftp://127.0.0.1' is not the URL of a server. Use https://HOST"),
        (f"--server http://example.invalid --as {ADMINISTRATOR} --secret-file SECRET", "not sent over plain HTTP"),
        (f"--server {SERVER} --as {ADMINISTRATOR} --key-file NONE", "Cannot read"),
    ],
)
def test_server_that_cannot_be_used_is_named(user: User, options: str, message: str) -> None:
    words = options.replace("SECRET", str(user.secret)).replace("NONE", str(user.folder / "none"))
    done = user(f"publish 12345/n0 {words}")
    assert done.code == 1
    assert message in done.err
    assert "Traceback" not in done.err


def test_name_is_checked_before_anything_is_sent(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remote, "connect", lambda _: pytest.fail("it connects"))
    done = user.login("--name", "../evil")
    assert done.code == 2
    assert "'../evil' is not a name of a remote" in done.err


# Servers that are newer, or hostile

CONTROLS = "\x1b]0;title\x07\x9b31m\u202e"
CHECKED = frozenset({"data", "format", "next", "permissions", "state", "style", "timestamp", "ttl", "type"})
"""Members that the client checks, so that a response with other texts is not used."""

READING = (
    "resolve 12345/n0",
    "resolve 12345/none",
    "resolve 12345/n0 --authority",
    "find --host example.org",
    "list 12345",
    "history 12345/n0",
    "log --since 50",
    "cite 12345/n0",
    "explain create 12345/n0",
    "namespace list",
    "namespace show 12345",
    "access 12345",
    "user list",
    "create 12345/n0 --url https://example.org/",
    "set 12345/n0 DESC=text",
    "mint 12345",
)


class Changing(InProcess):
    """Changes the JSON of every response."""

    def __init__(self, server: Harness, change: Callable[[Any, str], Any]) -> None:
        super().__init__(server)
        self._change = change

    def ask(self, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = super().ask(request)
        if "json" not in headers["content-type"]:
            return status, headers, body
        kept = {"content-type": headers["content-type"]}
        return status, kept, json.dumps(self._walk(json.loads(body))).encode()

    def _walk(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self._walk(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._walk(item, name) for item in self._change(value, name)]
        return self._change(value, name)


def run_changed(server: Harness, words: str, change: Callable[[Any, str], Any]) -> Done:
    def connect() -> Client:
        return Client(make_options(SERVER, {"identity": ADMINISTRATOR, "secret": SECRET}), Changing(server, change))

    token = REMOTE.set(connect)
    try:
        return call(*words.split())
    finally:
        REMOTE.reset(token)


@pytest.mark.parametrize("words", READING)
def test_control_characters_of_a_server_are_never_printed(server: Harness, words: str) -> None:
    def add_controls(value: Any, name: str) -> Any:
        return f"{value}{CONTROLS}" if isinstance(value, str) and name not in CHECKED else value

    def add_everywhere(value: Any, _: str) -> Any:
        return f"{value}{CONTROLS}" if isinstance(value, str) else value

    for change in (add_controls, add_everywhere):
        for option in ("", " --json"):
            done = run_changed(server, words + option, change)  # `call` finds control characters
            assert done.out or done.err


@pytest.mark.parametrize("words", READING)
def test_lists_that_are_empty_or_too_long_do_no_harm(server: Harness, words: str) -> None:
    def change(value: Any, _: str) -> Any:
        return value * factor if isinstance(value, list) else value

    for factor in (0, 2):
        done = run_changed(server, words, change)
        if words.startswith("mint"):
            assert done.code == 1
            assert f"The server minted {factor} of 1 identifiers" in done.err


def test_problem_of_a_newer_server_is_reported(server: Harness) -> None:
    newer = {"type": "/docs/problems#from-the-future", "advice_kind": "NOT_KNOWN_YET", "advice": "PUT /x", "code": 999}

    def change(value: Any, name: str) -> Any:
        return newer.get(name, value)

    done = run_changed(server, "create 12345/n0", change)
    assert (done.code, done.err) == (4, "perseid: Handle 12345/n0 already exists\nThe server advises: PUT /x\n")
    done = run_changed(server, "create 12345/n0 --json", change)
    problem = json.loads(done.err)
    assert (problem["detail"], problem["exit_code"]) == ("Handle 12345/n0 already exists", 4)
    other_parameters = {"handle": ["{", "}"], "advice_kind": "OVERWRITE"}
    assert run_changed(server, "create 12345/n0", lambda value, name: other_parameters.get(name, value)).code == 4


def test_edited_text_is_kept_if_the_response_to_the_change_is_lost(
    server: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing(InProcess):
        def ask(self, request: HttpRequest) -> tuple[int, dict[str, str], bytes]:
            answer = super().ask(request)
            if request.method == "PUT":
                raise NoResponse(Failure("no answer within 30 s"))
            return answer

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    options = make_options(SERVER, {"identity": ADMINISTRATOR, "secret": SECRET})
    token = REMOTE.set(lambda: Client(options, Losing(server)))
    try:
        done = call("edit", "12345/n2", "--yes", environ={"EDITOR": "sed -i s,https:,http:,"})
    finally:
        REMOTE.reset(token)
    assert done.code == 5
    (kept,) = tmp_path.glob("perseid-*.json")
    assert f"It may have been made: look before you repeat it\nYour text is in {kept}\n" in done.err
    assert "Nothing was saved" not in done.err


def test_advice_is_in_the_words_of_the_command_line(server: Harness) -> None:
    done = run_changed(server, "create 12345/n0", lambda value, _: value)
    assert "To replace the record, add --overwrite to perseid create" in done.err
    assert "POST" not in done.err
    token = REMOTE.set(lambda: Client(make_options(SERVER, {}), InProcess(server)))
    try:
        refused(call("delete", "12345/n0"), "--as INDEX:HANDLE with --secret-file FILE", "perseid login SERVER")
    finally:
        REMOTE.reset(token)


def test_export_works_on_a_server(user: User, server: Harness, tmp_path: Path) -> None:
    user.login("--name", "work")
    key = ValueRef.parse(ADMINISTRATOR)
    identity = KeyIdentity(key, Proof.SECRET_KEY, verified_index=key.index)
    for options, format_ in (("", ExportFormat.JSONL), ("--format csv", ExportFormat.CSV)):
        selection = Selection(Search(prefix="12345"))
        parts = list(export_parts(server.registry, identity, selection, open_writer(format_)))
        expected = b"".join([piece for part in parts for piece in part.content])
        file = tmp_path / "file"
        done = user(f"export 12345 --remote work -o {file} --json {options}")
        assert (file.read_bytes(), done.json["records"]) == (expected, sum(part.records for part in parts))
        assert done.json["as_of"] == parts[0].as_of
    refusal = user("export --static site --remote work")
    assert (refusal.code, refusal.out) == (1, "")
    assert "This command works on a local installation only" in refusal.err
    assert user("export 99999 --remote work").code == 3


def test_local_commands_say_that_they_ignore_the_remote(tmp_path: Path) -> None:
    directory = tmp_path / "local"
    environ = {"PERSEID_DIR": str(directory), "PERSEID_REMOTE": "work"}
    said = f"perseid: This command ignores PERSEID_REMOTE=work and works on {directory}\n"
    assert call("init", environ=environ).err.startswith(said)
    other = {**environ, "PERSEID_REMOTE": "other"}
    done = call("check", "--quick", "--json", environ=other)
    assert (done.code, done.err.count("ignores PERSEID_REMOTE=other")) == (0, 1)
    for words in (f"config -d {directory}", "name parse http://example.org/12345/x"):
        assert "PERSEID_REMOTE" not in call(*words.split(), environ={**environ, "PERSEID_REMOTE": "third"}).err
    for option in ("--server", "--remote"):
        refused = call("backup", str(tmp_path / "b"), option, "work", environ=environ)
        assert (refused.code, f"{option}: this command works on an installation only: use -d DIR" in refused.err) == (
            2,
            True,
        )

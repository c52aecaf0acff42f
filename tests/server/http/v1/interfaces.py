"""Requests made both at the command line and over the HTTP API, each on its own copy of an installation.

Each section adds its requests to `REQUESTS`: a strategy of `Both`, the same request in both forms. Requests run one
after the other on both copies, so later requests see the changes of earlier ones.

    @requests
    def deleting() -> st.SearchStrategy[Both]:
        return st.builds(lambda name: Both(["delete", name], "DELETE", f"/handles/{step(name)}"), NAMES)
"""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st

from perseid.cli._advice import TEXTS as CLI_TEXTS
from perseid.names.handle import Handle
from perseid.records.record import Permission, Value
from perseid.registry.advice import AdviceKind, AdviceTexts
from perseid.registry.commands.records import Create
from perseid.registry.installation.installation import Installation
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.http.messages import Response
from perseid.server.http.v1.problems import ADVICE_TEXTS, MEDIA_TYPE
from tests.cli.installation import Site
from tests.cli.program import Done
from tests.server.http.contexts import Harness, basic, header_of, serve
from tests.server.http.v1.apis import send
from tests.server.installations import ADMINISTRATOR, OPERATOR, SECRET, copy_to

ANN: Final = "300:12345/ann"
"""An identity with a key and without permissions."""

WHO: Final = st.sampled_from([ADMINISTRATOR, ADMINISTRATOR, ANN])

NAMES: Final = st.one_of(
    st.sampled_from(["12345/n0", "12345/n1", "12345/N0", "12345/private", "12345/new", "12345/newer", "12345/gone"]),
    st.sampled_from(["54321/x", "0.NA/12345", "0.SITE/POLICY/12345", "12345/a?b"]),
    st.sampled_from(["12345", "12345/", "12345/ x", "12345/a\u202eb"]),
)
"""Handles of every kind: existing, missing, of other services, of the installation, and invalid."""

PREFIXES: Final = st.sampled_from(["12345", "99", "98", "12345.7", "54321", "0.NA", "1/2", ".", "9 9"])


_JOB_ID: Final = re.compile("[0-9a-f]{16}")  # differs between the copies


@dataclass(frozen=True)
class Both:
    """One request for both interfaces."""

    words: list[str]
    """The words of the command, without the identity."""
    method: str
    path: str
    """Under `/api/v1`."""
    plain: object = None
    """The body as a plain object."""
    given: bytes = b""
    """Standard input of the command."""
    alike: Callable[[Done, Any], None] = field(default=lambda _done, _plain: None, compare=False)
    """Compares the output of the command and the JSON of the response, if both succeeded."""


REQUESTS: Final[list[Callable[[], st.SearchStrategy[Both]]]] = []


def requests(made: Callable[[], st.SearchStrategy[Both]]) -> Callable[[], st.SearchStrategy[Both]]:
    """Register a strategy of requests."""
    REQUESTS.append(made)
    return made


def step(name: str) -> str:
    """Encode a handle as one path segment."""
    return quote(name, safe="")


@dataclass
class BothInterfaces:
    """Both copies of the installation."""

    site: Site
    server: Harness

    def ask(self, both: Both, identity: str) -> None:
        """Send a request to both as an identity and compare the results."""
        done = self.site("", *both.words, "--as", identity, stdin=both.given)
        answer = send(self.server, both.method, both.path, both.plain, headers=basic(identity, SECRET))
        compare(done, answer)
        if has_answered(done) and header_of(answer, "Content-Type") == "application/json":
            both.alike(done, json.loads(answer.body))


def has_answered(done: Done) -> bool:
    """Return whether a command succeeded; `explain` exits with the code of the explained refusal, without an error."""
    return done.code == 0 or (bool(done.out) and not done.err)


def compare(done: Done, answer: Response) -> None:
    """Both succeeded, or both refused for the same reason, with the same advice and rule."""
    about = f"{done} {answer.status} {answer.body[:600]!r}"
    if has_answered(done):
        assert answer.status < 300, about
        return
    assert header_of(answer, "Content-Type") == MEDIA_TYPE, about
    problem = json.loads(answer.body)
    slug = problem["type"].rpartition("#")[2]
    if done.code == 2 and ("#invalid-request" in done.err or "Usage: " in done.err):
        # Usage errors have other messages, and are reported before an invalid handle.
        assert slug in ("invalid-request", "invalid-name", "no-such-path"), about
        return
    assert slug not in ("invalid-request", "internal-error", "authentication-required", "authentication-failed"), about
    printed = done.err
    if printed.startswith("{"):  # with --json
        own = json.loads(printed)
        assert (own.get("rule"), own.get("code")) == (problem.get("rule"), problem.get("code")), about
        printed = f"{own['detail']}\n{own.get('advice', '')}"
    assert _JOB_ID.sub("JOB", problem["detail"].lower()) in _JOB_ID.sub("JOB", printed.lower()), about
    is_missing = answer.status == 404
    assert is_missing == (done.code == 3), about
    if slug != "prefix-not-hosted":  # the server also lists its prefixes
        check_same_advice(printed, problem.get("advice", ""))
    if "To read the rule" in printed:
        assert printed.strip().endswith(problem["rule"]), about


def check_same_advice(printed: str, sent: str) -> None:
    """The command line and the API give the same advice, each in its own terms."""
    rule = "To read the rule: "
    if rule in sent:
        assert rule in printed
    elif sent:
        kinds = [kind for kind in AdviceKind if is_advice(kind, ADVICE_TEXTS).fullmatch(sent)]
        assert any(is_advice(kind, CLI_TEXTS).search(printed) for kind in kinds), (printed, sent)


def is_advice(kind: AdviceKind, texts: AdviceTexts) -> re.Pattern[str]:
    """A pattern of the text of a kind, with any parameters."""
    return re.compile(re.sub(r"\\{\w+\\}", ".*", re.escape(texts.get(kind, kind.value) or "")), re.DOTALL)


@cache
def _template() -> Path:
    """The test installation, in which Ann has a key and a checkpoint covers all entries."""
    folder = Path(tempfile.mkdtemp(prefix="perseid-alike-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    directory = copy_to(folder)
    with Installation.open(directory, environ={}) as installation:
        registry = Registry(installation.ledger, Rules(installation.administration, PROFILES["free"]))
        key = Value(300, "HS_SECKEY", SECRET.encode(), permissions=Permission(0x0C))
        registry.do(Create(Handle.parse("12345/ann"), (key,)), OPERATOR, "cli")
        assert installation.ledger.checkpoint()
    return directory


@contextmanager
def both_interfaces() -> Iterator[BothInterfaces]:
    """Open two copies of that installation."""
    with tempfile.TemporaryDirectory(prefix="perseid-alike-") as folder:
        paths = [Path(folder) / name for name in ("cli", "api")]
        for path in paths:
            shutil.copytree(_template(), path / "installation")
        with Installation.open(paths[1] / "installation", environ={}) as installation:
            server = serve(Registry(installation.ledger, Rules(installation.administration, PROFILES["free"])))
            server.configure(api_requests=0)
            yield BothInterfaces(Site(paths[0] / "installation"), server)

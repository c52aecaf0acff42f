"""One call of the API: its caller, parameters and response format, and how it is executed.

Everything a call does is a registry command, including reads, so that it is decided and executed in one snapshot of the
ledger. Exceptions become responses here.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.encoding import JsonObject
from perseid.records.json_form import value_to_json
from perseid.records.record import Value
from perseid.registry.access.token_records import InactiveToken
from perseid.registry.advice import AdviceKind, AdviceTexts
from perseid.registry.commands.minting import RetryLater
from perseid.registry.context import Command, Context, Stage
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import ReferralError, Refused
from perseid.registry.snapshot import Snapshot
from perseid.server.http import clients, responses
from perseid.server.http.auth.authentication import (
    AuthResult,
    challenge_headers,
    denial,
    end_stale_session,
    proof_headers,
)
from perseid.server.http.context import INTERFACE, RequestContext
from perseid.server.http.messages import SAFE_METHODS, BadRequest, HeaderList, Name, Parameters, Request, Response
from perseid.server.http.resolver.problems import AdvisedCommand
from perseid.server.http.responses import FORBIDDEN, NO_STORE, UNAUTHORIZED, Failure, JsonFormat, to_failure
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import (
    NOT_PRIMARY,
    GuardedCommand,
    ReadCommand,
    UnstorableName,
    execute,
    execute_in_loop,
    execute_with_wait,
    parse_lenient,
    wait_in_loop,
)
from perseid.server.native.work import WorkKind
from perseid.wire.codes import ResponseCode

T = TypeVar("T")
R = TypeVar("R")

ADVICE_TEXTS: Final[AdviceTexts] = {
    AdviceKind.AUTHENTICATE: "Send an Authorization header, or use a session",
    AdviceKind.ADD_USER: None,
    AdviceKind.ASK_WHO_HAS_ACCESS: AdviceKind.ASK_ADMINISTRATOR.value,
    AdviceKind.RESET_USER: None,
    AdviceKind.CREATE_RECORD: "Create its record first: PUT /api/handles/{handle}",
    AdviceKind.FIND_OWNED: AdviceKind.ASK_ADMINISTRATOR.value,
    AdviceKind.FIX_ALIAS: "Correct the alias, or create {handle}: PUT /api/handles/{handle}",
    AdviceKind.FOLLOW_SCHEME: "Mint a handle with mintNewSuffix=true, or use a suffix that follows the scheme",
    AdviceKind.HOST_PREFIX: AdviceKind.CHECK_PREFIX.value,
    AdviceKind.MAKE_PUBLIC: 'Make it public, with the permissions "1110"',
    AdviceKind.LIST_NAMESPACES: "List the prefixes: GET /api/prefixes",
    AdviceKind.OMIT_DATE: "Omit it",
    AdviceKind.OVERWRITE: "Choose another handle, or set overwrite=true to replace it",
    AdviceKind.SEE_TYPE_COPY: "See the copy of the definition: GET /hdl/{type}",
    AdviceKind.SEE_TYPE_FORMAT: "See /docs/types for the format of definitions",
    **{kind: kind.value for kind in (AdviceKind.CREATE_TOKEN, AdviceKind.DEFINE_TYPE, AdviceKind.ENABLE_LISTING)},
    **{kind: kind.value for kind in (AdviceKind.LIST_TYPES, AdviceKind.SEE_TYPE, AdviceKind.SET_AUTHORITY)},
    **{kind: kind.value for kind in (AdviceKind.FREE_SPACE, AdviceKind.SET_CLOCK, AdviceKind.REOPEN_COUNTER)},
    AdviceKind.RETRY_STATISTICS: AdviceKind.RETRY_STATISTICS.value,
    **{kind: kind.value for kind in (AdviceKind.UPGRADE_NODE, AdviceKind.WAIT_FOR_MAINTENANCE)},
    **{kind: kind.value for kind in (AdviceKind.CHANGE_POLICY, AdviceKind.CHANGE_SCHEME, AdviceKind.REOPEN_NAMESPACE)},
    **{kind: kind.value for kind in (AdviceKind.CHOOSE_ON_EXISTING, AdviceKind.CONFIRM_MINT, AdviceKind.MINT_AGAIN)},
    # This API has no imports.
    **dict.fromkeys((AdviceKind.CHOOSE_ENCODING, AdviceKind.IGNORE_COLUMN, AdviceKind.MAP_COLUMN)),
    **dict.fromkeys((AdviceKind.CHOOSE_SHEET, AdviceKind.MAP_EACH_COLUMN, AdviceKind.PRESERVE_DATES)),
    **dict.fromkeys((AdviceKind.MINT_OR_ENTER_HANDLE, AdviceKind.NAME_HANDLE_COLUMN, AdviceKind.NAME_MINT_PREFIX)),
    **dict.fromkeys((AdviceKind.REDO_IMPORT, AdviceKind.UPDATE_IMPORTED)),
    **dict.fromkeys((AdviceKind.NAME_ROW_PREFIX, AdviceKind.OMIT_MINT, AdviceKind.IMPORT_WITH_ON_EXISTING)),
    # This API has no policies, citations, tombstones, tokens or jobs.
    AdviceKind.NAME_RESOLVER: None,
    **dict.fromkeys((AdviceKind.CHANGE_CASE, AdviceKind.LIST_TOKENS, AdviceKind.LIST_JOBS, AdviceKind.LIST_USERS)),
    **dict.fromkeys((AdviceKind.SEARCH_URLS, AdviceKind.REDO_JOB, AdviceKind.REPEAT_OR_UNDO_JOB)),
    **dict.fromkeys((AdviceKind.FIX_AND_RESUME_JOB, AdviceKind.SET_BACK)),
    AdviceKind.SEE_HIDDEN: None,  # authenticated requests show it
    AdviceKind.SEE_FIRST_VERSION: None,
    AdviceKind.SEE_LAST_VERSION: None,  # its response to a missing handle has a fixed form
    **dict.fromkeys((AdviceKind.RESUME_JOB, AdviceKind.UNDO_EARLIER_JOB, AdviceKind.UNDO_JOB)),
    **dict.fromkeys((AdviceKind.GIVE_REASON, AdviceKind.SEE_HISTORY, AdviceKind.SELECT_URLS)),
    AdviceKind.RETIRE_NAMESPACE: None,
    **dict.fromkeys((AdviceKind.RESTORE, AdviceKind.REUSE_DELETED, AdviceKind.TOMBSTONE_INSTEAD)),
}
"""Advice as parameters and requests of this API; None where it cannot help."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the API."""

    request_context: RequestContext
    auth: AuthResult
    parameters: Parameters
    form: JsonFormat

    @property
    def request(self) -> Request:
        return self.request_context.request

    @property
    def identity(self) -> Identity:
        return self.auth.identity

    @property
    def is_anonymous(self) -> bool:
        return isinstance(self.identity, Anonymous)

    @property
    def is_public(self) -> bool:
        """Whether the response is the same for everyone and may be cached: anonymous, without a session."""
        return self.is_anonymous and self.auth.session is None and self.request.method in SAFE_METHODS

    @property
    def allow_referrals(self) -> bool:
        """Whether the client may be referred to another service."""
        return not self.parameters.flag("doNotRefer")

    # Names

    def handle(
        self, name: Name, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND, *, writes: bool = False
    ) -> Handle | UnstorableName:
        """The handle of a name, or a stand-in for one that cannot exist; without a slash it is a prefix."""
        if writes and not name.is_text:
            raise Refused(ResponseCode.INVALID_HANDLE, "the handle is not valid UTF-8")
        data = full_name(name.text).encode("utf-8")
        return parse_lenient(data, code)

    # Execution

    async def read(self, read: Callable[[Context], T], about: str = "", *, public: bool = False) -> T:
        """Read for the caller; `about` is the name in question. `public` means that an anonymous caller can see it."""
        if not public:
            return await self.run_read(ReadCommand(read), about)
        command = GuardedCommand(self._advised(ReadCommand(read), about), None, self.allow_referrals)
        now = self.request_context.server.registry.now()
        return await self.request_context.read_public(
            lambda snapshot: command.decide(Context(snapshot, self.identity, INTERFACE, now)).result(0)
        )

    async def run_read(self, command: Command[T], about: str = "") -> T:
        """Execute a command that changes nothing."""
        registry, identity = self.request_context.server.registry, self.identity
        guarded = GuardedCommand(self._advised(command, about), self.auth.guard, self.allow_referrals)
        return await self._decide(
            self.request_context.do(WorkKind.READ, lambda: registry.do(guarded, identity, INTERFACE))
        )

    async def change(self, make: Callable[[int | None], Command[T]], about: str = "", note: str = "") -> T:
        """Execute a command that may change something; `make` is as in `native.decisions.execute`."""
        arguments = self.request_context.server.registry, self._guarded(make, about), self.identity, INTERFACE, note
        await self._check_change(arguments[1])
        return await self._decide(
            self.request_context.change(
                lambda: execute(*arguments),
                lambda: execute_in_loop(*arguments),
                is_short=self._is_short,
            )
        )

    async def execute_with(
        self,
        make: Callable[[int | None], Command[T]],
        about: str,
        do: Callable[[Command[T]], R],
        do_in_loop: Callable[[Command[T]], Awaitable[R]],
    ) -> R:
        """The same with functions that execute the guarded command, in a thread or in the event loop."""
        guarded = self._guarded(make, about)
        await self._check_change(guarded)
        return await self._decide(
            self.request_context.change(
                lambda: execute_with_wait(guarded, do),
                lambda: wait_in_loop(guarded, do_in_loop),
                is_short=self._is_short,
            )
        )

    async def _decide(self, decision: Awaitable[T]) -> T:
        """Await a decision: it was on the current key, so it confirms the proof, whether allowed or refused."""
        try:
            result = await decision
        except (KeyChanged, InactiveToken):
            raise  # see `end_stale_session`
        except Refused:
            self.request_context.settle_proof(succeeded=True)
            raise
        self.request_context.settle_proof(succeeded=True)
        return result

    @property
    def _is_short(self) -> bool:
        """Whether the change is decided in a short time."""
        return len(self.request.body) <= responses.MAX_INLINE_BYTES

    def _guarded(self, make: Callable[[int | None], Command[T]], about: str) -> Callable[[int | None], Command[T]]:
        guard, allow_referrals = self.auth.guard, self.allow_referrals
        return lambda since: GuardedCommand(self._advised(make(since), about), guard, allow_referrals)

    async def _check_change(self, guarded: Callable[[int | None], Command[T]]) -> None:
        """Refuse early what can be refused at the cost of a read: nearly all anonymous callers get a challenge."""
        registry, identity = self.request_context.server.registry, self.identity
        self.check_can_change()

        def try_out(snapshot: Snapshot) -> None:
            with suppress(RetryLater):  # a caller who must wait has permission
                guarded(None).decide(registry.context(snapshot, identity, INTERFACE, stage=Stage.COMMIT))

        if self.is_anonymous:
            await self.request_context.read_short(try_out)

    def _advised(self, command: Command[T], about: str) -> AdvisedCommand[T]:
        return AdvisedCommand(command, about, self.request_context.server.settings)

    def check_can_change(self) -> None:
        """Refuse changes on a server that is not primary, and by ambient credentials of a browser."""
        if not self.request_context.server.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        if self.auth.ambient and (reason := clients.check_ambient_credentials(self.request_context)):
            raise BadRequest(reason, FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, echo_name=True)

    # Responses

    def respond(
        self, plain: JsonObject, status: int = 200, headers: HeaderList = (NO_STORE,), *, name: str = ""
    ) -> Response:
        """Create a JSON response in the requested format."""
        headers = (*headers, *proof_headers(self.auth))
        return responses.json_response(plain, self.form, status, headers, name=name, identity=self.named)

    async def render_values(self, values: tuple[Value, ...], write: Callable[[], Response]) -> Response:
        """Create a response with values; in a thread if they are large."""
        return write() if responses.is_small(values) else await self.request_context.do(WorkKind.READ, write)

    @property
    def named(self) -> str:
        """The caller for the log; empty if anonymous."""
        return "" if self.is_anonymous else str(self.identity)

    async def catching_errors(self, echo: str | None, work: Awaitable[Response]) -> Response:
        """Await a response; an exception becomes an error response, with the name in question."""
        try:
            return await work
        except ReferralError as problem:
            referred = problem
        except Exception as problem:  # noqa: BLE001 - every exception must become a response
            return self.error_response(problem, echo)
        return await self.render_values(referred.values, lambda: self.error_response(referred, echo))

    def error_response(self, problem: Exception, echo: str | None) -> Response:
        """Create the response for an exception."""
        call = self
        if isinstance(problem, KeyChanged | InactiveToken):
            call = replace(self, auth=end_stale_session(self.request_context, self.auth, problem))
        return call.failure_response(self.to_failure(problem), echo)

    def to_failure(self, problem: Exception) -> Failure:
        """Convert an exception to an error of this API."""
        return to_failure(problem, self.request_context, ADVICE_TEXTS)

    def failure_response(self, failure: Failure, echo: str | None) -> Response:
        """Create the response for a failure; anonymous callers get a challenge."""
        plain = responses.error_body(failure.code, failure.message, echo if failure.echo_name else None)
        if failure.referral is not None:
            plain["values"] = [value_to_json(value) for value in failure.referral.values]
        if failure.status != UNAUTHORIZED:
            return self.respond(plain, failure.status, (*failure.headers, NO_STORE), name=echo or "")
        headers = (*failure.headers, NO_STORE, *challenge_headers(self.request_context, self.auth))
        return responses.json_response(plain, self.form, UNAUTHORIZED, headers, name=echo or "", identity=self.named)

    def authentication_failed(self, echo: str | None) -> Response:
        """Create the response to failed authentication."""
        denied = denial(self.request_context, self.auth)
        plain = responses.error_body(denied.code, denied.describe(ADVICE_TEXTS), echo)
        return responses.json_response(plain, self.form, denied.status, (NO_STORE, *denied.headers), name=echo or "")


def full_name(text: str) -> str:
    """The handle of a name: a name without a slash is a prefix, and means the prefix handle."""
    return text if "/" in text else f"{PREFIX_OF_PREFIXES}/{text}"

"""One call of the API: who asks, what for, how the answer shall look, and how it is carried out.

Everything that a call does is an operation of the registry, reading included, so that it is decided and done in one
state of the ledger. What goes wrong on the way becomes an answer here.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.records.json_form import value_to_json
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.commands.minting import RetryLater
from perseid.registry.context import Command, Context
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import ReferralError, Refused
from perseid.server.http import clients, responses
from perseid.server.http.auth.authentication import (
    AuthResult,
    challenge_headers,
    denial,
    end_stale_session,
    proof_headers,
)
from perseid.server.http.context import INTERFACE, RequestContext
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Request, Response
from perseid.server.http.resolver.problems import AdvisedCommand
from perseid.server.http.responses import FORBIDDEN, NO_STORE, UNAUTHORIZED, Failure, JsonFormat, to_failure
from perseid.server.http.targets import BadRequest, Name, Parameters
from perseid.server.native.authentication import KeyChanged
from perseid.server.native.decisions import (
    NOT_PRIMARY,
    GuardedCommand,
    ReadCommand,
    UnstorableName,
    execute_with_wait,
    parse_lenient,
)
from perseid.server.native.operations import check_partition
from perseid.server.native.steps import WorkKind
from perseid.wire.codes import ResponseCode

T = TypeVar("T")
R = TypeVar("R")


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
        """Whether the answer is the same for everybody, and may be kept for all: nobody's session is in it."""
        return self.is_anonymous and self.auth.session is None and self.request.method in SAFE_METHODS

    @property
    def allow_referrals(self) -> bool:
        """Whether the client may be sent to another service."""
        return not self.parameters.flag("doNotRefer")

    # Names

    def handle(
        self, name: Name, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND, *, writes: bool = False
    ) -> Handle | UnstorableName:
        """The handle that is meant, or what stands for a name that none can have; without a slash it is a prefix."""
        if writes and not name.is_text:
            raise Refused(ResponseCode.INVALID_HANDLE, "the name is not UTF-8, and names have no other encoding")
        data = full_name(name.text).encode("utf-8")
        check_partition(data, self.request_context.place)
        return parse_lenient(data, code)

    # Doing

    async def read(self, read: Callable[[Context], T], about: str = "") -> T:
        """Read something for whoever asks; `about` is the name that it is about."""
        return await self.run_read(ReadCommand(read), about)

    async def run_read(self, operation: Command[T], about: str = "") -> T:
        """Carry out an operation that changes nothing."""
        return await self.told(operation, about, lambda found: found)

    async def told(self, operation: Command[T], about: str, convert: Callable[[T], R]) -> R:
        """The same, and what `tell` makes of it: in the same thread, after the ledger has been let go of."""
        registry, identity = self.request_context.place.registry, self.identity
        guarded = GuardedCommand(AdvisedCommand(operation, about), self.auth.guard, self.allow_referrals)
        return await self.request_context.do(WorkKind.READ, lambda: convert(registry.do(guarded, identity, INTERFACE)))

    async def change(self, make: Callable[[int | None], Command[T]], about: str = "", note: str = "") -> T:
        """Carry out an operation that may change something; `make` is as in `Asked`."""
        registry, identity = self.request_context.place.registry, self.identity
        return await self.execute_with(make, about, lambda operation: registry.do(operation, identity, INTERFACE, note))

    async def execute_with(
        self, make: Callable[[int | None], Command[T]], about: str, do: Callable[[Command[T]], R]
    ) -> R:
        """The same, where `do` has the registry carry it out; what it gets is guarded."""
        registry, identity, guard, allow_referrals = (
            self.request_context.place.registry,
            self.identity,
            self.auth.guard,
            self.allow_referrals,
        )
        self.check_can_change()

        def guarded(since: int | None) -> Command[T]:
            return GuardedCommand(AdvisedCommand(make(since), about), guard, allow_referrals)

        def try_out() -> None:
            with registry.snapshot() as snapshot, suppress(RetryLater):  # who has to wait may do it
                guarded(None).decide(Context(snapshot, identity, INTERFACE, registry.now()))

        if self.is_anonymous:
            # Nearly all who are unknown are asked who they are, which is found out at the price of reading.
            await self.request_context.do(WorkKind.READ, try_out)
        return await self.request_context.do(WorkKind.WRITE, lambda: execute_with_wait(guarded, do))

    def check_can_change(self) -> None:
        """Refuse changes on a server that takes none, and by credentials that a browser may have sent by itself."""
        if not self.request_context.place.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        if self.auth.ambient and (objection := clients.check_ambient_credentials(self.request_context)):
            raise BadRequest(objection, FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, echo_name=True)

    # Answering

    def respond(
        self, plain: JsonObject, status: int = 200, headers: HeaderList = (NO_STORE,), *, name: str = ""
    ) -> Response:
        """An answer in JSON, in the form that was asked for."""
        headers = (*headers, *proof_headers(self.auth))
        return responses.json_response(plain, self.form, status, headers, name=name, identity=self.named)

    async def render_values(self, values: tuple[Value, ...], write: Callable[[], Response]) -> Response:
        """The answer that writes values out; in a thread, if they are many or long."""
        return write() if responses.is_small(values) else await self.request_context.do(WorkKind.READ, write)

    @property
    def named(self) -> str:
        """Who asks, for the log; empty for nobody in particular."""
        return "" if self.is_anonymous else str(self.identity)

    async def catching_errors(self, echo: str | None, work: Awaitable[Response]) -> Response:
        """The answer that something gives, or that it was refused, with the name that it was about."""
        try:
            return await work
        except ReferralError as problem:
            referred = problem
        except Exception as problem:  # noqa: BLE001 - somebody waits for an answer
            return self.error_response(problem, echo)
        return await self.render_values(referred.values, lambda: self.error_response(referred, echo))

    def error_response(self, problem: Exception, echo: str | None) -> Response:
        """The answer where something was not done."""
        call = self
        if isinstance(problem, KeyChanged):
            call = replace(self, auth=end_stale_session(self.request_context, self.auth, problem))
        return call.failure_response(to_failure(problem, self.request_context), echo)

    def failure_response(self, failure: Failure, echo: str | None) -> Response:
        """The answer with a failure; whoever is not known is asked who they are."""
        plain = responses.error_body(failure.code, failure.message, echo if failure.echo_name else None)
        if failure.referral is not None:
            plain["values"] = [value_to_json(value) for value in failure.referral.values]
        if failure.status != UNAUTHORIZED:
            return self.respond(plain, failure.status, (*failure.headers, NO_STORE), name=echo or "")
        headers = (*failure.headers, NO_STORE, *challenge_headers(self.request_context, self.auth))
        return responses.json_response(plain, self.form, UNAUTHORIZED, headers, name=echo or "", identity=self.named)

    def authentication_failed(self, echo: str | None) -> Response:
        """The answer to somebody who is not believed."""
        denied = denial(self.request_context, self.auth)
        plain = responses.error_body(denied.code, denied.message, echo)
        return responses.json_response(plain, self.form, denied.status, (NO_STORE, *denied.headers), name=echo or "")


def full_name(text: str) -> str:
    """The handle that is meant by a name: one without a slash is a prefix, and its handle is meant."""
    return text if "/" in text else f"{PREFIX_OF_PREFIXES}/{text}"

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
from perseid.registry.commands.minting import MustWait
from perseid.registry.context import Context, Operation
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import Referred, Refused
from perseid.server.http import clients, responses
from perseid.server.http.auth.authentication import Identified, challenge_headers, denial, key_gone, proof_headers
from perseid.server.http.context import DOOR, Asking
from perseid.server.http.messages import READING, HeaderList, Request, Response
from perseid.server.http.resolver.problems import Explaining
from perseid.server.http.responses import FORBIDDEN, NO_STORE, UNAUTHORISED, Failure, Form, failure_of
from perseid.server.http.targets import Malformed, Name, Parameters
from perseid.server.native.authentication import KeyGone
from perseid.server.native.decisions import NOT_PRIMARY, Guarded, Read, Unkeepable, keepable, patiently
from perseid.server.native.operations import check_share
from perseid.server.native.steps import Kind
from perseid.wire.codes import ResponseCode

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the API."""

    asking: Asking
    identified: Identified
    parameters: Parameters
    form: Form

    @property
    def request(self) -> Request:
        return self.asking.request

    @property
    def who(self) -> Identity:
        return self.identified.who

    @property
    def is_anonymous(self) -> bool:
        return isinstance(self.who, Anonymous)

    @property
    def is_public(self) -> bool:
        """Whether the answer is the same for everybody, and may be kept for all: nobody's session is in it."""
        return self.is_anonymous and self.identified.session is None and self.request.method in READING

    @property
    def refers(self) -> bool:
        """Whether the client may be sent to another service."""
        return not self.parameters.flag("doNotRefer")

    # Names

    def handle(
        self, name: Name, code: ResponseCode = ResponseCode.HANDLE_NOT_FOUND, *, writes: bool = False
    ) -> Handle | Unkeepable:
        """The handle that is meant, or what stands for a name that none can have; without a slash it is a prefix."""
        if writes and not name.is_text:
            raise Refused(ResponseCode.INVALID_HANDLE, "the name is not UTF-8, and names have no other encoding")
        octets = full_name(name.text).encode("utf-8")
        check_share(octets, self.asking.place)
        return keepable(octets, code)

    # Doing

    async def read(self, read: Callable[[Context], T], about: str = "") -> T:
        """Read something for whoever asks; `about` is the name that it is about."""
        return await self.look(Read(read), about)

    async def look(self, operation: Operation[T], about: str = "") -> T:
        """Carry out an operation that changes nothing."""
        return await self.told(operation, about, lambda found: found)

    async def told(self, operation: Operation[T], about: str, tell: Callable[[T], R]) -> R:
        """The same, and what `tell` makes of it: in the same thread, after the ledger has been let go of."""
        registry, who = self.asking.place.registry, self.who
        guarded = Guarded(Explaining(operation, about), self.identified.guard, self.refers)
        return await self.asking.do(Kind.READ, lambda: tell(registry.do(guarded, who, DOOR)))

    async def change(self, make: Callable[[int | None], Operation[T]], about: str = "", note: str = "") -> T:
        """Carry out an operation that may change something; `make` is as in `Asked`."""
        registry, who = self.asking.place.registry, self.who
        return await self.carried(make, about, lambda operation: registry.do(operation, who, DOOR, note))

    async def carried(
        self, make: Callable[[int | None], Operation[T]], about: str, do: Callable[[Operation[T]], R]
    ) -> R:
        """The same, where `do` has the registry carry it out; what it gets is guarded."""
        registry, who, guard, refers = self.asking.place.registry, self.who, self.identified.guard, self.refers
        self.check_changing()

        def guarded(since: int | None) -> Operation[T]:
            return Guarded(Explaining(make(since), about), guard, refers)

        def try_out() -> None:
            with registry.facts() as facts, suppress(MustWait):  # who has to wait may do it
                guarded(None).decide(Context(facts, who, DOOR, registry.now()))

        if self.is_anonymous:
            # Nearly all who are unknown are asked who they are, which is found out at the price of reading.
            await self.asking.do(Kind.READ, try_out)
        return await self.asking.do(Kind.WRITE, lambda: patiently(guarded, do))

    def check_changing(self) -> None:
        """Refuse changes on a server that takes none, and by credentials that a browser may have sent by itself."""
        if not self.asking.place.site.is_primary:
            raise Refused(ResponseCode.SERVER_NOT_RESP, NOT_PRIMARY)
        if self.identified.ambient and (objection := clients.objection(self.asking)):
            raise Malformed(objection, FORBIDDEN, ResponseCode.AUTHENTICATION_NEEDED, echoes=True)

    # Answering

    def answer(
        self, plain: JsonObject, status: int = 200, headers: HeaderList = (NO_STORE,), *, name: str = ""
    ) -> Response:
        """An answer in JSON, in the form that was asked for."""
        headers = (*headers, *proof_headers(self.identified))
        return responses.json_response(plain, self.form, status, headers, name=name, who=self.named)

    async def written(self, values: tuple[Value, ...], write: Callable[[], Response]) -> Response:
        """The answer that writes values out; in a thread, if they are many or long."""
        return write() if responses.is_small(values) else await self.asking.do(Kind.READ, write)

    @property
    def named(self) -> str:
        """Who asks, for the log; empty for nobody in particular."""
        return "" if self.is_anonymous else str(self.who)

    async def refusing(self, echo: str | None, work: Awaitable[Response]) -> Response:
        """The answer that something gives, or that it was refused, with the name that it was about."""
        try:
            return await work
        except Referred as problem:
            referred = problem
        except Exception as problem:  # noqa: BLE001 - somebody waits for an answer
            return self.refused(problem, echo)
        return await self.written(referred.values, lambda: self.refused(referred, echo))

    def refused(self, problem: Exception, echo: str | None) -> Response:
        """The answer where something was not done."""
        call = self
        if isinstance(problem, KeyGone):
            call = replace(self, identified=key_gone(self.asking, self.identified, problem))
        return call.failed(failure_of(problem, self.asking), echo)

    def failed(self, failure: Failure, echo: str | None) -> Response:
        """The answer with a failure; whoever is not known is asked who they are."""
        plain = responses.refusal(failure.code, failure.message, echo if failure.echoes else None)
        if failure.referral is not None:
            plain["values"] = [value_to_json(value) for value in failure.referral.values]
        if failure.status != UNAUTHORISED:
            return self.answer(plain, failure.status, (*failure.headers, NO_STORE), name=echo or "")
        headers = (*failure.headers, NO_STORE, *challenge_headers(self.asking, self.identified))
        return responses.json_response(plain, self.form, UNAUTHORISED, headers, name=echo or "", who=self.named)

    def unproved(self, echo: str | None) -> Response:
        """The answer to somebody who is not believed."""
        denied = denial(self.asking, self.identified)
        plain = responses.refusal(denied.code, denied.message, echo)
        return responses.json_response(plain, self.form, denied.status, (NO_STORE, *denied.headers), name=echo or "")


def full_name(text: str) -> str:
    """The handle that is meant by a name: one without a slash is a prefix, and its handle is meant."""
    return text if "/" in text else f"{PREFIX_OF_PREFIXES}/{text}"

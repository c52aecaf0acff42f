"""Forms of the console: their fields, and a file that is stored while it arrives.

The token of a form is its first field. It is checked when a file begins, so nothing is stored for a form that this
server did not issue to the user. A file is in memory up to 1 MiB, and then in the spool of imports without a name: the
system deletes it when it is closed, also if the process is killed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import BinaryIO, Final, cast

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from perseid.registry.jobs.spool import Spool
from perseid.server.http.auth.web_sessions import CSRF_FIELD
from perseid.server.http.clients import is_cross_site
from perseid.server.http.messages import MAX_BODY, BadRequest, Parameters, Request
from perseid.server.http.pages.texts import _
from perseid.server.http.responses import FORM_TYPE, media_type

from .requests import ConsoleRequest, UploadedFile

MULTIPART: Final = "multipart/form-data"

MAX_FIELDS: Final = 2_000
"""Fields of a form: a record of some hundred values, with five fields for each."""

MAX_FILES: Final = 1
"""Files of a form: each is counted against the space for files before it is stored."""

CHARSET: Final = "utf-8"
"""The encoding of fields, as in all pages. A multipart form has no parameter for it (RFC 7578, section 5.1.2), and the
client would choose the decoder: that of Punycode needs quadratic time."""


async def read_form(console: ConsoleRequest) -> None:
    """Read the form and check that it comes from a page of its session; raises `BadRequest`."""
    request = console.request
    if is_cross_site(console.request_context):
        raise BadRequest(_("The form was sent from another site. Open the page again and repeat your input"), 403)
    if media_type(request) == MULTIPART and console.session is not None:
        await _read_multipart(console)
    elif media_type(request) == FORM_TYPE:
        console.form = Parameters.parse(request.body)
        if len(console.form.pairs) > MAX_FIELDS:
            raise BadRequest(_("The form has more than {maximum} fields").format(maximum=MAX_FIELDS), 413)
    if (
        console.session is not None and not console.match.route.public
    ):  # the check above is all that a form before the session can have
        console.key = _check_token(console, console.form)


def _check_token(console: ConsoleRequest, form: Parameters) -> bytes:
    """Return the random number of the form; raises `BadRequest` if it was issued to another session."""
    token = form.first(CSRF_FIELD) or ""
    number = None if console.session is None else console.session.read_form_token(token)
    if number is None:
        raise BadRequest(
            _("The form was not issued to you by this server. Open the page again and repeat your input"), 403
        )
    return number


async def _read_multipart(console: ConsoleRequest) -> None:
    request, registry = console.request, console.request_context.server.registry
    spool = None if registry.spool is None else Spool(registry.spool)
    if request.stream is not None and spool is not None:
        await _check_space(console, spool)
    headers = Headers(raw=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers])
    parser = _Parser(headers, _read_parts(request), spool, lambda form: _check_token(console, form))
    try:
        parsed = await parser.parse()
    except MultiPartException as error:
        raise BadRequest(f"The form cannot be read: {error.message}") from None
    pairs = []
    for name, value in parsed.multi_items():
        if isinstance(value, UploadFile):
            console.files[name] = UploadedFile(value.filename or "", value.file)
        else:
            pairs.append((name, value))
    console.form = Parameters(tuple(pairs))


async def _read_parts(request: Request) -> AsyncGenerator[bytes, None]:
    async for part in request.read_parts():
        yield part


async def _check_space(console: ConsoleRequest, spool: Spool) -> None:
    """Refuse a form with a file that is too large, or that the disk has no space for; raises `BadRequest`."""
    text, settings = console.request.header("content-length"), console.request_context.server.settings
    if not text:
        raise BadRequest("The request has no Content-Length", 411)
    length = int(text)
    if length > settings.import_size + MAX_BODY:  # of the file alone, the API says so
        limit = settings.import_size >> 20
        raise BadRequest(_("The file is larger than {limit} MiB. Split the file").format(limit=limit), 413)

    def has_space() -> bool:  # it is copied when the form is complete
        return spool.has_space(2 * length) and spool.used() + length <= settings.import_spool

    if not await asyncio.to_thread(has_space):
        raise BadRequest(_("There is no space for more files. Try again later"), 507)


class _Parser(MultiPartParser):
    """Checks the token of a form when a file begins, and stores the file in the spool.

    Fields are in memory, so together they can be as large as another form.
    """

    def __init__(
        self,
        headers: Headers,
        stream: AsyncGenerator[bytes, None],
        spool: Spool | None,
        check_token: Callable[[Parameters], object],
    ) -> None:
        super().__init__(headers, stream, max_files=MAX_FILES, max_fields=MAX_FIELDS)
        self._spool, self._check_token = spool, check_token
        self._field_bytes = 0

    def on_part_begin(self) -> None:
        """Start a part; the parameters of the content type are known by now."""
        super().on_part_begin()
        self._charset = CHARSET

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Take data of a field or a file; raises `BadRequest`."""
        if self._current_part.file is None:
            self._field_bytes += end - start
            if self._field_bytes > MAX_BODY:
                limit = MAX_BODY >> 20
                raise BadRequest(_("The fields of the form have more than {limit} MiB").format(limit=limit), 413)
        super().on_part_data(data, start, end)

    def on_headers_finished(self) -> None:
        """Start a field or a file."""
        super().on_headers_finished()
        file = self._current_part.file
        if file is None:
            return
        self._check_token(Parameters(tuple([(name, value) for name, value in self.items if isinstance(value, str)])))
        if self._spool is not None:
            temporary = self._spool.open_temporary(self.spool_max_size)
            self._files_to_close_on_error.append(temporary)
            file.file.close()
            file.file = cast(BinaryIO, temporary)

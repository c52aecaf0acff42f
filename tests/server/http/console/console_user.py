"""A user of the console without a browser: follows links, fills in forms, and keeps cookies."""

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode

from perseid.server.http.auth.web_sessions import SECURE_COOKIE
from perseid.server.http.messages import Response
from tests.server.http.contexts import Harness, header_of
from tests.server.installations import ADMINISTRATOR, SECRET

FORM: Final = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}


@dataclass
class Form:
    """A form of a page."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    """Fields without which browsers do not send it."""


class _FormParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._select = ""
        self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get").lower()))
        if not self.forms:
            return
        fields, name = self.forms[-1].fields, given.get("name", "")
        if "required" in given:
            self.forms[-1].required.add(name)
        is_choice = given.get("type") in ("checkbox", "radio")
        if tag == "input" and name and given.get("type") != "submit" and (not is_choice or "checked" in given):
            fields[name] = given.get("value", "on" if is_choice else "")
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and ("selected" in given or self._select not in fields):
            fields[self._select] = given.get("value", "")
        elif tag == "textarea" and name:
            self._area = name
            fields[name] = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.forms[-1].fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        elif tag == "textarea":
            self.forms[-1].fields[self._area] = self.forms[-1].fields[self._area].removeprefix("\n")
            self._area = ""


@dataclass
class ConsoleUser:
    """A user with a browser that runs no scripts."""

    server: Harness
    cookie: str = ""
    page: Response = field(default_factory=lambda: Response(0))
    """The page that is shown."""
    path: str = ""
    """Its path."""

    def get(self, path: str, **how: Any) -> Response:
        """Open a page, and follow redirects."""
        self.path = path
        self.page = self.server.get(path, headers={**self._headers(), **how.pop("headers", {})}, **how)
        return self._follow()

    def read(self, path: str) -> str:
        """Open a page and return its text."""
        self.get(path)
        return self.text

    def post(self, path: str, fields: dict[str, str] | list[tuple[str, str]], **how: Any) -> Response:
        """Send fields, and follow the redirect."""
        headers = {**FORM, **self._headers(), **how.pop("headers", {})}
        self.page = self.server.post(path, urlencode(fields), headers=headers, **how)
        return self._follow()

    def upload(self, path: str, fields: dict[str, str], name: str, content: bytes) -> Response:
        """Send a form with a file, and follow the redirect."""
        parts = [f'Content-Disposition: form-data; name="{field}"\r\n\r\n{text}' for field, text in fields.items()]
        parts.append(f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content.decode()}')
        body = "".join([f"--boundary\r\n{part}\r\n" for part in parts]) + "--boundary--\r\n"
        headers = {**FORM, "Content-Type": "multipart/form-data; boundary=boundary", **self._headers()}
        self.page = self.server.post(path, body, headers=headers)
        return self._follow()

    def submit(self, action: str, **fields: str) -> Response:
        """Fill in and send the form of the page whose action ends in a text."""
        form = self.form(action)
        assert not (empty := {name for name in form.required if not (form.fields | fields).get(name)}), empty
        return self.post(form.action, form.fields | fields)

    def has_form(self, action: str) -> bool:
        """Whether the page has a form whose action ends in a text."""
        return any(form.action.partition("?")[0].endswith(action) for form in self._forms())

    def _forms(self) -> list[Form]:
        parser = _FormParser()
        parser.feed(self.page.body.decode())
        return parser.forms

    def form(self, action: str) -> Form:
        """The form of the page whose action ends in a text."""
        return self.forms(action)[0]

    def forms(self, action: str) -> list[Form]:
        """The forms of the page whose action ends in a text; at least one."""
        forms = self._forms()
        found = [form for form in forms if form.method == "post" and form.action.partition("?")[0].endswith(action)]
        assert found, (action, [form.action for form in forms], self.text)
        return found

    def form_fields_of(self, path: str) -> dict[str, str]:
        """Open a page and return the fields of its last form."""
        self.get(path)
        return self.form(path.rpartition("/")[2]).fields

    def sign_in(self, identity: str = ADMINISTRATOR, secret: str = SECRET) -> "ConsoleUser":
        """Sign in with a secret."""
        self.get("/console/sign-in")
        self.submit("/sign-in", identity=identity, secret=secret)
        assert self.page.status == 200, self.text
        return self

    @property
    def text(self) -> str:
        """The text of the page."""
        body = re.sub(r"(?s)<(head|script|style).*?</\1>|<wbr>", "", self.page.body.decode())
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())

    @property
    def alert(self) -> str:
        """What the page says is wrong; empty if nothing is."""
        match = re.search(r'(?s)<div class="[^"]*bad[^"]*" role="alert">(.*?)</div>', self.page.body.decode())
        return "" if match is None else " ".join(unescape(re.sub(r"<[^>]*>", " ", match[1])).split())

    def _headers(self) -> dict[str, str]:
        return {"Cookie": f"{SECURE_COOKIE}={self.cookie}"} if self.cookie else {}

    def _follow(self) -> Response:
        for value in self.page.values("Set-Cookie"):
            assert value.startswith(f"{SECURE_COOKIE}=")
            self.cookie = value.split(";")[0].partition("=")[2]
        if self.page.status == 303:
            return self.get(header_of(self.page, "Location") or "")
        return self.page

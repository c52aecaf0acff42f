"""HTML pages rendered from templates.

All pages extend `base.html`, which has the blocks `head`, `nav`, `main` and `scripts`. Other packages add folders of
templates with `make_environment`. A page loads its stylesheet, image and scripts from this server and nothing else, and
cannot be framed. Pages without scripts of their own cannot run any.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.resolver.paths import get_segments

from . import texts
from .branding import get_brand
from .links import SPECIAL, break_url, mark_times, render_actions, render_piece

HTML_TYPE: Final = "text/html;charset=utf-8"

POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of a page without scripts."""

SCRIPT_POLICY: Final = POLICY.replace("style-src", "script-src 'self'; connect-src 'self'; style-src")
"""The policy of a page with scripts, which are files of this server."""

PAGES_SCRIPT: Final = "/static/pages.js"
"""Shows times in the reader's zone, and copies texts."""

SEARCH_SCRIPT: Final = "/static/search.js"
"""Suggests handles while the reader types."""

VERIFY_SCRIPT: Final = "/static/verify.js"
"""Checks the proof of a record."""

_JAVASCRIPT: Final = "text/javascript;charset=utf-8"

STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css;charset=utf-8",
    "console.js": _JAVASCRIPT,
    "docs.css": "text/css;charset=utf-8",
    "docs.js": _JAVASCRIPT,
    "favicon.ico": "image/x-icon",
    "job.js": _JAVASCRIPT,
    "pages.js": _JAVASCRIPT,
    "search.js": _JAVASCRIPT,
    "verify.js": _JAVASCRIPT,
    "perseid.css": "text/css;charset=utf-8",
    "perseid.svg": "image/svg+xml",
    "sign-in.js": _JAVASCRIPT,
    "try-it.js": _JAVASCRIPT,
}
"""Static files and their media types."""


MAX_FRAMES: Final = 256
"""Frames of frequent pages that are kept, of about 8 KB each: records have a few dozen."""

_MARK: Final = "\x00"  # in no template and no setting, which are printable


def render_page(
    template: str,
    settings: HttpSettings,
    status: int = 200,
    headers: HeaderList = (),
    *,
    scripts: tuple[str, ...] = (),
    environment: Environment | None = None,
    **shown: object,
) -> Response:
    """Render a template; `shown` must contain `title`.

    `scripts` are the paths of ES modules of this server. `environment` is from `make_environment`.
    """
    chosen = get_environment() if environment is None else environment
    text = chosen.get_template(template).render(brand=get_brand(settings), scripts=scripts, **shown)
    return _make_response(text, status, headers, scripts)


def render_frequent_page(
    template: str,
    settings: HttpSettings,
    headers: HeaderList,
    scripts: tuple[str, ...],
    shown: Mapping[str, str],
    status: int = 200,
    **flags: bool,
) -> Response:
    """Render a template whose variables are texts and flags, ten times as fast.

    What is the same for all pages is rendered once for each set of flags and of texts that are not empty. So a template
    can only test whether a text is empty, and write it. Text that is not `Markup` is escaped.
    """
    frame = _render_frame(
        template, settings, scripts, tuple(shown), tuple(map(bool, shown.values())), tuple(flags.items())
    )
    search = SPECIAL.search  # most texts need no escape, which is found out faster
    values = [text if type(text) is Markup or search(text) is None else escape(text) for text in shown.values()]
    pieces = list(frame.texts)
    pieces[1::2] = [values[number] for number in frame.numbers]
    return _make_response("".join(pieces), status, headers, scripts)


class _Frame(NamedTuple):
    """A rendered template."""

    texts: tuple[str, ...]
    """Every second one is empty, for a variable."""
    numbers: tuple[int, ...]
    """Of these variables."""


@lru_cache(MAX_FRAMES)
def _render_frame(
    template: str,
    settings: HttpSettings,
    scripts: tuple[str, ...],
    names: tuple[str, ...],
    present: tuple[bool, ...],
    flags: tuple[tuple[str, bool], ...],
) -> _Frame:
    """Render a template to texts, and the numbers of the variables between them."""
    marks = {name: Markup(f"{_MARK}{number}{_MARK}") for number, name in enumerate(names)}  # noqa: S704 - constant
    shown = {name: marks[name] if is_present else "" for name, is_present in zip(names, present, strict=True)}
    page = get_environment().get_template(template)
    text = page.render(brand=get_brand(settings), scripts=scripts, **shown, **dict(flags))
    pieces = text.split(_MARK)
    texts = tuple(["" if number % 2 else piece for number, piece in enumerate(pieces)])
    return _Frame(texts, tuple(map(int, pieces[1::2])))


def _make_response(text: str, status: int, headers: HeaderList, scripts: tuple[str, ...]) -> Response:
    policy = SCRIPT_POLICY if scripts else POLICY
    own = (("Content-Type", HTML_TYPE), ("Content-Security-Policy", policy))
    return Response(status, (*headers, *own), text.encode("utf-8", "replace"))


def make_environment(*packages: str) -> Environment:
    """Create an environment with the shared filters and templates.

    `packages` have a folder `templates` of their own. It belongs to the language of this moment: cache it with a
    function that `texts.on_change` clears.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*packages, __package__)]),
        extensions=[texts.CompiledTexts],
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.policies["ext.i18n.trimmed"] = True
    environment.globals |= {"gettext": texts._, "ngettext": texts.ngettext, "_": texts._}
    environment.globals["language"] = texts.get_language()
    environment.filters["piece"] = render_piece
    environment.filters["actions"] = render_actions
    environment.filters["times"] = mark_times
    environment.filters["breaks"] = break_url
    return environment


@cache
def get_environment() -> Environment:
    """The environment of the public pages."""
    return make_environment()


texts.on_change(get_environment.cache_clear)
texts.on_change(_render_frame.cache_clear)


def url_templates(settings: HttpSettings) -> tuple[str, ...]:
    """The forms of links that resolve here, with `{handle}` as placeholder (U4)."""
    bare = [f"{settings.public_url}/{{handle}}"] if settings.bare else []
    return (*bare, *[f"{settings.public_url}/{segment}/{{handle}}" for segment in get_segments(settings)])


@cache
def read_static(name: str) -> bytes:
    """Read a static file."""
    return files(__package__).joinpath("static", name).read_bytes()

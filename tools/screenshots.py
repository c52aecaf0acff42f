"""Pictures of the main pages for the documents: `make screenshots` writes `docs/images/*.png`.

The server is that of the browser tests, with its records; the browser is Debian's Chromium.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e.browsers import chromium  # noqa: E402
from tests.e2e.console_site import PREFIX, RECORD, console_site, record_path  # noqa: E402
from tests.e2e.page_watch import Visitor  # noqa: E402

IMAGES: Final = ROOT / "docs" / "images"
MAX_BYTES: Final = 150_000
"""Of a picture: a reader on a slow line sees it with the page."""

SETTINGS: Final = {
    "PERSEID_SERVICE_NAME": "Identifiers of the Example Library",
    "PERSEID_SERVICE_DESCRIPTION": "The Example Library gives its reports, maps and data names that last.",
}
"""Of the service in the pictures."""

_DESK: Final = {"viewport": {"width": 1100, "height": 720}}
_DARK: Final = _DESK | {"color_scheme": "dark"}
_PHONE: Final = {"viewport": {"width": 390, "height": 780}, "is_mobile": True, "has_touch": True}
PICTURES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "console-sign-in": ("/console/sign-in", _DESK),
    "console-record": (record_path(RECORD), _DESK),
    "console-edit-dark": (record_path(RECORD, "edit"), _DARK),
    "console-new": ("/console/new", _DESK),
    "console-overview": ("/console", _DESK),
    "console-phone": (record_path(RECORD), _PHONE),
    "console-statistics": (f"/console/statistics?namespace={PREFIX}", _DESK),
    "front": ("/", _DESK),
    "identifier": (f"/{RECORD}?noredirect", _DESK),
    "identifier-dark": (f"/{RECORD}?noredirect", _DARK),
    "identifier-phone": (f"/{RECORD}?noredirect", _PHONE),
    "namespace": (f"/namespaces/{PREFIX}", _DESK),
}
"""The path of each picture, and the window."""


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, console_site(Path(folder), **SETTINGS) as site, chromium() as browser:
        for name, (path, options) in PICTURES.items():
            is_inside = path.startswith("/console") and not path.endswith("/sign-in")
            visitor = site.visit(browser, **options) if is_inside else Visitor(browser, site.url, **options)
            visitor.go(path)
            target = IMAGES / f"{name}.png"
            visitor.page.screenshot(path=target)
            visitor.close()
            size = target.stat().st_size
            if size > MAX_BYTES:
                raise SystemExit(f"{target.name} has {size:,} bytes; the maximum is {MAX_BYTES:,}")
            print(f"{target.relative_to(ROOT)}: {size:,} bytes")


if __name__ == "__main__":
    main()

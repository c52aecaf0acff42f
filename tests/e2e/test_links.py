"""No dead links on the demonstration: checked with Debian's link checker, and by visiting every page.

The link checker is an external program, as operators run it; it waits a third of a second before each request, so it
visits only the first pages. All others are visited here, with every link, file and anchor.
"""

import subprocess
from contextlib import closing
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from tests.e2e.demonstration import PREFIX, Demonstration

CHECKER = Path("/usr/bin/linkchecker")
MAX_PAGES = 2_000
"""More than the demonstration has: whoever finds more goes round in circles."""
REDIRECTS = (301, 302, 303)
"""Their targets are visited too."""
LINKING = {"a": "href", "link": "href", "img": "src", "script": "src", "form": "action", "iframe": "src"}


def test_link_checker_finds_no_errors(demo: Demonstration) -> None:
    assert CHECKER.is_file(), f"there is no link checker at {CHECKER}: `make test` installs Debian's linkchecker"
    starts = [f"{demo.url}/", f"{demo.url}/{quote(demo.names[0])}", f"{demo.url}/{PREFIX}/leads?noredirect"]
    done = subprocess.run(
        # With no settings of whoever runs the tests, and whatever robots are asked to leave to people.
        [CHECKER, "-f", "/dev/null", "--no-robots", "--no-status", "--verbose", "-r", "1", "-t", "4", *starts],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 warnings found. 0 errors found." in done.stdout, done.stdout
    assert f"{demo.url}/help.html" in done.stdout
    assert done.stdout.count("Result     Valid") > 20, done.stdout


class Links(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if "id" in said:
            self.places.add(said["id"] or "")
        if tag in LINKING and LINKING[tag] in said:
            self.links.append(said[LINKING[tag]] or "")


def test_every_link_on_every_page_works(demo: Demonstration) -> None:
    """All pages reachable from the front page, the API documentation and the handles, at this server only."""
    starts = ["/", "/docs", "/help.html", "/robots.txt", "/favicon.ico"]
    starts += [f"/{quote(name)}" for name in demo.names] + [f"/{PREFIX}/leads?noredirect", f"/{PREFIX}/gone"]
    pages: dict[str, set[str]] = {}
    wanted: dict[str, str] = dict.fromkeys([demo.url + path for path in starts], "the beginning")
    looked_at: set[str] = set()
    with closing(HTTPConnection(*demo.server.http, timeout=60)) as connection:
        while waiting := [url for url in wanted if urldefrag(url).url not in looked_at]:
            url = urldefrag(waiting[0]).url
            looked_at.add(url)
            assert len(looked_at) < MAX_PAGES
            connection.request("GET", url.removeprefix(demo.url), headers={"Accept": "text/html"})
            answer = connection.getresponse()
            body = answer.read()
            is_tombstone = answer.status == 410 and f"/{PREFIX}/gone" in url
            told = f"{answer.status} for {url} from {wanted[waiting[0]]}"
            assert answer.status in (200, *REDIRECTS) or is_tombstone, told
            found = [answer.headers["Location"]] if answer.status in REDIRECTS else []
            if answer.headers.get_content_type() == "text/html" and answer.status not in REDIRECTS:
                page = Links(body.decode())
                pages[url] = page.places
                found += page.links
            for link in found:
                target = urljoin(url, link)
                assert urlsplit(target).scheme in ("http", "https", "mailto"), f"{link} on {url}"
                if target.startswith(f"{demo.url}/"):
                    wanted.setdefault(target, url)
    for url, where in wanted.items():
        page_url, place = urldefrag(url)
        assert not place or place in pages.get(page_url, ()), f"{url} from {where}: there is no such place"
    assert len(pages) > 30
    assert {f"{demo.url}/docs/schemas", f"{demo.url}/0.NA/102.100.272"} <= pages.keys()

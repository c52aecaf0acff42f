"""`perseid cite` and `perseid qr`: citations of real records, and QR codes decoded by an independent library."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.codes import decoded, png_rows
from tests.cli.installation import Site, refused, site

RELEASE = "102.100.272/X4NDP2JQH"
TITLE = "Authority Metadata for the PILIN Project: version 1.0 of 2007-10-25, release"
PUBLIC_URL = "https://id.example.org"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return published(site(tmp_path_factory.mktemp("cited"), "--demo"))


def published(here: Site, more: str = "") -> Site:
    """An installation with a public URL."""
    settings = here.directory / "perseid.toml"
    settings.write_text(settings.read_text().replace('#public_url = ""', f'public_url = "{PUBLIC_URL}"\n{more}'))
    return here


def test_s10_identifier_is_cited_in_both_forms(demo: Site) -> None:
    assert demo.lines(f"cite {RELEASE}") == [f"{TITLE}. hdl:{RELEASE}, {PUBLIC_URL}/{RELEASE}"]
    assert demo.lines(f"cite {RELEASE} --style hdl") == [f"hdl:{RELEASE}"]
    assert demo.lines(f"cite {RELEASE} --style http") == [f"{PUBLIC_URL}/{RELEASE}"]
    assert demo.lines(f"cite {RELEASE.lower()} --style http") == [f"{PUBLIC_URL}/{RELEASE}"], "as registered"
    seed = "http://resolver.net.au/hdl"
    assert demo.lines(f"cite {seed}/{RELEASE} --style http --resolver {seed}") == [f"{seed}/{RELEASE}"]


def test_citation_without_public_url_has_the_hdl_form_only(tmp_path: Path) -> None:
    here = site(tmp_path, "--demo")
    assert here.lines(f"cite {RELEASE}") == [f"{TITLE}. hdl:{RELEASE}"]
    assert f"  url = {{hdl:{RELEASE}}}," in here.lines(f"cite {RELEASE} --style bibtex")
    assert "http" not in here.ok(f"cite {RELEASE} --json").json
    assert here.lines(f"qr {RELEASE} -o {tmp_path}/a.svg") == [f"hdl:{RELEASE}"]
    refused(here(f"cite {RELEASE} --style http"), "has no public URL", "--resolver URL", "http.public_url", code=2)
    assert here.lines(f"cite {RELEASE} --style http --resolver {PUBLIC_URL}") == [f"{PUBLIC_URL}/{RELEASE}"]
    published(here, 'resolver_forms = ["id"]\n')
    assert here.lines(f"cite {RELEASE} --style http") == [f"{PUBLIC_URL}/id/{RELEASE}"], "a form that this server has"


def test_citation_as_bibtex_csl_and_json(demo: Site) -> None:
    bibtex = demo.lines(f"cite {RELEASE} --style bibtex")
    assert bibtex[:2] == [f"@misc{{hdl:{RELEASE},", f"  title = {{{{{TITLE}}}}},"]
    (item,) = json.loads(demo.ok(f"cite {RELEASE} --style csl-json").out)
    assert (item["id"], item["title"], item["URL"]) == (f"hdl:{RELEASE}", TITLE, f"{PUBLIC_URL}/{RELEASE}")
    plain = demo.ok(f"cite {RELEASE} --json --style hdl").json
    assert (plain["title"], plain["citation"], plain["style"]) == (TITLE, f"hdl:{RELEASE}", "hdl")
    assert plain["creator"] == "hdl:102.100.272/0N8J991QH"


def test_version_is_cited_with_its_entry(tmp_path: Path) -> None:
    demo = site(tmp_path, "--demo")
    seq = demo.ok(f"set {RELEASE} DESC='The title of today' --json").json["seq"]
    now = demo.lines(f"cite {RELEASE}")
    assert now[0].startswith("The title of today. ")
    then = demo.ok(f"cite {RELEASE} --at {seq - 1} --json").json
    assert then["title"] == TITLE
    assert then["version"]["seq"] < seq
    assert f"[as of entry {then['version']['seq']} (" in then["citation"]
    assert demo.lines(f"cite {RELEASE} --style hdl --at {seq}") == [f"hdl:{RELEASE} as of entry {seq}"]
    shown = demo.ok(f"resolve {RELEASE} --at {then['version']['seq']} --json").json
    assert TITLE in str(shown)


def test_citation_of_tombstones_and_of_unpublished_or_missing_handles(tmp_path: Path) -> None:
    demo = site(tmp_path, "--demo")
    demo.ok(f"tombstone {RELEASE} --reason Superseded")
    assert demo.lines(f"cite {RELEASE}")[0].endswith(" [gone: Superseded]")
    demo.ok("unpublish 102.100.272/D7J1G0DQH")
    refused(demo("cite 102.100.272/D7J1G0DQH"), "is unpublished", code=3)
    refused(demo("cite 102.100.272/BCDFGHJKH"), "does not exist", code=3)
    refused(demo("cite 88.1/x"), "This server does not host prefix 88.1", code=3)
    assert demo(f"cite {RELEASE} --style apa").code == 2
    assert demo(f"cite {RELEASE} --resolver nowhere").code == 2


def test_citation_includes_the_query_of_a_cordra_name(demo: Site) -> None:
    name = "2000.01/EEF4DF17361A42E2B975E554663B70C3"
    lower = name.lower()
    assert demo.lines(f"cite 'hdl:{lower}?page=2#top' --style hdl") == [f"hdl:{name}?page=2#top"]


# QR codes, decoded by an independent library


def svg_rows(svg: bytes, pixels: int = 4) -> list[bytes]:
    """The pixels of an SVG that draws dark modules as horizontal lines."""
    root = ET.fromstring(svg)
    scale = float(re.findall(r"scale\((.+?)\)", svg.decode())[-1])
    size = round(float(root.attrib["width"]) / scale)
    modules = [[255] * size for _ in range(size)]
    (path,) = (each.attrib["d"] for each in root.iter() if each.attrib.get("stroke") == "#000")
    x = y = 0.0
    for command, numbers in re.findall(r"([Mmh])([-0-9. ]+)", path):
        steps = [float(number) for number in numbers.split()]
        if command == "M":
            x, y = steps
        elif command == "m":
            x, y = x + steps[0], y + steps[1]
        else:
            for column in range(round(x), round(x + steps[0])):
                modules[int(y)][column] = 0
            x += steps[0]
    wide = [bytes(shade for shade in row for _ in range(pixels)) for row in modules]
    return [row for row in wide for _ in range(pixels)]


def test_qr_code_contains_the_resolver_url(demo: Site, tmp_path: Path) -> None:
    for extension, rows in (("svg", svg_rows), ("png", png_rows)):
        path = tmp_path / f"code.{extension}"
        assert demo.lines(f"qr {RELEASE} -o {path}") == [f"{PUBLIC_URL}/{RELEASE}"]
        assert decoded(rows(path.read_bytes())) == f"{PUBLIC_URL}/{RELEASE}"
        demo.ok(f"qr hdl:{RELEASE} -o {path} --resolver http://resolver.net.au/hdl --scale 3")
        assert decoded(rows(path.read_bytes())) == f"http://resolver.net.au/hdl/{RELEASE}"
    path = tmp_path / "other.png"
    done = demo.ok(f"qr {RELEASE} -o {path} --json").json
    assert done == {
        "handle": RELEASE,
        "url": f"{PUBLIC_URL}/{RELEASE}",
        "file": str(path),
        "format": "png",
        "code": done["code"],
    }


def test_qr_code_of_a_long_unicode_handle_is_readable(tmp_path: Path) -> None:
    demo = site(tmp_path, "--demo")
    demo.ok("namespace add 12345")
    suffix = "Bücher/日本 %?#" + "x" * 300
    demo.ok("create --url https://example.org/", f"12345/{suffix}")
    path = tmp_path / "code.png"
    (url,) = demo.lines(f"qr -o {path} --scale 4", f"12345/{suffix}")
    assert "12345/B%C3%BCcher%2F%E6%97%A5" in url
    assert decoded(png_rows(path.read_bytes())) == url
    demo.ok("create --url https://example.org/", f"12345/{'é' * 1000}")
    refused(demo(f"qr -o {path}", f"12345/{'é' * 1000}"), "too long for a QR code", code=1)


def test_qr_code_is_written_to_standard_output_by_default(demo: Site) -> None:
    svg = demo.ok(f"qr {RELEASE}").out
    assert svg == demo.ok(f"qr {RELEASE} -o -").out
    assert decoded(svg_rows(svg.encode())) == f"{PUBLIC_URL}/{RELEASE}"
    assert demo(f"qr {RELEASE} --json").code == 2
    refused(demo(f"qr {RELEASE} --scale 21"), "--scale", "20", code=2)


def test_qr_code_of_a_reserved_handle(tmp_path: Path) -> None:
    demo = site(tmp_path, "--demo")
    (name,) = demo.lines("reserve 102.100.272 --count 1")
    assert demo.lines(f"qr {name} -o {tmp_path}/a.svg") == [f"hdl:{name}"]
    refused(demo(f"qr {name} -o {tmp_path}/a.svg --as 300:12345/ann"), "does not exist", code=3)


def test_qr_code_of_a_handle_from_a_template(tmp_path: Path) -> None:
    here = site(tmp_path, "--prefix", "12345")
    (tmp_path / "template").write_text(
        '<n><template delimiter="@"><foreach><value data="${data}#${extension}"/></foreach></template></n>'
    )
    here.ok("create 12345/a --url https://example.org/a")
    refused(here(f"qr 12345/a@Page -o {tmp_path}/a.svg"), "Handle 12345/a@Page does not exist", code=3)
    here.ok(f"add 0.NA/12345 50:HS_NAMESPACE=@{tmp_path / 'template'}")
    done = here.ok(f"qr 12345/a@Page -o {tmp_path}/a.svg --json").json
    assert [done["url"]] == here.lines("cite 12345/a@Page --style hdl")
    assert done["handle"] == "12345/a@Page"
    refused(here(f"qr 12345/b -o {tmp_path}/a.svg"), "Handle 12345/b does not exist", code=3)


def test_qr_code_includes_query_and_fragment_of_a_cordra_name(demo: Site, tmp_path: Path) -> None:
    name = "2000.01/EEF4DF17361A42E2B975E554663B70C3"
    for text in (f"hdl:{name}?page=2#top", f"{name}?page=2#top"):
        assert demo.lines(f"qr -o {tmp_path}/a.svg", text) == demo.lines("cite --style http", text)


def test_invalid_qr_code_requests_are_refused(demo: Site, tmp_path: Path) -> None:
    refused(demo(f"qr 102.100.272/BCDFGHJKH -o {tmp_path}/a.svg"), "does not exist", code=3)
    assert demo(f"qr {RELEASE} -o {tmp_path}/a.gif").code == 2
    assert demo(f"qr {RELEASE} -o {tmp_path}/a --format png").code == 0
    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")
    assert demo(f"qr {RELEASE} -o {tmp_path}/a.svg --scale 101").code == 2
    refused(demo(f"qr {RELEASE} -o {tmp_path}/none/a.svg"), "No such file", code=1)

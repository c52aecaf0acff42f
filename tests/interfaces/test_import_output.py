"""`perseid import` prints the same on an installation and on a server."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from perseid.client.api import Client, make_options
from perseid.client.errors import Refused
from perseid.registry.advice import AdviceKind
from perseid.schema.imports import ImportQuery
from tests.client.in_process import URL, InProcess
from tests.interfaces.test_same_output import Copy, run_remotely
from tests.server.http.v1.interfaces import both_interfaces
from tests.server.installations import ADMINISTRATOR, SECRET

GOOD: Final = "handle,URL,TITLE\n12345/i1,https://a.example/,=1\n12345/i2,https://b.example/,B\n"
BAD: Final = (
    "handle,URL\n12345/j1,https://a.example/\n12345/j2,nowhere\n12345/j1,https://b.example/\nj3,https://c.example/\n"
)
SHELF: Final = "handle,Shelf mark\n12345/s,A 1\n"
MINTED: Final = "URL\nhttps://m.example/1\nhttps://m.example/2\n"

COMMANDS: Final = (
    "import shelf.csv --yes",
    "import empty.csv --yes",
    "import good.csv --dry-run",
    "import good.csv",
    "import good.csv --yes --note why",
    "import bad.csv --yes",
    "import bad.csv --yes --report FOLDER.csv",
    "import bad.csv --yes --skip-invalid",
    "import good.csv --on-existing skip",
    "import good.csv --on-existing update",
    "import changed.csv --on-existing update --dry-run",
    "import changed.csv --on-existing update --yes",
    "undo last --yes",
    "import minted.csv --mint --prefix 12345 --yes -o FOLDER.minted",
    "jobs list",
    "jobs show",
    "resolve 12345/i1",
)


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_imports_print_the_same_on_a_server(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = GOOD.replace("a.example", "changed.example")
    files = {"good": GOOD, "bad": BAD, "changed": changed, "minted": MINTED, "shelf": SHELF, "empty": ""}
    for name, text in files.items():
        Path(f"{name}.csv").write_text(text, encoding="utf-8")
    local, remote = Copy(), Copy()
    with both_interfaces() as both:
        both.server.registry.spool = tmp_path / "spool"
        for command in COMMANDS:
            results = []
            for copy, run in (
                (local, partial(both.site, stdin=b"")),
                (remote, partial(run_remotely, both)),
            ):
                more = (*options, "--as", ADMINISTRATOR) if copy is local else options
                done = run(command.replace("FOLDER", "out"), *more)
                written = [path.read_text(encoding="utf-8-sig") for path in sorted(tmp_path.glob("out.*"))]
                for path in tmp_path.glob("out.*"):
                    path.unlink()
                results.append((*copy.normalize(done), [len(text.splitlines()) for text in written]))
            assert results[0] == results[1], command
        left = [path.name for path in (tmp_path / "spool").glob("*/rows")]
    assert left == [], "nothing is left"


def test_advice_about_files_is_that_of_each_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shelf.csv").write_text(SHELF, encoding="utf-8")
    Path("bad.csv").write_text(BAD, encoding="utf-8")
    with both_interfaces() as both:
        both.server.registry.spool = tmp_path / "spool"
        for run in (partial(both.site, stdin=b""), partial(run_remotely, both)):
            unreadable = run("import shelf.csv --yes")
            assert (unreadable.code, "--map 'Shelf mark'=TYPE" in unreadable.err) == (2, True)
            done = run("import bad.csv --yes --report out.csv")
            assert done.code == 4
            report = Path("out.csv").read_text(encoding="utf-8-sig")
            assert AdviceKind.NAME_ROW_PREFIX.value in report, "a report can be used at every interface"
            assert "use --prefix PREFIX" in run("import bad.csv --yes").shown


def test_interrupted_check_leaves_no_file_at_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.server.http.v1.routes.imports.FIRST_SECONDS", 0)
    seen: list[int] = []

    def interrupt(rows: int) -> None:
        seen.append(rows)
        raise KeyboardInterrupt

    with both_interfaces() as both:
        both.server.registry.spool = tmp_path / "spool"
        with Client(make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET}), InProcess(both.server)) as client:
            with pytest.raises(KeyboardInterrupt):
                client.check_import(io.BytesIO(GOOD.encode()), ImportQuery(name="t.csv"), interrupt)
            assert (len(seen), client.pending_imports().imports) == (1, [])


def test_client_imports_a_file(tmp_path: Path) -> None:
    path = tmp_path / "good.csv"
    path.write_text(GOOD, encoding="utf-8")
    with both_interfaces() as both:
        both.server.registry.spool = tmp_path / "spool"
        with Client(make_options(URL, {"identity": ADMINISTRATOR, "secret": SECRET}), InProcess(both.server)) as client:
            assert client.import_file(path, note="why").done == 2
            with pytest.raises(Refused, match="2 of 2 rows are invalid"):
                client.import_file(path)
            with pytest.raises(Refused, match=r"^The file has no rows$"):
                client.import_file(io.BytesIO(b"handle,URL\n"))
            with pytest.raises(Refused) as caught:
                client.import_file(io.BytesIO(b"handle,Shelf mark\n12345/s,A 1\n"), ImportQuery(name="s.csv"))
            assert 'ImportQuery(map=("Shelf mark=TYPE",))' in caught.value.advice
            query = ImportQuery(name="m.csv", mint=True, prefix="12345")
            job = client.import_file(io.BytesIO(MINTED.encode()), query)
            to = io.BytesIO()
            client.write_minted(job.job, to)
            rows = [*csv.DictReader(io.StringIO(to.getvalue().decode("utf-8-sig")))]
            assert [row["URL"] for row in rows] == ["https://m.example/1", "https://m.example/2"]
            assert client.resolve(rows[0]["handle"]).values[0].data.value == "https://m.example/1"

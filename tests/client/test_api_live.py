"""The client of the HTTP API over real connections: plain, TLS, client certificates, events."""

import asyncio
import hashlib
import io
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

import perseid
from perseid.client.errors import ProtocolError, Refused, Unreachable
from perseid.records.encoding import to_base64
from perseid.schema.imports import ImportQuery, ImportResponse, ImportState
from perseid.schema.jobs import JobState
from perseid.schema.queries import Selectors
from perseid.schema.records import ValueInput
from tests.server.http.client_certificates import UID, certificate, library_key
from tests.server.http.raw import NO_LIMITS
from tests.server.installations import ADMINISTRATOR, SECRET, copy_to
from tests.server.running import Serving, serving
from tests.wire.key_material import RSA_KEY

OWN = "300:12345/certified"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory, **NO_LIMITS) as running:
        yield running


def url(server: Serving, scheme: str = "https") -> str:
    return f"{scheme}://127.0.0.1:{server.http[1]}"


def test_self_signed_server_is_trusted_by_file_or_fingerprint(server: Serving, directory: Path) -> None:
    pem = directory / "keys" / "https.pem"
    with perseid.connect(url(server), ca_file=pem) as client:
        assert client.resolve("12345/n0").handle == "12345/n0"
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.read_text())).hexdigest()
    written = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)).upper()
    with perseid.connect(url(server), fingerprint=written, identity=ADMINISTRATOR, secret=SECRET) as client:
        assert client.publish("12345/n0").handle == "12345/n0"
    with (
        perseid.connect(url(server), fingerprint="ab" * 32, token="t") as client,
        pytest.raises(ProtocolError, match=digest),
    ):
        client.resolve("12345/n0")
    with perseid.connect(url(server), token="t") as client, pytest.raises(Unreachable) as caught:
        client.resolve("12345/n0")
    assert "certificate is not trusted" in caught.value.detail
    assert "fingerprint" in caught.value.advice


def test_certificate_of_the_client_proves_its_identity(server: Serving, directory: Path, tmp_path: Path) -> None:
    with perseid.connect(url(server, "http"), identity=ADMINISTRATOR, secret=SECRET) as admin:
        public = ValueInput("HS_PUBKEY", f"base64:{to_base64(RSA_KEY.public.to_bytes())}", index=300)
        admin.create("12345/certified", [public, ValueInput("HS_ADMIN", OWN, index=100)])
    file = tmp_path / "own.pem"
    key = library_key(RSA_KEY).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(key + ssl.DER_cert_to_PEM_cert(certificate((UID, OWN), key=RSA_KEY)).encode())
    with perseid.connect(url(server), certificate=file, ca_file=directory / "keys" / "https.pem") as client:
        client.set("12345/certified", {"URL": "https://example.org/"})
        assert next(iter(client.history("12345/certified"))).actor == OWN


def test_warning_names_the_call_that_fixes_it(server: Serving) -> None:
    with perseid.connect(url(server, "http"), identity=ADMINISTRATOR, secret=SECRET) as client:
        (warning,) = client.create("12345/alias", {"HS_ALIAS": "12345/none"}).warnings
        fixed = client.create("12345/none", {"URL": "https://example.org/"})
    assert (warning.code, warning.rule, warning.parameters["target"]) == ("alias_target", "S2", fixed.handle)
    assert warning.advice == "Correct the alias, or create the record: client.create('12345/none', values)"


def test_many_requests_and_events_at_once(server: Serving) -> None:
    async def use() -> None:
        options = {"identity": ADMINISTRATOR, "secret": SECRET}
        async with perseid.connect_async(url(server, "http"), **options) as client:  # type: ignore[arg-type]
            found = await asyncio.gather(*[client.resolve(f"12345/n{number}") for number in range(40)])
            assert [each.handle for each in found] == [f"12345/n{number}" for number in range(40)]
            job = await client.rewrite(Selectors(url="https://example.org/2*"), "https://example.net/2*")
            assert (await client.wait(job.job)).state is JobState.DONE
            assert [each.state async for each in client.watch(job.job)] == [JobState.DONE]

    asyncio.run(use())


def test_dots_in_a_path_arrive_as_they_are(server: Serving) -> None:
    with perseid.connect(url(server, "http"), identity=ADMINISTRATOR, secret=SECRET) as client:
        assert client.create("12345/..").handle == "12345/.."
        assert client.resolve("12345/..").handle == "12345/.."
        for name in (".", ".."):
            with pytest.raises(Refused) as caught:
                client.resolve(name)
            assert caught.value.problem_type == "invalid-name"

    async def use() -> None:
        async with perseid.connect_async(url(server, "http")) as client:
            assert (await client.resolve("12345/..")).handle == "12345/.."
            with pytest.raises(Refused) as caught:
                await client.resolve("..")
            assert caught.value.problem_type == "invalid-name"

    asyncio.run(use())


def test_server_that_does_not_run_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseid.client.api.time.sleep", lambda _: None)
    with (
        perseid.connect("http://127.0.0.1:9", token="t") as client,
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"),
    ):
        client.resolve("12345/n0")


def test_interrupted_check_of_the_asynchronous_client_leaves_no_file(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def interrupt(rows: int) -> None:
        seen.append(rows)
        raise KeyError

    async def use() -> None:
        options = {"identity": ADMINISTRATOR, "secret": SECRET}
        async with perseid.connect_async(url(server, "http"), **options) as client:  # type: ignore[arg-type]
            create, before = client.create_import, len((await client.pending_imports()).imports)

            async def create_slowly(file: BinaryIO, query: ImportQuery) -> ImportResponse:
                return replace(await create(file, query), state=ImportState.CHECKING)

            monkeypatch.setattr(client, "create_import", create_slowly)
            with pytest.raises(KeyError):
                await client.check_import(io.BytesIO(b"handle,URL\n12345/i,nowhere\n"), ImportQuery(), interrupt)
            assert (len(seen), len((await client.pending_imports()).imports)) == (1, before)

    asyncio.run(use())


def test_file_is_imported_with_the_asynchronous_client(server: Serving, tmp_path: Path) -> None:
    async def use() -> None:
        options = {"identity": ADMINISTRATOR, "secret": SECRET}
        async with perseid.connect_async(url(server, "http"), **options) as client:  # type: ignore[arg-type]
            table = b"handle,URL\n12345/as-1,https://a.example/\n12345/as-2,nowhere\n"
            with pytest.raises(Refused):
                await client.import_file(io.BytesIO(table), ImportQuery(name="t.csv"))
            checked = await client.check_import(io.BytesIO(table), ImportQuery(name="t.csv"))
            assert (checked.valid, checked.invalid) == (1, 1)
            unnamed = await client.check_import(io.BytesIO(b"handle,URL\n,https://a.example/\n"), ImportQuery())
            fixes = [problem.fix async for problem in client.import_problems(unnamed.id)]
            assert fixes == ["Enter the handle, or mint handles: ImportQuery(mint=True, prefix=PREFIX)"]
            report = io.BytesIO()
            await client.write_import_report(checked.id, report)
            assert b"12345/as-2,nowhere" in report.getvalue()
            job = await client.import_file(io.BytesIO(table), ImportQuery(name="t.csv", skip_invalid=True))
            assert (job.state, job.done) == (JobState.DONE, 1)
            assert (await client.resolve("12345/as-1")).handle == "12345/as-1"
            query = ImportQuery(name="m.csv", prefix="12345", mint=True)
            minted = await client.import_file(io.BytesIO(b"URL\nhttps://m.example/\n"), query)
            written = io.BytesIO()
            await client.write_minted(minted.job, written)
            assert b"https://m.example/" in written.getvalue()
            assert b"12345/" in written.getvalue()
            path = tmp_path / "p.csv"
            path.write_text("URL\nhttps://p.example/\n")
            named = await client.import_file(path, ImportQuery(prefix="12345", mint=True))
            assert named.parameters["file"] == "p.csv", "also with a query"

    asyncio.run(use())


def test_clients_apply_only_the_check_that_they_have_seen(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has the file checked again, with other options, before it is applied."""
    options = {"identity": ADMINISTRATOR, "secret": SECRET}
    query, table = ImportQuery(name="t.csv"), b"handle,URL\n12345/again,https://a.example/\n"

    async def use(other: perseid.client.Client) -> None:
        async with perseid.connect_async(url(server, "http"), **options) as client:  # type: ignore[arg-type]
            check = client.check_import

            async def check_twice(file: BinaryIO, query: ImportQuery) -> ImportResponse:
                found = await check(file, query)
                other.recheck_import(found.id, replace(query, skip_invalid=True))
                return found

            monkeypatch.setattr(client, "check_import", check_twice)
            with pytest.raises(Refused, match="was checked again"):
                await client.import_file(io.BytesIO(table), query)

    with perseid.connect(url(server, "http"), **options) as client:  # type: ignore[arg-type]
        asyncio.run(use(client))
        check = client.check_import

        def check_twice(file: BinaryIO, query: ImportQuery) -> ImportResponse:
            found = check(file, query)
            client.recheck_import(found.id, replace(query, skip_invalid=True))
            return found

        monkeypatch.setattr(client, "check_import", check_twice)
        with pytest.raises(Refused, match="was checked again"):
            client.import_file(io.BytesIO(table), query)

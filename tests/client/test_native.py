"""The native client against a running server, with blocking sockets and with asyncio."""

import asyncio
import gc
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perseid.client import native_exchange
from perseid.client import native_operations as operations
from perseid.client.errors import ClientError, NotFound, ProtocolError, Refused, UnknownOutcome, Unreachable
from perseid.client.native import NativeClient
from perseid.client.native_async import AsyncNativeClient
from perseid.client.native_exchange import WINDOW
from perseid.client.native_site import SiteClient
from perseid.records.record import Value
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode
from tests.server.live_servers import MANY, NAMES, UNHOMED, WHO, live_installation
from tests.server.native.native_servers import BY_ADMINS, HIDDEN, PREFIX
from tests.server.running import Serving, serving

URL = Value.text(1, "URL", "https://example.org/")
NOTE = Value(50, "NOTE", b"for administrators", permissions=HIDDEN)
SESSIONS = 8
CREATES = 10
SECRET_OF = {"identity": WHO["secret"][0], "key": WHO["secret"][1]}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory() as folder, serving(live_installation(Path(folder))) as running:
        yield running


@pytest.mark.parametrize("who", WHO)
def test_an_administrator_with_any_key_does_everything(server: Serving, who: str) -> None:
    identity, key = WHO[who]
    name = f"{PREFIX}/by-{who}"
    with NativeClient(*server.native, identity=identity, key=key) as client:
        assert client.create(name, [URL, NOTE, BY_ADMINS]) == name
        client.add(name, [Value.text(2, "EMAIL", "a@example.org")])
        client.modify(name, [Value.text(2, "EMAIL", "b@example.org")])
        assert [value.data for value in client.resolve(name, types=["EMAIL"])] == [b"b@example.org"]
        assert [value.index for value in client.resolve(name)] == [1, 2, 100]
        assert [value.data for value in client.resolve(name, indexes=[50], private=True)] == [NOTE.data]
        client.remove(name, [2])
        client.delete(name)
        with pytest.raises(NotFound):
            client.resolve(name)
        assert client.list_handles(MANY) == list(NAMES)
        client.home(UNHOMED[0])
        assert f"0.NA/{UNHOMED[0]}" in client.list_prefixes()
        client.unhome(UNHOMED[0])
        assert f"0.NA/{UNHOMED[0]}" not in client.list_prefixes()
        assert client.site().servers[0].key == client.server_key


def test_long_lists_are_visited_without_being_kept(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[str] = []
    whole: Any = operations.list_handles(MANY)
    visit: Any = operations.visit_handles(MANY, visited.append)
    with NativeClient(*server.native, **SECRET_OF) as client:  # type: ignore[arg-type]
        assert client.do(replace(whole, read=len)) > 1, "messages of the response"
        assert client.do(replace(visit, read=len)) == 1
        assert visited == list(NAMES)
        visited.clear()
        client.visit_handles(MANY, visited.append)
        assert visited == list(NAMES)
        with pytest.raises(Refused):
            client.visit_handles(UNHOMED[0], visited.append)
        assert len(visited) == len(NAMES)
        # A visitor can stop; the client works on.
        with pytest.raises(ZeroDivisionError):
            client.visit_handles(MANY, lambda _: visited.append(str(1 / 0)))
        assert client.resolve(f"{PREFIX}/vec-std")
        # A response that does not end is given up, unless it is visited.
        monkeypatch.setattr(native_exchange, "MAX_KEPT", client.do(replace(whole, read=_longest)) + 1)
        with pytest.raises(ProtocolError, match="more than"):
            client.list_handles(MANY)
        client.visit_handles(MANY, visited.append)
        assert len(visited) == 2 * len(NAMES)


def _longest(responses: list[VerifiedResponse]) -> int:
    return max(response.message.envelope.length for response in responses)


REFUSALS = {
    "exists": (operations.create(f"{PREFIX}/vec-std", [URL]), Refused, 101, "already-exists"),
    "not hosted": (operations.create("20.500.1/x", [URL]), Refused, 301, "prefix-not-hosted"),
    "missing": (operations.delete(f"{PREFIX}/missing"), NotFound, 100, "not-found"),
    "no such value": (operations.remove(f"{PREFIX}/vec-std", [77]), NotFound, 200, "not-found"),
    "not an administrator": (operations.delete(f"{PREFIX}/foreign"), Refused, 400, "permission-denied"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_has_its_code_and_problem_type(server: Serving, case: str) -> None:
    operation, kind, code, problem_type = REFUSALS[case]
    with NativeClient(*server.native, **SECRET_OF) as client, pytest.raises(kind) as caught:  # type: ignore[arg-type]
        client.do(operation)
    assert (type(caught.value), caught.value.code, caught.value.problem_type) == (kind, code, problem_type)
    assert caught.value.detail


def test_a_wrong_secret_and_no_identity_are_refused(server: Serving) -> None:
    with NativeClient(*server.native, identity=WHO["secret"][0], key="wrong") as client:
        with pytest.raises(Refused) as caught:
            client.delete(f"{PREFIX}/vec-std")
        assert caught.value.problem_type == "authentication-failed"
    with NativeClient(*server.native) as client:
        with pytest.raises(Refused) as caught:
            client.delete(f"{PREFIX}/vec-std")
        assert caught.value.problem_type == "authentication-required"
    with pytest.raises(ValueError, match="needs its key"):
        NativeClient(*server.native, identity=WHO["secret"][0])


def test_eight_sessions_create_at_the_same_time(server: Serving) -> None:
    def run(number: int) -> list[str | ClientError]:
        with NativeClient(*server.native, **SECRET_OF) as client:  # type: ignore[arg-type]
            names = [f"{PREFIX}/session-{number}-{each}" for each in range(CREATES)]
            return list(client.do_many([operations.create(name, [URL]) for name in names]))

    with ThreadPoolExecutor(SESSIONS) as pool:
        results = [result for some in pool.map(run, range(SESSIONS)) for result in some]
    assert results == [f"{PREFIX}/session-{number}-{each}" for number in range(SESSIONS) for each in range(CREATES)]


def test_results_are_in_the_order_of_the_operations_with_errors_in_between(server: Serving) -> None:
    names = ["order-1", "vec-std", "order-2"]
    with NativeClient(*server.native, **SECRET_OF) as client:  # type: ignore[arg-type]
        first, refused, second = client.do_many([operations.create(f"{PREFIX}/{name}", [URL]) for name in names])
    assert (first, second) == (f"{PREFIX}/order-1", f"{PREFIX}/order-2")
    assert isinstance(refused, Refused)


def test_with_asyncio_operations_share_one_client(server: Serving) -> None:
    asyncio.run(_share_one_client(server))


async def _share_one_client(server: Serving) -> None:
    name = f"{PREFIX}/async"
    async with AsyncNativeClient(*server.native, **SECRET_OF) as client:  # type: ignore[arg-type]
        names = [f"{name}-{number}" for number in range(20)]
        assert await asyncio.gather(*[client.create(each, [URL]) for each in names]) == names
        wanted = [operations.create(each, [URL, BY_ADMINS]) for each in ("", name)]
        refused, made = [result async for result in client.do_many(wanted)]
        assert isinstance(refused, Refused)
        assert made == name
        await client.create(name, [URL, BY_ADMINS], overwrite=True)
        await client.add(name, [Value.text(2, "EMAIL", "a@example.org")])
        await client.modify(name, [Value.text(2, "EMAIL", "b@example.org")])
        assert [value.data for value in await client.resolve(name, types=["EMAIL"])] == [b"b@example.org"]
        await client.remove(name, [2])
        await client.delete(name)
        with pytest.raises(NotFound):
            await client.resolve(name)
        assert await client.list_handles(MANY) == list(NAMES)
        visited: list[str] = []
        await client.visit_handles(MANY, visited.append)
        assert visited == list(NAMES)
        await client.home(UNHOMED[1])
        assert f"0.NA/{UNHOMED[1]}" in await client.list_prefixes()
        await client.unhome(UNHOMED[1])
        assert (await client.site()).servers[0].key == await client.server_key()


@pytest.fixture
def closing_port() -> Iterator[int]:
    """A port where every connection is closed after the first bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                client.recv(65_536)
                client.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_server_that_answers_nothing_is_unreachable(closing_port: int) -> None:
    with NativeClient("127.0.0.1", closing_port) as client, pytest.raises(Unreachable, match="closed the connection"):
        client.site()

    async def run() -> None:
        async with AsyncNativeClient("127.0.0.1", closing_port) as client:
            await client.site()

    with pytest.raises(Unreachable, match="closed the connection"):
        asyncio.run(run())


def test_a_port_where_nobody_listens_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with NativeClient("127.0.0.1", port) as client, pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        client.site()

    async def run() -> None:
        async with AsyncNativeClient("127.0.0.1", port) as client:
            await client.site()

    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
        asyncio.run(run())


def test_each_operation_has_the_error_of_its_site() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with SiteClient("127.0.0.1", port) as client:
        results = list(client.do_many(operations.resolve(f"12345/{number}") for number in range(3)))
    assert [type(result) for result in results] == [Unreachable] * 3


def test_a_server_that_does_not_describe_its_site_is_the_only_one(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key must be pinned, as nothing else says that it is the right one."""
    with NativeClient(*server.native) as client:
        key = client.site().servers[0].key
    unknown = replace(operations.site_information(), opcode=OpCode.LIST_HOMED_NAS)
    monkeypatch.setattr(operations, "site_information", lambda: unknown)
    identity, secret = WHO["secret"]
    with SiteClient(*server.native, server_key=key, identity=identity, key=secret) as client:
        assert set(client.list_handles(MANY)) == set(NAMES)
    with SiteClient(*server.native, identity=identity, key=secret) as client, pytest.raises(ClientError):
        client.list_handles(MANY)


def test_a_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with NativeClient("127.0.0.1", port, timeout=0.05) as client, pytest.raises(Unreachable, match="no answer"):
            client.site()

        async def run() -> None:
            async with AsyncNativeClient("127.0.0.1", port, timeout=0.05) as client:
                await client.site()

        with pytest.raises(Unreachable, match="no answer"):
            asyncio.run(run())


# Closing while operations run


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def many_creates(name: str) -> list[operations.Operation[str]]:
    return [operations.create(f"{PREFIX}/{name}-{number}", [URL]) for number in range(200)]


def check_closed(results: list[str | ClientError], before: int) -> None:
    """Some were done, some may have been, and the others were not sent."""
    kinds = [type(each) for each in results]
    assert len(kinds) == 200
    assert set(kinds) == {str, UnknownOutcome, Unreachable}
    assert all("the client was closed" in str(each) for each in results if isinstance(each, ClientError))
    assert kinds.count(UnknownOutcome) <= WINDOW
    assert open_files() == before


def test_operations_that_run_when_their_client_is_closed_end_with_an_error(server: Serving) -> None:
    before = open_files()
    client = NativeClient(*server.native, **SECRET_OF)  # type: ignore[arg-type]
    running = client.do_many(many_creates("closed"))
    first = next(running)
    client.close()
    check_closed([first, *running], before)
    client.close()
    with pytest.raises(Unreachable, match="the client was closed"):
        client.site()


def test_asynchronous_operations_end_too(server: Serving) -> None:
    before = open_files()

    async def run() -> list[str | ClientError]:
        client = AsyncNativeClient(*server.native, **SECRET_OF)  # type: ignore[arg-type]
        first = asyncio.Event()

        async def create_all() -> list[str | ClientError]:
            results = []
            async for result in client.do_many(many_creates("async-closed")):
                results.append(result)
                first.set()
            return results

        task = asyncio.create_task(create_all())
        await first.wait()
        await client.close()
        await client.close()
        with pytest.raises(Unreachable, match="the client was closed"):
            await client.site()
        assert asyncio.all_tasks() <= {asyncio.current_task(), task}
        return await task

    check_closed(asyncio.run(run()), before)


def test_a_client_that_waits_can_be_closed_by_another_thread_or_task() -> None:
    before = open_files()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        address = listener.getsockname()
        client = NativeClient(*address)
        waiting = pool.submit(client.site)
        silent, _ = listener.accept()
        silent.recv(1)  # so the client waits for an answer now, or will
        client.close()
        silent.close()
        with pytest.raises(Unreachable, match="the client was closed"):
            waiting.result(30)

        async def run() -> None:
            client = AsyncNativeClient(*address)
            waiting = asyncio.create_task(client.site())
            await asyncio.sleep(0)  # it is connecting
            await client.close()
            await waiting

        with pytest.raises(Unreachable, match="the client was closed"):
            asyncio.run(run())
    assert open_files() == before

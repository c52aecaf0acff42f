"""The connections to the writer: what waits, what is sent again, and what is refused without one."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perseid.ledger.errors import LedgerError, OutcomeUnknown, StorageFull, TooBusy
from perseid.ledger.log import commit
from perseid.ledger.log.entry import Action
from perseid.ledger.log.requests import Appended, Outcome, Request
from perseid.ledger.views.search_keys import exact_url_range
from perseid.registry import codec
from perseid.registry.codec import encode_request
from perseid.registry.commands.records import Create
from perseid.server.processes import remote_ledger
from perseid.server.processes.remote_ledger import SOCKET_NAME, FrameReader
from tests.ledger.ledgers import change
from tests.registry.registries import OPERATOR, handle
from tests.server.processes.writers import URL, as_loop_future, disconnect, folder, remote, size_of, until, writing

__all__ = ["folder"]


def test_requests_of_one_iteration_of_the_loop_are_committed_together(folder: Path) -> None:
    """The writer is woken once for all of them; of many it gets a part early, so that it does not wait for the last."""
    with writing(folder), remote(folder) as registry:

        def submit(count: int) -> "Iterator[asyncio.Future[Outcome]]":
            before = size_of(registry.ledger)
            for number in range(1, count + 1):
                yield as_loop_future(registry.ledger.submit(change(f"{count}-{number}"))[0])
                time.sleep(0.02)  # long enough to commit it alone
                if number == remote_ledger.MAX_UNSENT:
                    until(lambda: size_of(registry.ledger) > before)

        async def commits(count: int) -> int:
            outcomes = await asyncio.gather(*submit(count))
            return len({outcome.at for outcome in outcomes if isinstance(outcome, Appended)})

        async def scenario() -> None:
            assert [await commits(1), await commits(4), await commits(remote_ledger.MAX_UNSENT + 2)] == [1, 1, 2]
            disconnect(registry)

        asyncio.run(scenario())


def test_connection_of_a_thread_ends_with_it(folder: Path) -> None:
    def count_sockets() -> int:
        return sum(
            os.path.realpath(file).rpartition("/")[2].startswith("socket:") for file in os.scandir("/proc/self/fd")
        )

    with writing(folder), remote(folder) as registry:
        before = count_sockets()
        for number in range(2):
            create = Create(handle(f"12345/{number}"), (URL,))
            thread = threading.Thread(target=registry.do, args=(create, OPERATOR, "cli"))
            thread.start()
            thread.join()
            assert registry.ledger.find(b"12345/%d" % number) is not None
        until(lambda: count_sockets() == before)


def test_step_that_was_prepared_is_encoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps of a job, the writer does not wait for the second one to be encoded."""
    encoded: list[object] = []

    def spy(request: Request) -> bytes:
        encoded.append(request)
        return encode_request(request)

    monkeypatch.setattr(remote_ledger, "encode_request", spy)
    with writing(folder), remote(folder) as registry:
        create = registry.execution(Create(handle("12345/prepared"), (URL,)), OPERATOR, "cli")
        other = registry.execution(Create(handle("12345/other"), (URL,)), OPERATOR, "cli")
        assert create.decide_ahead()
        with ThreadPoolExecutor(1) as pool:  # what another thread appends meanwhile
            pool.submit(other.complete).result()
        create.complete()
        assert len(encoded) == 2
        assert {registry.ledger.find(b"12345/" + name) is None for name in (b"prepared", b"other")} == {False}


def test_search_keys_of_many_records_come_with_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "index_keys", None)  # in the writer, too
    step = change("a", URL, action=Action.CREATE), change("b", URL, action=Action.CREATE)
    with writing(folder), remote(folder) as registry:
        (outcome,) = registry.ledger.append(replace(step[0], more=(step[1].draft,)))
        assert isinstance(outcome, Appended)
        with registry.ledger.open_reader() as reader:
            urls = exact_url_range(URL.data)
            found, _ = reader.find_by_keys(urls.first, urls.end, 9)
        assert [entry.handle for _, entry in found] == ["10.1/a", "10.1/b"]


def test_without_a_writer_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    with remote(folder) as registry:
        with pytest.raises(TooBusy, match="the writer is not running"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with pytest.raises(TooBusy, match="the writer is not running"):
            asyncio.run(registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli"))
        (folder / "run" / "writer.state").write_bytes(b"\x82\xa4kind\xabStorageFull\xa7message\xa4full")
        registry.ledger._state_until = 0.0  # type: ignore[attr-defined]
        monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 1e9)  # a known problem is reported at once
        with pytest.raises(StorageFull, match="full"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with pytest.raises(StorageFull, match="full"):
            asyncio.run(registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli"))


def test_writer_of_another_release_is_reported_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(folder), remote(folder) as registry:
        until((folder / "run" / SOCKET_NAME).exists)
        monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
        with pytest.raises(LedgerError, match=r"different releases: .* Nothing was written"):
            registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")

        async def create() -> None:
            with pytest.raises(LedgerError, match=r"different releases: .* Nothing was written"):
                await registry.execute(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
            disconnect(registry)

        asyncio.run(create())


@contextmanager
def silent_writer(folder: Path, *, closes: bool = False) -> Iterator[list[bytes]]:
    """A writer that never replies, and what it has read."""
    read: list[bytes] = []

    async def serve_connection(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        read.append(b"")
        try:
            while data := await reader.read(1 << 20):
                read[-1] += data
                if closes:
                    break
        finally:
            out.transport.abort()

    async def end() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_unix_server(serve_connection, folder / "run" / SOCKET_NAME))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield read
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_reconnects_without_a_reply_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(remote_ledger, "LOST_SECONDS", 0.1)
    with silent_writer(folder, closes=True) as read, remote(folder) as registry:

        async def submit() -> None:
            (future,) = registry.ledger.submit(change("a"))
            with pytest.raises(OutcomeUnknown, match="the connection to the writer was lost"):
                await as_loop_future(future)

        asyncio.run(submit())
        assert 1 < len(read) <= 5


def test_sent_request_waits_for_the_next_writer_longer_than_one_that_can_be_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a writer knows the outcome of the first; nothing happens to the second, which can be repeated."""
    monkeypatch.setattr(remote_ledger, "RECONNECT_SECONDS", 0.05)
    with remote(folder) as registry, ExitStack() as stack:
        read = stack.enter_context(silent_writer(folder))

        async def submit() -> None:
            (sent,) = map(as_loop_future, registry.ledger.submit(change("a")))
            await asyncio.to_thread(until, lambda: bool(read and read[0]))
            stack.close()
            await asyncio.sleep(0.1)  # what is sent before the loop knows that the writer has gone counts as sent
            for _ in range(2):
                (refused,) = map(as_loop_future, registry.ledger.submit(change("b")))
                with pytest.raises(TooBusy, match=r"the writer is not running\. Nothing was written"):
                    await refused
            assert not sent.done()
            with writing(folder):
                assert isinstance(await sent, Appended)
                disconnect(registry)

        asyncio.run(submit())


def test_disconnecting_fails_what_has_no_outcome(folder: Path) -> None:
    """Nothing is sent again to the writer, which still runs; a canceled request is never sent."""
    with silent_writer(folder) as read, remote(folder) as registry:

        async def submit() -> None:
            canceled, future = map(as_loop_future, registry.ledger.submit(change("a"), change("b")))
            canceled.cancel()
            await asyncio.to_thread(until, lambda: bool(read and read[0]))
            disconnect(registry)
            with pytest.raises(OutcomeUnknown):
                await future
            await asyncio.sleep(2 * remote_ledger.RECONNECT_INTERVAL)

        asyncio.run(submit())
        reader = FrameReader()
        reader.feed(read[0])
        with ThreadPoolExecutor(1) as threads:  # a thread that waits for the writer, too
            failed = threads.submit(registry.ledger.append, change("c"))
            until(lambda: len(read) == 2 and bool(read[1]))
            disconnect(registry)
            with pytest.raises(OutcomeUnknown):
                failed.result(30)
        assert [message for _, message in iter(reader.next, None)] == [encode_request(change("b"))]
        assert len(read) == 2


def test_bytes_that_wait_for_the_writer_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the writer does not read stays out of the buffer of the transport, and is sent later."""
    message = encode_request(change("a"))
    monkeypatch.setattr(remote_ledger, "MAX_WAITING_BYTES", 5_000 * len(message))
    with remote(folder) as registry:

        async def submit() -> None:
            futures = [as_loop_future(registry.ledger.submit(change("a"))[0]) for _ in range(5_000)]
            with pytest.raises(TooBusy, match="queued"):
                registry.ledger.submit(change("a"))
            with writing(folder):
                assert all(isinstance(outcome, Appended) for outcome in await asyncio.gather(*futures))
                registry.ledger.submit(change("a"))
                disconnect(registry)

        asyncio.run(submit())

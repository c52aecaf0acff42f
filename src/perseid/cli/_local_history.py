"""History, proofs and citations of an installation, most with the methods of `perseid.client.Client`."""

import time

from perseid.ledger.merkle import Signer
from perseid.ledger.store.jobs import load_steps
from perseid.names.handle import Handle
from perseid.registry.context import Context
from perseid.registry.installation.installation import CHECKPOINT_KEY, KEYS_NAME
from perseid.registry.jobs.runner import find_job
from perseid.registry.queries import history as past
from perseid.registry.queries import prove
from perseid.registry.queries.log import LogSearch, list_log
from perseid.registry.queries.statistics import list_wanted, read_statistics
from perseid.registry.responses import get_differences, to_entry, to_ledger_key, to_version
from perseid.schema.queries import DifferencesResponse, HistoryPage, LedgerKeys, LogPage, LogQuery
from perseid.schema.statistics import StatisticsPeriod, StatisticsQuery, StatisticsResponse, WantedHandles

from ._local import suggest
from ._local_access import LocalAccess


class LocalHistory(LocalAccess):
    """The history of an open installation."""

    __slots__ = ()

    def read_history(self, handle: str, before: int, limit: int) -> HistoryPage:
        """Return a page of the versions of a record, before an entry; from the newest on for 0."""
        with suggest(self.session.registry, handle), self.session.registry.snapshot() as snapshot:
            name = Handle.parse_lenient(handle)
            page = past.get_history(snapshot, self.session.identity, name, before or None, limit)
        cursor = None if page.before is None else str(page.before)
        return HistoryPage(str(page.handle), [to_version(each) for each in page.versions], page.complete, cursor)

    def differences(self, handle: str, earlier: str, later: str | None = None) -> DifferencesResponse:
        """Compare a record at two times or entries."""
        name, now = Handle.parse_lenient(handle), self._now()
        with suggest(self.session.registry, handle):
            return self._read(lambda context: get_differences(context, name, earlier, later, now))

    def read_log(self, query: LogQuery) -> LogPage:
        """Return a page of the log; its cursor is the number of an entry."""
        registry, identity, steps = self.session.registry, self.session.identity, None
        if query.job:
            steps = load_steps(registry.ledger.log, find_job(registry, identity, query.job).id)
        with registry.snapshot() as snapshot:
            search = LogSearch.of(snapshot.reader, query, self._now(), steps)
            page = list_log(snapshot, identity, int(query.cursor) if query.cursor else None, query.limit, search)
        last, following = (None, str(page.last)) if page.more else (page.last, None)
        return LogPage([to_entry(each) for each in page.items], last, following)

    def statistics(
        self,
        namespace: str | None = None,
        *,
        by: StatisticsPeriod = StatisticsPeriod.DAY,
        since: str | None = None,
        until: str | None = None,
    ) -> StatisticsResponse:
        """Return requests and changes by day, hour or namespace."""
        query, now = StatisticsQuery(namespace, by, since, until), self._now()
        store = self.session.registry.statistics
        return self._read(lambda context: read_statistics(context, store, query, now))

    def wanted(self, namespace: str) -> WantedHandles:
        """Return the identifiers of a namespace that were requested most often and do not exist."""
        store = self.session.registry.statistics
        return self._read(lambda context: list_wanted(context, store, namespace))

    def prove(self, handle: str, *, at: str | None = None, everything: bool = False) -> bytes:
        """Return a proof; sign a checkpoint first if none covers the entry."""
        name = Handle.parse_lenient(handle)

        def read(context: Context) -> prove.Proof:
            snapshot = context.snapshot
            seq = None if at is None else past.seq_at_time(snapshot.reader, at, self._now())
            return prove.prove(snapshot, context.identity, name, seq, public_only=not everything)

        try:
            with suggest(self.session.registry, handle):
                return self._read(read).to_json().encode()
        except prove.NotCheckpointed as missing:
            key = self.session.installation.directory / KEYS_NAME / CHECKPOINT_KEY
            signer = Signer.from_bytes(key.read_bytes())
            prove.ensure_checkpoint(self.session.registry.ledger.log, signer, missing.seq, time.sleep)
        return self._read(read).to_json().encode()

    def ledger_keys(self) -> LedgerKeys:
        """Return the keys that sign checkpoints."""

        def read(context: Context) -> LedgerKeys:
            keys = prove.signing_keys(context.snapshot.reader)
            return LedgerKeys(context.snapshot.reader.origin, str(keys[-1].key), [to_ledger_key(each) for each in keys])

        return self._read(read)

    def _now(self) -> int:
        """The clock in microseconds, as for times that users give."""
        return self.session.registry.ledger.log.clock.now()

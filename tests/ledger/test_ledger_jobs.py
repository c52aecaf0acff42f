"""Stored jobs: queries by index, and jobs of older tables."""

import ast
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import alembic.command
import alembic.config
import pytest
from alembic import op
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, insert, inspect, text

from perseid.ledger.log.log import Log
from perseid.ledger.merkle import Signer
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobOwner, UndoJob
from perseid.ledger.store.migrations import versions
from perseid.ledger.store.migrations.versions import v0005_whose_operations
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import jobs as table
from perseid.names.handle import fold
from perseid.records.record import ValueRef
from perseid.registry.identity import KeyIdentity, Proof, handle_key
from perseid.registry.jobs import runner
from tests.ledger.ledgers import Machine, change, change_state, look, open_store

ACTORS = {"ann": "300:1/ann", "bob": "300:1/bob", "local": "local:ann"}
TOKEN = "token:k7qpx2ma by {}"
PACKAGE = versions.__name__.partition(".")[0]


def new_job(number: int, actor: str, *, undoes: str = "", ended: int = 1, by_token: bool = False) -> Job:
    name = TOKEN.format(actor) if by_token else actor
    return Job(
        f"{number:04}", "test", "{}", undoes, "cli", name, "", started_at=number // 3, ended_at=ended, owner=actor
    )


def put(log: Log, *some: Job) -> None:
    """Write jobs with their own times."""
    names = [column.name for column in table.columns]
    with log.store.writing() as connection:
        connection.execute(insert(table), [{name: getattr(each, name) for name in names} for each in some])


def upgrade_to(connection: Connection, version: str) -> None:
    """Upgrade the tables to an earlier version."""
    config = alembic.config.Config()
    config.set_main_option("script_location", "perseid.ledger.store:migrations")
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, version)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """Jobs of several actors, some with tokens, three of which start at the same time."""
    store = Store.sqlite(tmp_path_factory.mktemp("jobs") / "ledger.db")
    store.upgrade()
    log = Log(store, Machine().clock(), bytes)
    log.create(Signer.generate("x", bytes(32)))
    identity = list(ACTORS.values())
    put(log, *[new_job(number, identity[number % 5 % 3], by_token=number % 4 == 0) for number in range(120)])
    yield log
    store.close()


@settings(max_examples=60)
@given(
    st.one_of(
        st.none(),
        st.builds(
            JobOwner,
            st.sampled_from([*ACTORS.values(), TOKEN.format("300:1/ann"), "300:1/nobody"]),
            st.lists(st.sampled_from([*ACTORS.values(), ""]), max_size=2, unique=True).map(tuple),
        ),
    ),
    st.integers(1, 7) | st.just(1_000),
    st.none() | st.tuples(st.integers(-1, 45), st.sampled_from(["", "0050", "0100", "9999"])),
)
def test_jobs_of_an_owner_are_listed_newest_first(
    filled: Log, owner: JobOwner | None, page_size: int, before: tuple[int, str] | None
) -> None:
    every = list(jobs.newest_first(filled))
    assert len(every) == 120
    expected = [
        each
        for each in sorted(every, key=lambda each: (each.started_at, each.id), reverse=True)
        if (owner is None or owner.owns(each)) and (before is None or (each.started_at, each.id) < before)
    ]
    assert list(jobs.newest_first(filled, before, owner, page_size)) == expected


def test_empty_issuer_does_not_match_jobs_without_an_owner() -> None:
    assert not JobOwner("300:1/ann", ("",)).owns(replace(new_job(1, "300:1/bob"), owner=""))


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda log: next(jobs.newest_first(log, page_size=1)), "jobs_started_at"),
        (lambda log: list(jobs.newest_first(log, (7, "x"), page_size=1)), "jobs_started_at"),
        (lambda log: list(jobs.newest_first(log, (7, "x"), JobOwner("300:1/ann"), 1)), "jobs_actor"),
        (lambda log: list(jobs.newest_first(log, None, JobOwner("x", ("300:1/ann",)), 1)), "jobs_owner"),
        (lambda log: jobs.find_undos(log, ["0001"]), "jobs_undoes"),
    ],
)
def test_job_queries_use_an_index(filled: Log, ask: Callable[[Log], object], index: str) -> None:
    """The cost depends on the result, not on the number of jobs."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    engine = filled.store.engine
    event.listen(engine, "before_cursor_execute", note)
    ask(filled)
    event.remove(engine, "before_cursor_execute", note)
    with filled.store.reading() as connection:
        explained = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each}", values) for each, values in statements]
        plans = [row[3] for found in explained for row in found]
    assert any(index in plan for plan in plans), plans
    assert not [plan for plan in plans if plan.startswith("SCAN jobs") and "USING INDEX" not in plan], plans
    assert not [plan for plan in plans if "TEMP B-TREE FOR ORDER BY" in plan], plans


def test_only_related_undos_are_read(log: Log) -> None:
    put(
        log,
        new_job(1, "a"),
        new_job(2, "a", undoes="0001"),
        new_job(3, "a", undoes="0002"),
        new_job(4, "a", undoes="0001", ended=0),
        new_job(5, "a"),
        new_job(6, "a", undoes="0005"),
    )
    about_one = {UndoJob("0002", "0001", True), UndoJob("0003", "0002", True), UndoJob("0004", "0001", False)}
    assert set(jobs.find_undos(log, ["0001"])) == about_one
    assert jobs.find_undos(log, ["0002"]) == [UndoJob("0003", "0002", True)]
    assert jobs.find_undos(log, ["0003", "", "9999"]) == jobs.find_undos(log, []) == []
    assert set(jobs.find_undos(log, ["0001", "0005"])) == {*about_one, UndoJob("0006", "0005", True)}
    assert set(jobs.list_undos(log)) == {*about_one, UndoJob("0006", "0005", True)}


def test_changes_of_jobs_can_be_repeated(log: Log) -> None:
    """A client repeats a change if the connection to the writer was lost before its outcome arrived."""
    for _ in range(2):
        started = change_state(log, jobs.StartJob(new_job(1, "a", ended=0)))
        assert started == jobs.find(log, "0001")
        assert (started.since, started.started_at > 0, started.ended_at) == (0, True, 0)
    canceled = jobs.ChangeJob("0001", 0, '{"canceled":true}', ended=True)
    assert change_state(log, canceled)
    ended = jobs.find(log, "0001")
    assert ended is not None
    assert (ended.parameters, ended.ended_at > 0) == ('{"canceled":true}', True)
    assert change_state(log, canceled)
    assert jobs.find(log, "0001") == ended
    assert not change_state(log, jobs.ChangeJob("0001", 0, "{}", ended=True)), "it has ended"
    reopened = jobs.ChangeJob("0001", ended.ended_at, "{}", ended=False, undos=())
    assert [change_state(log, reopened) for _ in range(2)] == [True, True]
    opened = jobs.find(log, "0001")
    assert opened is not None
    assert (opened.parameters, opened.ended_at) == ("{}", 0)
    assert not change_state(log, replace(reopened, parameters='{"other":1}')), "it was opened in another way"
    for _ in range(2):
        change_state(log, jobs.EndJob("0001", discard=True))
    assert jobs.find(log, "0001") is None


def test_job_is_not_opened_again_if_an_undo_has_started(log: Log) -> None:
    put(log, new_job(1, "a"))
    reopened = jobs.ChangeJob("0001", 1, "{}", ended=False, undos=())
    undo = new_job(2, "a", undoes="0001")
    assert change_state(log, jobs.StartJob(undo)) == change_state(log, jobs.StartJob(replace(undo, id="0003")))
    assert not change_state(log, reopened)
    assert change_state(log, replace(reopened, undos=(UndoJob("0002", "0001", False),)))


def test_failed_change_of_a_job_fails_its_commit_only(log: Log) -> None:
    broken = jobs.StartJob(replace(new_job(1, "a"), note=cast("str", object())))
    with pytest.raises(Exception, match="object"):
        log.append([change("x"), broken, change("y")])
    assert look(log).size == 0
    change_state(log, jobs.StartJob(new_job(1, "a")))
    assert jobs.find(log, "0001") is not None


def test_jobs_of_older_tables_get_an_owner(where: str) -> None:
    """The same as for new jobs, in normalized spelling."""
    owner = {
        "300:1/Ann": "300:1/Ann",
        "300:a.b/Ann": "300:A.B/Ann",
        "300:0.na/12345": "300:0.NA/12345",
        "300:0.NA/12345": "300:0.NA/12345",
        "token:k7qpx2ma by 0:0.na/é": "0:0.NA/é",
        "token:k7qpx2ma by local:ann": "local:ann",
        "local:token:12345678 by x": "local:token:12345678 by x",
    }
    for actor, maker in owner.items():
        key = actor.removeprefix("token:k7qpx2ma by ")
        if not key.startswith("local:"):
            assert runner._owner_name(str(KeyIdentity(ValueRef.parse(key), Proof.TOKEN))) == maker
    store = open_store(where)
    row = "INSERT INTO operations VALUES (:id, 'test', '{}', '', 'http', :actor, '', 0, :begun, 1, 0)"
    with store.writing() as connection:
        upgrade_to(connection, "0004")
        for number, actor in enumerate(owner):
            connection.execute(text(row), {"id": str(number), "actor": actor, "begun": number})
    store.upgrade()
    found = jobs.newest_first(Log(store, Machine().clock(), bytes))
    assert {each.actor: each.owner for each in found} == owner
    store.close()


ROWS_OF_VERSION_5 = [
    "INSERT INTO operations VALUES ('0a', 'rewrite', '[1, 2]', '', 'http', 'local:bob', 'n', 7, 8, 0, 9, '300:1/a')",
    "INSERT INTO operations VALUES ('0b', 'undo', '{}', '0c', 'cli', 'local:ann', '', 1, 2, 3, 4, 'local:ann')",
    "INSERT INTO steps VALUES ('0a', 8, 5), ('0b', 2, 1)",
    "INSERT INTO views VALUES ('targets', :id, 3, :id), ('records', :id, 4, :id)",
    "INSERT INTO targets VALUES (:id, 3)",
    "CREATE TABLE targets_next_1a2b3c4d (target INTEGER)",
]
JOBS_OF_VERSION_5 = [
    Job("0a", "rewrite", "[1, 2]", "", "http", "local:bob", "n", 7, 8, 0, 9, "300:1/a", 5),
    Job("0b", "undo", "{}", "0c", "cli", "local:ann", "", 1, 2, 3, 4, "local:ann", 1),
]


def test_renamed_tables_keep_their_rows(where: str) -> None:
    """An upgrade that fails before its end changes nothing."""
    with closing(open_store(where)) as store:
        check_renames(store)


def check_renames(store: Store) -> None:
    with store.writing() as connection:
        upgrade_to(connection, "0005")
        for row in ROWS_OF_VERSION_5:
            connection.execute(text(row), {"id": b"id"} if ":id" in row else {})
        before = inspect(connection).get_table_names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "create_index", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.upgrade()
    with store.writing() as connection:  # a reader expects the new tables
        assert inspect(connection).get_table_names() == before
    store.upgrade()
    log = Log(store, Machine().clock(), bytes)
    assert list(jobs.newest_first(log)) == JOBS_OF_VERSION_5
    assert [list(jobs.load_steps(log, name)) for name in ("0a", "0b")] == [[(8, 5)], [(2, 1)]]
    with store.reading() as connection:
        names = inspect(connection).get_table_names()
        assert not [name for name in names if name.startswith(("operations", "targets"))]
        assert connection.execute(text("SELECT key, seq FROM search")).all() == [(b"id", 3)]
        assert dict(connection.execute(text("SELECT name, seq FROM views")).all()) == {"search": -1, "records": 4}
        if store.dialect == "postgresql":
            for name in ("jobs", "search"):
                assert inspect(connection).get_pk_constraint(name)["name"] == f"{name}_pkey"


@given(st.integers(0, 400), st.text(max_size=12), st.text(max_size=12), st.booleans(), st.booleans())
def test_the_upgrade_folds_handles_as_identities_do(
    index: int, prefix: str, suffix: str, own: bool, by_token: bool
) -> None:
    """It has its own copy of the rule, because the program may change and a migration must not."""
    handle = f"{'0.' if own else ''}{prefix.replace('/', '')}/{suffix}"
    actor = f"{index}:{handle}"
    folded = v0005_whose_operations._maker(TOKEN.format(actor) if by_token else actor)
    assert folded == f"{index}:{handle_key(handle)}"


@given(st.text(st.characters(exclude_categories=())))
def test_the_upgrade_folds_the_letters_that_the_program_folds(text: str) -> None:
    assert v0005_whose_operations._fold(text) == fold(text)


def test_upgrades_import_nothing_that_may_be_renamed() -> None:
    """Migrations contain everything they need."""
    files = sorted(Path(versions.__file__).parent.glob("v*.py"))
    assert len(files) >= 6
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path.name
                names = [node.module or ""]
            assert not [name for name in names if name.partition(".")[0] == PACKAGE], path.name


def test_jobs_of_older_backups_have_no_owner(log: Log) -> None:
    """A restore fills the columns that the backup has."""
    names = [column.name for column in table.columns if column.name != "owner"]
    with log.store.writing() as connection:
        connection.execute(insert(table), [{name: getattr(new_job(1, "a"), name) for name in names}])
    assert [each.owner for each in jobs.newest_first(log)] == [""]

"""Visibility of jobs: users see their own and those of their tokens."""

from collections.abc import Iterator

import pytest

from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job
from perseid.records.record import ValueRef
from perseid.registry.commands.records import Add, Remove
from perseid.registry.identity import Identity, KeyIdentity, Proof
from perseid.registry.jobs import rewrite, runner, undo
from perseid.registry.jobs.rewrite import Rewrite
from perseid.registry.jobs.runner import UndoIndex, resume
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from tests.registry.access.token_identities import ANN, BEA, RULES, SERVER, furnish, movable, scope, shown
from tests.registry.jobs.runs import changes, run_steps
from tests.registry.registries import OPERATOR, admin, handle, key_holder, registry_in_memory

ORDER = Rewrite("http://old.example/*", "https://new.example/*")
SCOPES = scope("find", "update")
STRANGER = key_holder(300, "12345/stranger")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(runner, "CHUNK_SIZE", 2)
    with registry_in_memory(rules=RULES) as registry:
        furnish(registry)
        movable(registry, 6)
        yield registry


def started_job(registry: Registry, identity: Identity, steps: int = 1) -> Job:
    """Return a job after this many steps."""
    job = rewrite.start(registry, ORDER, identity, "http", "", 6)
    running = run_steps(registry, job, identity)
    for _ in range(steps):
        next(running)
    return job


def visible(registry: Registry, identity: Identity) -> list[str]:
    """Return the visible job ids; all ways of looking agree."""
    listed = [each.id for each in runner.list_jobs(registry, identity)]
    paged: list[str] = []
    before: tuple[int, str] | None = None
    while True:
        page = runner.jobs_page(registry, identity, before, 1)
        paged += [each.id for each in page.items]
        before = page.last
        if before is None:
            break
    assert paged == listed
    for job in jobs.newest_first(registry.ledger.log):
        if job.id in listed:
            assert runner.find_job(registry, identity, job.id) == job
        else:
            with pytest.raises(Refused, match=f"Job {job.id} not found"):
                runner.find_job(registry, identity, job.id)
    if listed:
        assert runner.find_job(registry, identity, runner.LAST).id == listed[0]
    else:
        with pytest.raises(Refused, match="no jobs yet"):
            runner.find_job(registry, identity, runner.LAST)
    return sorted(listed)


def test_token_issuer_sees_jobs_of_token(here: Registry) -> None:
    one, other = shown(here, ANN, SCOPES), shown(here, ANN, SCOPES)
    jobs_by = {identity: started_job(here, identity).id for identity in (one, other, ANN)}
    assert visible(here, ANN) == sorted(jobs_by.values())
    assert visible(here, one) == [jobs_by[one]]
    assert visible(here, other) == [jobs_by[other]]
    assert visible(here, BEA) == visible(here, STRANGER) == visible(here, shown(here, BEA)) == []
    assert visible(here, OPERATOR) == visible(here, SERVER) == sorted(jobs_by.values())


def test_token_issuer_resumes_and_undoes_jobs_of_token(here: Registry) -> None:
    token = shown(here, ANN, SCOPES)
    job = started_job(here, token)
    run = resume(here, job.id, ANN)
    assert [step.done for step in changes(run)][-1] == 6
    undo_job = undo.start(here, run.job.id, ANN, "cli")
    list(run_steps(here, undo_job, ANN))
    assert runner.find_job(here, ANN, undo_job.id).done == 6
    assert visible(here, token) == [job.id], "jobs started without the token are not its own"
    with pytest.raises(Refused, match="not found"):
        undo.start(here, undo_job.id, token, "http")


def test_token_jobs_belong_to_identity_with_any_key(here: Registry) -> None:
    """As with the tokens themselves: an identity without an index issued them without one."""
    here.do(Add(handle("0.NA/12345"), (admin(102, "0:0.NA/12345"),)), OPERATOR, "cli")
    nameless = KeyIdentity(ValueRef(0, "0.NA/12345"), Proof.SECRET_KEY, verified_index=300)
    token = shown(here, nameless, scope("find"))
    assert str(token.issuer) == "0:0.NA/12345"
    job = runner.start_job(here, "test", {}, token, "http")
    assert visible(here, nameless) == [job.id]
    assert visible(here, ANN) == []
    own = runner.start_job(here, "test", {}, nameless, "http")
    assert own.actor == "300:0.NA/12345"
    assert visible(here, ANN) == [own.id]


def test_job_owner_is_independent_of_handle_spelling(here: Registry) -> None:
    """In the system's own handles case never matters, elsewhere in the prefix."""
    other_spelling = key_holder(300, "0.na/12345")
    token = shown(here, ANN, SCOPES)
    anns_jobs = [started_job(here, ANN, 0), runner.start_job(here, "test", {}, token, "http")]
    anns_jobs.append(runner.start_job(here, "test", {}, other_spelling, "http"))
    assert [each.actor for each in anns_jobs] == ["300:0.NA/12345", str(token), "300:0.na/12345"]
    assert visible(here, ANN) == visible(here, other_spelling) == sorted(each.id for each in anns_jobs)
    assert visible(here, token) == [anns_jobs[1].id]
    assert all(runner.is_own_job(job, identity) for job in anns_jobs for identity in (ANN, other_spelling))
    assert runner.is_own_change(str(ANN), other_spelling)
    assert runner.is_own_change(str(token), other_spelling)
    assert not runner.is_own_change(str(ANN), token)
    assert not runner.is_own_change(str(ANN), BEA)
    other = runner.start_job(here, "test", {}, key_holder(300, "a.b/Ann"), "http")
    assert visible(here, key_holder(300, "A.b/Ann")) == [other.id]
    assert visible(here, key_holder(300, "a.b/ann")) == visible(here, key_holder(301, "a.b/Ann")) == []


def test_jobs_of_old_backups_belong_to_their_actor(here: Registry) -> None:
    """They record nothing else."""
    old = Job("old", "test", "{}", "", "http", str(ANN), "")
    here.ledger.change(jobs.StartJob(old))
    assert visible(here, ANN) == ["old"]
    assert visible(here, key_holder(300, "0.na/12345")) == visible(here, BEA) == []


def test_jobs_of_deleted_token_stay_with_issuer(here: Registry) -> None:
    job = started_job(here, shown(here, BEA, scope("find")), 0)
    assert visible(here, BEA) == [job.id]
    here.do(Remove(handle("0.NA/12345"), (101,)), OPERATOR, "cli")
    assert visible(here, BEA) == [job.id], "ownership is not permission"


def test_only_related_undos_are_loaded(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    job, other = started_job(here, ANN, 3), started_job(here, ANN, 0)
    undo_job = undo.start(here, job.id, ANN, "cli")
    read: list[list[str]] = []
    find_undos = jobs.find_undos

    def record(log: object, names: tuple[str, ...]) -> object:
        found = find_undos(log, names)  # type: ignore[arg-type]
        read.append([each.id for each in found])
        return found

    monkeypatch.setattr(jobs, "find_undos", record)
    monkeypatch.delattr(jobs, "list_undos")
    list(run_steps(here, undo_job, ANN))
    list(changes(resume(here, other.id, ANN)))
    assert UndoIndex.of(here, job.id).effective_undo(job.id) == undo_job.id
    assert UndoIndex.of(here, other.id).effective_undo(other.id) is None
    assert UndoIndex.of(here).effective_undo(job.id) is None, "no job was given"
    assert read == [[undo_job.id], [], [undo_job.id], []]


@pytest.mark.parametrize("name", ["", "\0", "x\0", "x" * 100_000, "\udcff", "é", "%", "'"])
def test_invalid_job_id_is_not_found(registry: Registry, name: str) -> None:
    """In both databases; one cannot even be queried for some of them."""
    with pytest.raises(Refused, match="not found"):
        runner.find_job(registry, OPERATOR, name)


def test_invalid_note_is_refused(here: Registry) -> None:
    with pytest.raises(Refused, match="surrogate"):
        runner.start_job(here, "test", {}, OPERATOR, "cli", "\udcff")
    assert list(runner.list_jobs(here, OPERATOR)) == []

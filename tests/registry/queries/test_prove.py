"""Proofs: verifiable offline, tamper-evident, and without private data."""

import ast
import base64
import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, update

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.record_keys import LEDGER
from perseid.ledger.log.requests import Append
from perseid.ledger.log.signing import rotate_key, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.ledger.store.tables import ledger
from perseid.names.handle import Handle
from perseid.proof import document as proof_document
from perseid.proof.document import MAX_DOCUMENT, MAX_LINKS, ProvedValue, VerifiedProof, verify_proof
from perseid.proof.verifier import Branch, Checkpoint, InvalidProof, commitment, format_note, parse_note
from perseid.records.record import Value, ValueRef
from perseid.registry.commands.lifecycle import Redact
from perseid.registry.identity import Identity
from perseid.registry.queries import prove as proving
from perseid.registry.queries.prove import NotCheckpointed, Proof, ensure_checkpoint, prove
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode
from tests.ledger.ledgers import NOW, SIGNER, Machine, appended
from tests.registry.commands.records_in_every_state import (
    ADMIN,
    ANN,
    SERVER,
    X,
    delete,
    hidden,
    policy,
    publish,
    put,
    site,
    unpublish,
    value,
)
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, registry_in_memory

SECOND_KEY = Signer.generate(SIGNER.name, bytes(32))
THIRD_KEY = Signer.generate(SIGNER.name, bytes(31) + b"3")
OTHER_LOG = Signer.generate("ledger.example.org/restored-00", bytes(31) + b"4")
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
SECRET: Final = "a very private matter"


@pytest.fixture
def here(machine: Machine) -> Iterator[Registry]:
    with site(machine) as made:
        yield made


def sign(registry: Registry, signer: Signer = SIGNER) -> None:
    """Sign a checkpoint, if a second has passed since the last one."""
    sign_checkpoint(registry.ledger.log, signer)


def proved(
    registry: Registry,
    identity: Identity = NOBODY,
    seq: int | None = None,
    *,
    public_only: bool = True,
    name: Handle = X,
) -> Proof:
    with registry.snapshot() as snapshot:
        return prove(snapshot, identity, name, seq, public_only=public_only)


def checked(proof: Proof, signer: Signer = SIGNER) -> VerifiedProof:
    return verify_proof(proof.to_json(), signer.public, handle=str(proof.handle), seq=proof.seq)


def octets(plain: Any) -> Iterator[bytes]:
    """Return all bytes of a document, decoded where base64."""
    if isinstance(plain, dict | list):
        for each in plain.values() if isinstance(plain, dict) else plain:
            yield from octets(each)
    elif isinstance(plain, str):
        yield plain.encode()
        with suppress(ValueError):
            yield base64.b64decode(plain, validate=True)


# What is proved


def test_proof_is_verified_offline(registry: Registry, machine: Machine) -> None:
    """On both databases: present and past versions, with public values."""
    add_namespace(registry, "12345")
    first = put(registry, ADMIN, value(1, "https://example.org/"), hidden(2, SECRET))
    second = put(registry, ADMIN, value(1, "https://example.org/new"))
    for n in range(5):
        put(registry, value(1), name=f"12345/{n}")
    machine.run(SECOND)
    sign(registry)
    latest, earlier = checked(proved(registry)), checked(proved(registry, seq=first))
    assert (latest.handle, latest.seq, latest.at) == ("12345/x", second, NOW)
    assert (latest.action, latest.state, latest.undisclosed) == (Action.UPDATE, State.NORMAL, 0)
    assert [(each.index, each.type, each.data) for each in latest.values] == [
        (1, "URL", b"https://example.org/new"),
        (100, "HS_ADMIN", ADMIN.data),
    ]
    assert (earlier.seq, earlier.action, earlier.undisclosed) == (first, Action.CREATE, 1)
    assert [each.index for each in earlier.values] == [1, 100]
    assert latest.keys == (SIGNER.public,)
    assert latest.checkpoint.size == second + 5
    assert (latest.branch, latest.actor, latest.note) == (None, None, None)


def test_proof_contains_stored_value(here: Registry) -> None:
    stored = Value(7, "DESC", b"\0\xff", 300, timestamp=NOW // SECOND, references=(ValueRef(3, "12345/ü"),))
    put(here, stored)
    sign(here)
    (found,) = checked(proved(here)).values
    assert found == ProvedValue(
        7, NOW // SECOND, 0, 300, 14, "DESC", b"\0\xff", ((3, "12345/ü"),), stored.to_bytes()
    )  # fmt: skip
    assert Value.from_bytes(found.content, NOW // SECOND) == stored


def test_proof_at_time_is_about_entry_of_that_time(here: Registry) -> None:
    first = put(here, value(1))
    between = put(here, value(1), name="12345/y")
    put(here, value(2))
    sign(here)
    assert checked(proved(here, seq=between)).seq == first
    with pytest.raises(Refused) as caught:
        proved(here, seq=first - 1)
    assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND


def test_deletion_can_be_proved(here: Registry) -> None:
    put(here, value(1))
    gone = delete(here)
    sign(here)
    found = checked(proved(here))
    assert (found.seq, found.state, found.values) == (gone, State.ABSENT, ())


def test_redacted_values_are_committed_but_not_shown(here: Registry) -> None:
    first = put(here, value(1), value(2, "personal"))
    put(here, value(1))
    here.do(Redact(X, 2, first, "a court said so"), OPERATOR, "cli")
    sign(here)
    found = checked(proved(here, OPERATOR, first, public_only=False))
    assert ([each.index for each in found.values], found.undisclosed) == ([1], 1)
    assert found.actor == "cli 300:12345/ann"


def test_installation_records_require_server_administrator(here: Registry) -> None:
    name = Handle.parse("0.SITE/POLICY/12345")
    sign(here)
    found = checked(proved(here, SERVER, public_only=False, name=name))
    assert found.values[0].type == "PERSEID_POLICY"
    with pytest.raises(Refused):
        proved(here, SERVER, name=name)


# What is shown to whom


def test_private_values_require_permission_and_request(here: Registry) -> None:
    first = put(here, ADMIN, value(1, "open"), hidden(2, SECRET), note=f"note: {SECRET}")
    put(here, ADMIN, value(1, "open"))
    sign(here)
    for identity, public_only in ((NOBODY, True), (NOBODY, False), (ANN, True), (OPERATOR, True)):
        proof = proved(here, identity, first, public_only=public_only)
        assert not any(SECRET.encode() in each for each in octets(proof.document))
        assert not any(b"300:12345/ann" in each and b"cli" in each for each in octets(proof.document))
        assert "actor" not in proof.document
    mine = checked(proved(here, ANN, first, public_only=False))
    assert [each.data for each in mine.values][:2] == [b"open", SECRET.encode()]
    assert (mine.actor, mine.note, mine.undisclosed) == ("cli 300:12345/ann", f"note: {SECRET}", 0)
    runs_server = checked(proved(here, SERVER, first, public_only=False))
    assert (runs_server.actor, runs_server.undisclosed) == ("cli 300:12345/ann", 1)


def test_values_hidden_since_are_omitted(here: Registry) -> None:
    first = put(here, value(1, "open"), value(2, SECRET))
    put(here, value(1, "open"), hidden(2, SECRET))
    sign(here)
    for seq in (first, None):
        proof = proved(here, seq=seq)
        assert not any(SECRET.encode() in each for each in octets(proof.document))
        assert [each.data for each in checked(proof).values] == [b"open"]


def test_actors_are_shown_if_policy_allows() -> None:
    with site(show_actors=True) as here:
        put(here, value(1), note="why")
        sign(here)
        found = checked(proved(here))
        assert (found.actor, found.note) == ("cli 300:12345/ann", None)


def test_hidden_records_are_not_proved_to_public(here: Registry) -> None:
    first = put(here, ADMIN, value(1))
    gap = unpublish(here, ADMIN, value(1))
    sign(here)
    for seq in (None, first, gap):
        with pytest.raises(Refused) as caught:
            proved(here, seq=seq)
        assert caught.value.code is ResponseCode.HANDLE_NOT_FOUND
        assert checked(proved(here, ANN, seq, public_only=False)).handle == "12345/x"


def test_formerly_hidden_versions_are_not_proved_to_public(here: Registry) -> None:
    first = put(here, value(1))
    gap = unpublish(here, value(1))
    publish(here, value(1))
    sign(here)
    assert checked(proved(here, seq=first)).seq == first
    with pytest.raises(Refused):
        proved(here, seq=gap)


def test_latest_version_is_proved_if_history_is_hidden() -> None:
    with site(show_past=False) as here:
        first, second = put(here, value(1)), put(here, value(2))
        sign(here)
        assert checked(proved(here)).seq == second
        with pytest.raises(Refused):
            proved(here, seq=first)


# Checkpoints


def test_entry_without_checkpoint_is_refused_with_advice(here: Registry, machine: Machine) -> None:
    seq = put(here, value(1))
    with pytest.raises(NotCheckpointed, match=f"Entry {seq} cannot be proved yet.*ends at entry 0.*every second"):
        proved(here)
    sign(here)
    later = put(here, value(2))
    with pytest.raises(NotCheckpointed) as caught:
        proved(here)
    assert (caught.value.seq, caught.value.covered) == (later, seq)
    assert checked(proved(here, seq=seq)).seq == seq
    waited = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        machine.run(round(seconds * SECOND))

    ensure_checkpoint(here.ledger.log, SIGNER, later, pause)
    assert waited == [1.0]
    assert checked(proved(here)).seq == later
    ensure_checkpoint(here.ledger.log, SIGNER, later, pause)
    assert waited == [1.0]
    with pytest.raises(NotCheckpointed):
        ensure_checkpoint(here.ledger.log, SIGNER, later + 1, pause)


def test_oversized_record_is_not_proved(here: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    put(here, value(1, "x" * 5000))
    sign(here)
    monkeypatch.setattr(proving, "MAX_DOCUMENT", 5000)
    with pytest.raises(Refused, match="is too large: a proof has"):
        proved(here)


# Keys


def rotate(registry: Registry, old: Signer, new: Signer) -> None:
    rotate_key(registry.ledger.log, old, new, "cli", "local:alice")


def test_verifier_with_earlier_key_follows_rotations(registry: Registry, machine: Machine) -> None:
    add_namespace(registry, "12345")
    put(registry, value(1))
    rotate(registry, SIGNER, SECOND_KEY)
    put(registry, value(1), name="12345/y")
    rotate(registry, SECOND_KEY, THIRD_KEY)
    machine.run(SECOND)
    sign(registry, THIRD_KEY)
    proof = proved(registry)
    chain = (SIGNER, SECOND_KEY, THIRD_KEY)
    for place, signer in enumerate(chain):
        assert checked(proof, signer).keys == tuple(each.public for each in chain[place:])
    for stranger in (OTHER_LOG, Signer.generate(SIGNER.name, bytes(31) + b"9")):
        with pytest.raises(InvalidProof, match="is not a successor of"):
            checked(proof, stranger)


def test_checkpoint_before_rotation_needs_no_rotation_entry(here: Registry) -> None:
    put(here, value(1))
    sign(here)
    rotate(here, SIGNER, SECOND_KEY)
    proof = proved(here)
    assert proof.document["keys"] == []
    assert checked(proof).keys == (SIGNER.public,)


def test_missing_or_moved_rotation_is_detected(here: Registry) -> None:
    put(here, value(1))
    for old, new in ((SIGNER, SECOND_KEY), (SECOND_KEY, THIRD_KEY)):
        rotate(here, old, new)
    sign(here, THIRD_KEY)
    document = proved(here).document
    first, second = json.loads(json.dumps(document["keys"]))
    for links in ([], [first], [second], [second, first], [first, first, second]):
        with pytest.raises(InvalidProof):
            verify_proof(json.dumps(document | {"keys": links}), SIGNER.public)


def branch(registry: Registry, old: Signer, new: Signer) -> None:
    """Continue as a restored ledger does."""
    log = registry.ledger.log
    with log.open_reader() as reader:
        size = reader.size
        predecessor = Checkpoint(old.name, size, reader.root(size))
    note = Branch(predecessor, old.public, new.public).note()

    def rename(connection: Connection) -> None:
        connection.execute(update(ledger).values(origin=new.name, signer=str(new.public)))

    log.commit([Append(Draft(Action.BRANCH, State.ABSENT, LEDGER, "cli", "local:alice", note))], rename)


def test_restored_ledger_names_origin_and_needs_own_key(here: Registry) -> None:
    seq = put(here, value(1))
    rotate(here, SIGNER, SECOND_KEY)
    branch(here, SECOND_KEY, OTHER_LOG)
    newest = Signer.generate(OTHER_LOG.name, bytes(31) + b"5")
    rotate(here, OTHER_LOG, newest)
    sign(here, newest)
    proof = proved(here)
    assert len(proof.document["keys"]) == 2  # type: ignore[arg-type]
    found = checked(proof, OTHER_LOG)
    assert found.keys == (OTHER_LOG.public, newest.public)
    assert found.branch is not None
    assert (found.branch.predecessor.origin, found.branch.predecessor.size) == (SIGNER.name, seq + 1)
    assert (found.branch.old, found.branch.new) == (SECOND_KEY.public, OTHER_LOG.public)
    for old in (SIGNER, SECOND_KEY):
        with pytest.raises(InvalidProof, match=f"was restored and continues as {OTHER_LOG.name}: ask its operator"):
            checked(proof, old)
    branched, rotated = json.loads(json.dumps(proof.document["keys"]))
    for links in ([rotated, branched], [branched, branched, rotated], [branched]):
        with pytest.raises(InvalidProof):
            verify_proof(json.dumps(proof.document | {"keys": links}), OTHER_LOG.public)


def hand_over(registry: Registry, note: str, handle: str = LEDGER, action: Action = Action.ROTATE_KEY) -> int:
    """Append a rotation entry without checks; return its number."""
    draft = Draft(action, State.ABSENT, handle, "cli", "local:alice", note)
    return appended(registry.ledger.append(Append(draft))[0]).seq


def forged(registry: Registry, signer: Signer, *links: int) -> str:
    """Return a proof of 12345/x with any checkpoint signer and the given rotation entries."""
    with registry.snapshot() as snapshot:
        reader = snapshot.reader
        size = reader.size
        note = signer.sign(Checkpoint(signer.name, size, reader.root(size)))
        stored = snapshot.stored(X)
        assert stored.entry is not None
        keys = [
            proving._inclusion_proof(reader, entry, size) | proving._dump_slot("note", entry.note)
            for entry in map(reader.entry, links)
        ]
        document = {"format": proof_document.FORMAT, "handle": "12345/x", "seq": stored.seq, "values": []}
        entry = {"entry": proving._inclusion_proof(reader, stored.entry, size)}
    return json.dumps(document | entry | {"checkpoint": note, "keys": keys})


def test_rotation_is_a_ledger_entry_about_itself(here: Registry) -> None:
    put(here, value(1))
    note = SIGNER.hand_over(SECOND_KEY.public)
    elsewhere = hand_over(here, note, "12345/evil")
    otherwise = hand_over(here, note, action=Action.UPDATE)
    rightly = hand_over(here, note)
    assert verify_proof(forged(here, SECOND_KEY, rightly), SIGNER.public).keys[-1] == SECOND_KEY.public
    for seq in (elsewhere, otherwise):
        with pytest.raises(InvalidProof, match=f"entry {seq} is not a key rotation"):
            verify_proof(forged(here, SECOND_KEY, seq), SIGNER.public)


def test_rotation_is_signed_with_old_key(here: Registry) -> None:
    put(here, value(1))
    text, ((name, key_id, _),) = parse_note(SIGNER.hand_over(SECOND_KEY.public))
    others = parse_note(SECOND_KEY.hand_over(SECOND_KEY.public))[1][0][2]
    seq = hand_over(here, format_note(text, [(name, key_id, others)]))
    with pytest.raises(InvalidProof, match="not signed by"):
        verify_proof(forged(here, SECOND_KEY, seq), SIGNER.public)
    wrong = hand_over(here, SIGNER.sign(Checkpoint(SIGNER.name, 1, bytes(32))))
    with pytest.raises(InvalidProof, match="is not a key rotation"):
        verify_proof(forged(here, SECOND_KEY, wrong), SIGNER.public)


def test_rotations_are_ordered_so_retired_keys_do_not_return(here: Registry) -> None:
    put(here, value(1))
    there = hand_over(here, SIGNER.hand_over(SECOND_KEY.public))
    back = hand_over(here, SECOND_KEY.hand_over(SIGNER.public))
    assert verify_proof(forged(here, SIGNER, there, back), SIGNER.public).seq
    for links in ((back, there), (there, back, there)):
        with pytest.raises(InvalidProof, match="out of order"):
            verify_proof(forged(here, SECOND_KEY, *links), SIGNER.public)


def test_gaps_between_rotations_are_detected(here: Registry) -> None:
    put(here, value(1))
    fourth = Signer.generate(SIGNER.name, bytes(31) + b"6")
    keys = (SIGNER, SECOND_KEY, THIRD_KEY, fourth)
    seqs = [hand_over(here, old.hand_over(new.public)) for old, new in pairwise(keys)]
    assert verify_proof(forged(here, fourth, *seqs), THIRD_KEY.public).keys == (THIRD_KEY.public, fourth.public)
    with pytest.raises(InvalidProof, match="a key rotation is missing"):
        verify_proof(forged(here, fourth, seqs[0], seqs[2]), THIRD_KEY.public)


def test_restored_ledger_has_no_earlier_keys(here: Registry) -> None:
    put(here, value(1))
    before = hand_over(here, SIGNER.hand_over(SECOND_KEY.public))
    note = Branch(Checkpoint(SIGNER.name, 1, bytes(32)), SECOND_KEY.public, OTHER_LOG.public).note()
    seq = hand_over(here, note, action=Action.BRANCH)
    assert verify_proof(forged(here, OTHER_LOG, seq), OTHER_LOG.public).branch is not None
    with pytest.raises(InvalidProof, match="begins a new ledger"):
        verify_proof(forged(here, OTHER_LOG, before, seq), OTHER_LOG.public)
    with pytest.raises(InvalidProof, match="not a branch note"):
        verify_proof(forged(here, OTHER_LOG, hand_over(here, "x", action=Action.BRANCH)), OTHER_LOG.public)


# Nothing can be changed

_made: list[dict[str, Any]] = []


def make() -> dict[str, Any]:
    """Return a complete document, created once."""
    if not _made:
        with registry_in_memory() as registry:
            add_namespace(registry, "12345", policy())
            put(registry, value(1, "a"), hidden(2, "b"), value(3, "c"), ADMIN, note="why")
            rotate(registry, SIGNER, SECOND_KEY)
            rotate(registry, SECOND_KEY, THIRD_KEY)
            sign(registry, THIRD_KEY)
            _made.append(json.loads(proved(registry, ANN, public_only=False).to_json()))
    return copy.deepcopy(_made[0])


def places(plain: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths to all members of a document."""
    yield way
    if isinstance(plain, dict | list):
        for key in plain if isinstance(plain, dict) else range(len(plain)):
            yield from places(plain[key], (*way, key))


def at(plain: Any, way: tuple[Any, ...]) -> Any:
    for step in way:
        plain = plain[step]
    return plain


def refuses(document: Any, **expected: Any) -> bool:
    """Whether a document is refused; any other error is a bug."""
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    try:
        verify_proof(text, SIGNER.public, **expected)
    except InvalidProof:
        return True
    return False


REMOVABLE = {("actor",), ("note",)}
"""What may be left out when a proof is passed on; so may each single value."""
scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({})
)


def test_unmodified_document_is_valid() -> None:
    document = make()
    found = verify_proof(json.dumps(document), SIGNER.public, handle="12345/X", seq=document["seq"])
    assert (found.actor, found.note, len(found.values), len(found.keys)) == ("cli 300:12345/ann", "why", 4, 3)


@given(st.data())
def test_any_changed_text_or_number_is_refused(data: st.DataObject) -> None:
    document = make()
    ways = [way for way in places(document) if isinstance(at(document, way), str | int)]
    *way, last = data.draw(st.sampled_from(ways))
    holder = at(document, tuple(way))
    old = holder[last]
    if isinstance(old, int):
        holder[last] = data.draw(st.integers().filter(lambda number: number != old))
    else:
        place = data.draw(st.integers(0, len(old)))
        cut = data.draw(st.integers(0, 2))
        holder[last] = (
            old[:place] + data.draw(st.sampled_from(["", "A", "=", "\n", "Q", "b", "9"])) + old[place + cut :]
        )
    if holder[last] != old:
        assert refuses(document)


@given(st.data())
def test_any_replaced_member_is_refused(data: st.DataObject) -> None:
    document = make()
    way = data.draw(st.sampled_from([way for way in places(document) if way]))
    holder, old = at(document, way[:-1]), at(document, way)
    holder[way[-1]] = data.draw(scalars.filter(lambda new: new != old or type(new) is not type(old)))
    if way != ("values",) or holder[way[-1]] != []:
        assert refuses(document)


@given(st.data())
def test_removed_members_are_detected_except_self_proving_ones(data: st.DataObject) -> None:
    document = make()
    way = data.draw(st.sampled_from([way for way in places(document) if way]))
    del at(document, way[:-1])[way[-1]]
    by_itself = way in REMOVABLE or (way[0] == "values" and len(way) == 2)
    assert refuses(document) is not by_itself


@given(st.data())
def test_inserted_or_moved_items_are_refused(data: st.DataObject) -> None:
    document = make()
    ways = [way for way in places(document) if isinstance(at(document, way), dict | list)]
    holder = at(document, data.draw(st.sampled_from(ways)))
    if isinstance(holder, dict):
        holder[
            data.draw(st.text(max_size=5).filter(lambda key: key not in holder and key not in {"actor", "note"}))
        ] = 1
    elif len(holder) > 1 and data.draw(st.booleans()):
        holder[0], holder[-1] = holder[-1], holder[0]
    else:
        holder.insert(0, copy.deepcopy(data.draw(st.sampled_from(holder))) if holder else "AA==")
    assert refuses(document)


@given(st.data())
def test_changed_byte_is_refused_unless_equivalent(data: st.DataObject) -> None:
    text = json.dumps(make()).encode()
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.binary(max_size=2)) + text[place + 1 :]
    try:
        same = json.loads(changed) == make()
    except ValueError:
        same = False
    assert same or refuses(changed)


@given(st.recursive(scalars | st.floats(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_invalid_proof_is_refused(plain: object) -> None:
    assert refuses(plain)
    assert refuses(make() | {"values": plain}) or plain == []
    assert refuses(make() | {"keys": plain})
    assert refuses(make() | {"entry": plain})


@given(st.text() | st.binary())
def test_invalid_json_is_refused(text: str | bytes) -> None:
    assert refuses(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 10_000,
        "NaN",
        '{"format": NaN}',
        json.dumps(make())[:-1] + ', "seq": 1}',
        json.dumps(make()).replace('"salt"', '"salt": "", "salt"', 1),
        b"\xff",
        json.dumps(make()).encode("utf-16"),
        " " * (MAX_DOCUMENT + 1),
        json.dumps(make() | {"handle": "\ud800"}),
        json.dumps(make() | {"checkpoint": "\ud800"}),
        json.dumps(make() | {"seq": True}),
        json.dumps(make() | {"seq": float(make()["seq"])}),
    ],
    ids=range(14),
)
def test_hostile_documents_are_refused(text: str | bytes) -> None:
    assert refuses(text)


def test_checkpoint_origin_matches_key() -> None:
    document = make()
    stated = Checkpoint.parse(parse_note(document["checkpoint"])[0])
    again = THIRD_KEY.sign(Checkpoint(SIGNER.name, stated.size, stated.root))
    assert not refuses(document | {"checkpoint": again})
    other = THIRD_KEY.sign(Checkpoint("other.example.org", stated.size, stated.root))
    assert refuses(document | {"checkpoint": other})


def test_salt_and_content_boundary_is_fixed() -> None:
    """The commitment covers both, concatenated."""
    for way in (("actor",), ("note",), ("values", 0)):
        for cut in (15, 17):
            document = make()
            opening = at(document, way)
            both = base64.b64decode(opening["salt"]) + base64.b64decode(opening["content"])
            opening["salt"], opening["content"] = (base64.b64encode(each).decode() for each in (both[:cut], both[cut:]))
            with pytest.raises(InvalidProof, match="must have 16 bytes"):
                verify_proof(json.dumps(document), SIGNER.public)


def test_base64_is_canonical() -> None:
    """The last character before the padding has unused bits."""
    ways = [way for way in places(make()) if str(at(make(), way)).endswith("=")]
    assert len(ways) > 10
    for *way, last in ways:
        document = make()
        holder = at(document, tuple(way))
        text = holder[last].rstrip("=")
        padding = holder[last][len(text) :]
        holder[last] = text[:-1] + LETTERS[LETTERS.index(text[-1]) + 1] + padding
        assert base64.b64decode(holder[last]) == base64.b64decode(text + padding)
        with pytest.raises(InvalidProof, match="not canonical base64"):
            verify_proof(json.dumps(document), SIGNER.public)


def test_checkpoint_signature_is_canonical() -> None:
    document = make()
    note = document["checkpoint"]
    assert note.endswith("=\n")
    last = note[-3]
    document["checkpoint"] = f"{note[:-3]}{LETTERS[LETTERS.index(last) + 1]}=\n"
    with pytest.raises(InvalidProof, match=r"^not canonical base64$"):
        verify_proof(json.dumps(document), SIGNER.public)


@pytest.mark.parametrize("name", ["actor", "note"])
def test_actor_or_note_of_another_entry_is_refused(name: str) -> None:
    document = make()
    for other in (document["values"][0], document["note" if name == "actor" else "actor"], document["keys"][0]["note"]):
        with pytest.raises(InvalidProof, match=f"the {name} is not that of the entry"):
            verify_proof(json.dumps(document | {name: other}), SIGNER.public)


def test_checkpoint_has_one_signature() -> None:
    document = make()
    text, signatures = parse_note(document["checkpoint"])
    other = parse_note(OTHER_LOG.sign(Checkpoint.parse(text)))[1]
    for several in (signatures + other, other + signatures):
        assert refuses(document | {"checkpoint": format_note(text, several)})


def test_too_many_rotations_are_refused() -> None:
    document = make()
    document["keys"] = document["keys"][:1] * (MAX_LINKS + 1)
    with pytest.raises(InvalidProof, match="at most 1000"):
        verify_proof(json.dumps(document), SIGNER.public)


def test_proof_of_another_record_is_refused(here: Registry) -> None:
    first = put(here, value(1))
    put(here, value(1), name="12345/y")
    sign(here)
    text = proved(here).to_json()
    assert verify_proof(text.encode(), SIGNER.public, handle="12345/X", seq=first).seq == first
    for expected in ({"handle": "12345/y"}, {"seq": first + 1}, {"handle": "12345/x", "seq": 0}, {"handle": "\ud800"}):
        assert refuses(text, **expected)
    other = json.loads(proved(here, name=Handle.parse("12345/y")).to_json())
    mine = json.loads(text)
    for member in ("handle", "seq", "entry", "values"):
        assert refuses(mine | {member: other[member]})


def test_proof_follows_case_rule_of_namespace(here: Registry) -> None:
    add_namespace(here, "777", "exact")
    draft = Draft(Action.CREATE, State.NORMAL, "777/a", "cli", "local:alice", exact=True)
    here.ledger.append(Append(draft))
    sign(here)
    text = proved(here, name=Handle.parse("777/a")).to_json()
    assert not refuses(text, handle="777/a")
    assert refuses(text, handle="777/A")


def test_damaged_values_are_refused() -> None:
    good = value(1, "a").to_bytes()
    for content in (b"", good[:-1], good + b"\0", good[:14] + b"\xff" * 4 + good[18:], good[:-4] + b"\xff" * 4):
        with pytest.raises(InvalidProof, match="is malformed"):
            proof_document._parse_value(content)


def test_binary_note_is_refused() -> None:
    opening = {"salt": base64.b64encode(bytes(16)).decode(), "content": base64.b64encode(b"\xff").decode()}
    with pytest.raises(InvalidProof, match="the note is not text"):
        proof_document._open_text({"note": opening}, "note", b"N", commitment(b"N", bytes(16), b"\xff"))


def test_verifier_has_no_other_dependencies() -> None:
    tree = ast.parse(Path(proof_document.__file__).read_text())
    ours = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    outside = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    assert ours == ["verifier"]
    assert not any(module and module.startswith("perseid") for module in outside)
    assert proof_document.LEDGER == LEDGER
    assert (proof_document.ROTATE_KEY, proof_document.BRANCH) == (Action.ROTATE_KEY, Action.BRANCH)

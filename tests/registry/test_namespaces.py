"""Namespaces: what is made with one, and that no client's write to the prefix handle touches its policy."""

from perseid.records import Value
from perseid.registry.namespaces import homed_prefixes, namespaces
from perseid.registry.operations import Create
from perseid.registry.policy import PROFILES
from perseid.registry.resolving import Query
from tests.registry.registries import NOBODY, OPERATOR, add_namespace, admin, handle, registry_in_memory


def test_h8_a_prefix_is_described_by_a_handle_of_its_own() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1", "pilin", admin(100, "300:0.NA/10.1"), Value.text(1, "DESC", "our theses"))
        found = registry.resolve(Query(handle("0.NA/10.1")), NOBODY)
        assert [value.type for value in found.values] == ["DESC", "HS_ADMIN"]


def test_a_client_that_replaces_the_prefix_handle_does_not_touch_the_policy() -> None:
    with registry_in_memory() as registry:
        add_namespace(registry, "10.1", "pilin", admin(100, "300:0.NA/10.1"))
        registry.do(
            Create(handle("0.NA/10.1"), (Value.text(1, "DESC", "all new"),), overwrite=True), OPERATOR, "native"
        )
        with registry.facts() as facts:
            assert facts.policy("10.1") == PROFILES["pilin"]


def test_namespaces_and_homed_prefixes_are_listed_in_order() -> None:
    with registry_in_memory() as registry:
        for prefix in ("10.2", "10.1", "abc"):
            add_namespace(registry, prefix)
        with registry.ledger.reading() as reading:
            assert list(namespaces(reading)) == ["10.1", "10.2", "ABC"]
            assert list(homed_prefixes(reading)) == ["0.NA/0.NA", "0.NA/10.1", "0.NA/10.2", "0.NA/ABC"]

"""Templates with a running server, over UDP and TCP: the service creates what the fast path cannot."""

from collections.abc import Iterator

import pytest

from perseid.records.record import Value
from perseid.wire.codes import ResponseCode
from perseid.wire.responses import ResolutionResult
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET, copy_to
from tests.server.native.native_client import NativeClient, Serving, Via, serving
from tests.server.native.resolution_states import RequestFields, StoredState, homed, value, world

TEMPLATE = f"""<namespace><template delimiter="@">
  <if test="matches" expression="page=(\\d+)">
    <foreach><if value="type" expression="URL"><value data="${{data}}#page=$1"/></if></foreach>
  </if>
  <else><if expression="none"><notfound/></if><else><template ref="10:{PREFIX}/template"/></else></else>
</template></namespace>"""
REFERRED = '<template><value index="7" type="DESC" data="${extension} of ${base}"/></template>'
BOTH = pytest.mark.parametrize("via", [Via.UDP, Via.TCP], ids=lambda via: via.value)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = copy_to(tmp_path_factory.mktemp("templates"))
    with serving(directory, PERSEID_TEMPLATES_DELIMITER="::") as running:
        with NativeClient(running.native) as client:
            assert resolve_values(client, f"{PREFIX}/n1@page=7") is ResponseCode.HANDLE_NOT_FOUND
            client.act_as(ADMINISTRATOR, SECRET)
            added = client.add(f"0.NA/{PREFIX}", Value.text(50, "HS_NAMESPACE", TEMPLATE))
            assert added.code is ResponseCode.SUCCESS
            stored = (Value.text(10, "XML", REFERRED),)
            assert client.create(f"{PREFIX}/template", stored).code is ResponseCode.SUCCESS
        yield running


def resolve_values(
    client: NativeClient, name: str, **more: tuple[str, ...]
) -> list[tuple[int, str, str]] | ResponseCode:
    """The values of a handle as a server returns them, or the response code."""
    answer = client.resolve(name, **more)  # type: ignore[arg-type]
    if not isinstance(answer.body, ResolutionResult):
        return answer.code
    return [(value.index, value.type, value.data.decode()) for value in answer.body.values]


@BOTH
def test_template_creates_values_over_the_network(server: Serving, via: Via) -> None:
    with NativeClient(server.native, via) as client:
        assert resolve_values(client, f"{PREFIX}/n1@page=7") == [(1, "URL", "https://example.org/1#page=7")]
        assert resolve_values(client, f"{PREFIX}/n2@PAGE=8") == [(1, "URL", "https://example.org/2#page=8")]
        assert resolve_values(client, f"{PREFIX}/n1@Part") == [(7, "DESC", f"Part of {PREFIX}/n1")]
        assert resolve_values(client, f"{PREFIX}/n1@none") is ResponseCode.HANDLE_NOT_FOUND
        assert resolve_values(client, f"{PREFIX}/none@page=7") is ResponseCode.VALUES_NOT_FOUND
        assert resolve_values(client, f"{PREFIX}/none") is ResponseCode.HANDLE_NOT_FOUND
        assert resolve_values(client, f"{PREFIX}/n1::x") is ResponseCode.HANDLE_NOT_FOUND, (
            "the namespace has another delimiter"
        )
        assert resolve_values(client, f"{PREFIX}/n1@page=7", types=("EMAIL",)) is ResponseCode.VALUES_NOT_FOUND
        found = resolve_values(client, f"{PREFIX}/private@page=7")
        assert found == [(1, "URL", "https://example.org/0#page=7")], "nothing that is private"


def test_invalid_template_is_refused_over_the_network(server: Serving) -> None:
    with NativeClient(server.native) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        wrong = '<n><template><if test="matches" expression="(a)\\1"/></template></n>'
        refused = client.add(f"0.NA/{PREFIX}", Value.text(51, "HS_NAMESPACE", wrong))
        assert refused.code is ResponseCode.INVALID_VALUE
        assert "backreference" in str(refused.body)


# What a resolver hands over

SPACE = StoredState("0.NA/40", (value(1, "HS_NAMESPACE", b'<n><template delimiter="@"/></n>'),))


@pytest.mark.parametrize(
    ("name", "is_forwarded"),
    [
        (b"40/x@y", True),
        (b"40.1/x@y", True),
        (b"40.1.2/x", True),
        (b"40.1.2/here", False),
        (b"41.1/x", False),
        (b"4/x", False),
    ],
)
def test_names_under_a_template_of_an_ancestor_prefix_are_forwarded(name: bytes, is_forwarded: bool) -> None:
    prefixes = ("40", "40.1", "40.1.2", "41.1", "4")
    with world() as here:
        here.store([SPACE, StoredState("40.1.2/here", (value(1),)), *[homed(f"0.NA/{prefix}") for prefix in prefixes]])
        assert (here.answer(RequestFields(name).to_bytes()) is None) is is_forwarded

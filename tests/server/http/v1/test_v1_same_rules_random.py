"""Random requests are refused equally by the command line and the HTTP API."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.server.http.v1.interfaces import WHO, Both, both_interfaces
from tests.server.http.v1.interfaces_records import AT_RANDOM, creating, living

ASKED = st.one_of([made() for made in (*AT_RANDOM, *AT_RANDOM, creating, living)])


# Without looking for the shortest failure: every try copies two installations.
@settings(deadline=None, max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(ASKED, WHO), min_size=3, max_size=12))
def test_refusals_of_random_requests_are_the_same_on_both_interfaces(asked: list[tuple[Both, str]]) -> None:
    with both_interfaces() as both:
        for request, identity in asked:
            both.ask(request, identity)

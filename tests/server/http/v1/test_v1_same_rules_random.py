"""The API and the command line give the same refusals also where they make names and tokens at random."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.server.http.v1.interfaces import WHO, Both, doors
from tests.server.http.v1.interfaces_records import AT_RANDOM, creating, living

ASKED = st.one_of([made() for made in (*AT_RANDOM, *AT_RANDOM, creating, living)])


# Without looking for the shortest failure: every try copies two installations.
@settings(deadline=None, max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(ASKED, WHO), min_size=3, max_size=12))
def test_refusals_of_what_is_made_at_random_are_the_same_at_both_doors(asked: list[tuple[Both, str]]) -> None:
    with doors() as both:
        for request, identity in asked:
            both.ask(request, identity)

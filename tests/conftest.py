"""Hypothesis for all tests, said once: whichever of several was loaded last would hold for all.

No deadlines, because no test asserts how long something takes. `EXAMPLES=1000 make test` looks further than the run
that everybody waits for.
"""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "50"))

settings.register_profile("perseid", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perseid")

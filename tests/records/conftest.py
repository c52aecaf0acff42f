"""Hypothesis for the tests of records: no deadlines, because no test asserts how long an example takes."""

from hypothesis import HealthCheck, settings

settings.register_profile("perseid", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perseid")

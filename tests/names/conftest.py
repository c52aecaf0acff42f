"""Hypothesis for the tests of names: no deadlines, because no test asserts how long something takes."""

from hypothesis import HealthCheck, settings

settings.register_profile("perseid", deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perseid")

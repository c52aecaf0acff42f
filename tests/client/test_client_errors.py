"""The errors of the client have the data of a problem, and exit codes at the command line."""

import pytest

import perseid.client
from perseid.cli import _errors
from perseid.client.errors import (
    ClientError,
    NotFound,
    ProtocolError,
    Refused,
    UnexpectedKey,
    UnknownOutcome,
    Unreachable,
    UntrustedCertificate,
)
from perseid.schema.problems import PROBLEM_TYPES

CASES = [
    (ClientError, "command-failed", 1),
    (NotFound, "not-found", 3),
    (Refused, "permission-denied", 4),
    (Unreachable, "unreachable", 5),
    (UnknownOutcome, "unknown-outcome", 5),
    (ProtocolError, "invalid-response", 1),
]
WITH_OWN_ADVICE = [
    (UntrustedCertificate, "unreachable", 5, "--ca-file"),
    (UnexpectedKey, "invalid-response", 1, "login"),
]


@pytest.mark.parametrize(("kind", "problem_type", "exit_code"), CASES)
def test_each_error_has_a_problem_type_and_an_exit_code(
    kind: type[ClientError], problem_type: str, exit_code: int
) -> None:
    error = kind("it failed", advice="Retry", code=100, rule="H3")
    assert error.problem_type == problem_type
    assert problem_type in PROBLEM_TYPES
    assert str(error) == "it failed. Retry"
    report = _errors._describe(error)
    assert (report.slug, report.detail, report.advice, report.rule, report.code, report.exit_code) == (
        problem_type,
        "it failed",
        ("Retry",),
        "H3",
        100,
        exit_code,
    )
    assert getattr(perseid.client, kind.__name__) is kind


@pytest.mark.parametrize(("kind", "problem_type", "exit_code", "advice"), WITH_OWN_ADVICE)
def test_advice_is_in_the_words_of_the_command_line(
    kind: type[ClientError], problem_type: str, exit_code: int, advice: str
) -> None:
    report = _errors._describe(kind("it failed", advice="Use ca_file"))
    assert (report.slug, report.exit_code) == (problem_type, exit_code)
    assert advice in report.advice[0]
    assert getattr(perseid.client, kind.__name__) is kind


def test_an_exact_problem_type_replaces_that_of_the_class() -> None:
    assert Refused("exists", problem_type="already-exists").problem_type == "already-exists"


def test_an_unknown_name_is_not_exported() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(perseid.client, "Nothing")  # noqa: B009 - the type checker knows that it does not exist

"""Problem types: their codes and pages."""

import pytest

from perseid.schema.problems import PROBLEM_TYPES, make_problem, problem_types_by_status, slug_of_code
from perseid.wire.codes import ResponseCode


def test_codes_are_response_codes_and_have_one_type() -> None:
    codes = [code for each in PROBLEM_TYPES.values() for code in each.codes]
    assert len(codes) == len(set(codes))
    assert set(codes) <= {int(code) for code in ResponseCode}


@pytest.mark.parametrize(
    ("code", "slug"),
    [
        (ResponseCode.HANDLE_NOT_FOUND, "not-found"),
        (ResponseCode.HANDLE_ALREADY_EXISTS, "already-exists"),
        (ResponseCode.INVALID_HANDLE, "invalid-name"),
        (ResponseCode.INVALID_ADMIN, "permission-denied"),
        (ResponseCode.AUTHENTICATION_NEEDED, "authentication-required"),
        (ResponseCode.SERVER_TOO_BUSY, "busy"),
        (ResponseCode.ERROR, "internal-error"),
    ],
)
def test_code_has_a_type(code: ResponseCode, slug: str) -> None:
    assert slug_of_code(code) == slug
    assert PROBLEM_TYPES[slug] in problem_types_by_status(PROBLEM_TYPES[slug].status)


def test_problem_has_the_title_and_status_of_its_type() -> None:
    problem = make_problem("not-found", "Handle 12345/x does not exist", "https://hdl.example.org", code=100)
    assert problem.type == "https://hdl.example.org/docs/problems#not-found"
    assert (problem.title, problem.status, problem.code) == ("Not found", 404, 100)
    assert make_problem("busy", "", status=500).status == 500

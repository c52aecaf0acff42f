"""Errors about records and their encodings.

`InvalidData`: bytes, JSON or text from outside are malformed. `RecordMisuse`: the calling program passed something
that cannot be encoded, such as a number that is too large for its field.
"""


class RecordProblem(ValueError):
    """Base class of both errors; never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is RecordProblem:
            raise TypeError("raise InvalidData or RecordMisuse instead")
        super().__init__(message)
        self.message = message
        """Text for people, without secrets."""

    def __str__(self) -> str:
        return self.message


class InvalidData(RecordProblem):
    """Malformed input."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        """Position of the error in bytes from the start of the structure, if known."""

    def __str__(self) -> str:
        return self.message if self.offset is None else f"at byte {self.offset}: {self.message}"


class RecordMisuse(RecordProblem):
    """A value that cannot be encoded."""

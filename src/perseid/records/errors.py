"""What can go wrong with records and their encodings, and whose doing it was.

`InvalidData`: bytes, JSON or text from outside do not have the form they should. `RecordMisuse`: the calling
program asked for something that cannot be: a number that does not fit its field, say.
"""


class RecordProblem(ValueError):
    """The common side of both errors; never raised itself."""

    def __init__(self, message: str) -> None:
        if type(self) is RecordProblem:
            raise TypeError("raise InvalidData or RecordMisuse: an error must say whose doing it was")
        super().__init__(message)
        self.message = message
        """A sentence for people; it never holds a secret."""

    def __str__(self) -> str:
        return self.message


class InvalidData(RecordProblem):
    """What came from outside is malformed; `offset` is where, in bytes, if that is known."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        """How many bytes were right before the wrong one, counted from the start of the structure."""

    def __str__(self) -> str:
        return self.message if self.offset is None else f"at byte {self.offset}: {self.message}"


class RecordMisuse(RecordProblem):
    """The program gave something that has no encoding."""

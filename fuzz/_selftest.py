"""A target with a bug on purpose: whoever runs it sees that bugs are found, kept and reported."""


def fuzz(data: bytes) -> None:
    """Fail for every input that begins with a capital P."""
    if data and data[0] == ord("P"):
        raise ValueError("the planted bug")

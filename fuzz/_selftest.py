"""A target with a deliberate bug, to test that bugs are found, saved and reported."""


def fuzz(data: bytes) -> None:
    """Fail for every input that begins with a capital P."""
    if data and data[0] == ord("P"):
        raise ValueError("the planted bug")

"""Protocol errors: who is at fault, and which response code answers it (after h11's two sides)."""

from .codes import ResponseCode


class ProtocolError(Exception):
    """The common side of both errors; never raised itself."""

    def __init__(self, message: str, code: ResponseCode) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise RemoteProtocolError or LocalProtocolError: an error must say whose doing it was")
        super().__init__(message)
        self.message = message
        """A sentence for people; it never holds a secret."""
        self.code = code
        """The response code with which a server answers."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what it must not."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message, code)


class LocalProtocolError(ProtocolError):
    """Our own program asked for what the protocol cannot do."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.ERROR) -> None:
        super().__init__(message, code)

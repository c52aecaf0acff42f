"""Protocol errors, remote or local (as in h11), with the response code to return."""

from .codes import ResponseCode


class ProtocolError(Exception):
    """Base class of both errors; never raised itself."""

    def __init__(self, message: str, code: ResponseCode) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise RemoteProtocolError or LocalProtocolError instead")
        super().__init__(message)
        self.message = message
        """Text for people, without secrets."""
        self.code = code
        """The response code that a server returns."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message, code)


class LocalProtocolError(ProtocolError):
    """The calling program requested something that the protocol does not support."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.ERROR) -> None:
        super().__init__(message, code)

"""QR codes of identifiers, to be printed on things: the form that a telephone can follow, at a resolver."""

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final, Self

from perseid.records.errors import InvalidData

if TYPE_CHECKING:
    from segno import QRCode

MAX_SCALE: Final = 100
"""The most pixels to a module: a code of the largest size then has 18,500 pixels to a side, 60 centimetres in print."""

QUIET_ZONE: Final = 4
"""How many modules stay light around a code: the standard's number, without which some readers find nothing."""


@dataclass(frozen=True, slots=True)
class Qr:
    """A QR code."""

    text: str
    """What it says."""
    code: "QRCode"

    @classmethod
    def of(cls, text: str) -> Self:
        """The smallest code for a text that stays readable with an eighth of it damaged, or at least with a few
        hundredths. InvalidData, if the text is too long for any.
        """
        import segno  # noqa: PLC0415 - few commands draw

        for error in ("m", "l"):
            try:
                return cls(text, segno.make(text, error=error, micro=False))
            except segno.DataOverflowError:
                continue
        raise InvalidData(f"{len(text):,} characters are too many for a QR code: the largest holds 2,953 octets")

    @property
    def designator(self) -> str:
        """Its size, and how much damage it bears: `4-M`."""
        return str(self.code.designator)

    def svg(self, scale: int) -> bytes:
        """As SVG, so many units to a module, with the light modules: what it is put upon may be dark."""
        return self._drawn("svg", scale, light="#fff", svgclass=None, lineclass=None)

    def png(self, scale: int) -> bytes:
        """As PNG in black and white, so many pixels to a module."""
        return self._drawn("png", scale)

    def _drawn(self, kind: str, scale: int, **options: str | None) -> bytes:
        output = BytesIO()
        self.code.save(output, kind=kind, border=QUIET_ZONE, scale=scale, **options)
        return output.getvalue()

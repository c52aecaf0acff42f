"""QR codes of identifiers, to be printed on things: the form that a telephone can follow, at a resolver."""

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Final, Self

from perseid.records.errors import InvalidData

if TYPE_CHECKING:
    from segno import QRCode

MAX_SCALE: Final = 100
"""The most pixels to a module: a code of the largest size then has 18,500 pixels to a side, 60 centimetres in print."""

QUIET_ZONE: Final = 4
"""How many modules stay light around a code: the standard's number, without which some readers find nothing."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"


class ImageFormat(StrEnum):
    """What a code is drawn as."""

    SVG = "svg"
    PNG = "png"


@dataclass(frozen=True, slots=True)
class QrImage:
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
        output = BytesIO()
        options = {"light": "#fff", "svgclass": None, "lineclass": None}
        self.code.save(output, kind="svg", border=QUIET_ZONE, scale=scale, **options)
        return output.getvalue()

    def png(self, scale: int) -> bytes:
        """As PNG in black and white, so many pixels to a module.

        A row of modules is made as one number, whose bits are its pixels: a tenth of the time that it takes to look at
        each pixel.
        """
        modules = self.code.matrix
        side = (len(modules) + 2 * QUIET_ZONE) * scale
        row_bytes = -(-side // 8)
        beside = "1" * (QUIET_ZONE * scale)
        drawn = ("1" * scale, "0" * scale)  # a light module, and a dark one
        again = (b"\2" + bytes(row_bytes)) * (scale - 1)  # the same line as the one above

        def lines(pixels: str) -> bytes:
            return b"\0" + int(pixels.ljust(8 * row_bytes, "0"), 2).to_bytes(row_bytes, "big") + again

        above = lines("1" * side) * QUIET_ZONE
        rows = [lines(beside + "".join([drawn[module] for module in row]) + beside) for row in modules]
        pixels = above + b"".join(rows) + above
        head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
        return _PNG + _png_chunk(b"IHDR", head) + _png_chunk(b"IDAT", zlib.compress(pixels)) + _png_chunk(b"IEND", b"")


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

"""Codes, read by another program."""

import zlib

import zxingcpp


def decoded(rows: list[bytes]) -> str:
    """What a picture says, of rows with one octet a pixel."""
    image = memoryview(b"".join(rows)).cast("B", shape=[len(rows), len(rows[0])])
    (found,) = zxingcpp.read_barcodes(image)
    assert found.format == zxingcpp.BarcodeFormat.QRCode
    return str(found.text)


def png_rows(octets: bytes) -> list[bytes]:
    """The pixels of a PNG in black and white, whose lines are as they are (0) or added to the one above (2)."""
    assert octets.startswith(b"\x89PNG\r\n\x1a\n")
    place, data, width = 8, b"", 0
    while place < len(octets):
        length = int.from_bytes(octets[place : place + 4])
        kind, body = octets[place + 4 : place + 8], octets[place + 8 : place + 8 + length]
        assert zlib.crc32(kind + body) == int.from_bytes(octets[place + 8 + length : place + 12 + length])
        if kind == b"IHDR":
            width = int.from_bytes(body[:4])
            assert body[8:] == bytes((1, 0, 0, 0, 0))
        data += body if kind == b"IDAT" else b""
        place += 12 + length
    lines = zlib.decompress(data)
    size = 1 + (width + 7) // 8
    rows = []
    line = bytes(size - 1)
    for start in range(0, len(lines), size):
        assert lines[start] in (0, 2)
        above = line if lines[start] else bytes(size - 1)
        line = bytes((one + other) % 256 for one, other in zip(lines[start + 1 : start + size], above, strict=True))
        bits = "".join(f"{octet:08b}" for octet in line)[:width]
        rows.append(bytes(255 if bit == "1" else 0 for bit in bits))
    return rows

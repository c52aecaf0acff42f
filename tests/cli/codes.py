"""QR codes, decoded by an independent library."""

import zlib

import zxingcpp


def decoded(rows: list[bytes]) -> str:
    """Decode the QR code in an image: rows with one byte per pixel."""
    image = memoryview(b"".join(rows)).cast("B", shape=[len(rows), len(rows[0])])
    (barcode,) = zxingcpp.read_barcodes(image)
    assert barcode.format == zxingcpp.BarcodeFormat.QRCode
    return str(barcode.text)


def png_rows(png: bytes) -> list[bytes]:
    """The pixels of a black and white PNG with the filters 0 (none) and 2 (up)."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    offset, data, width = 8, b"", 0
    while offset < len(png):
        length = int.from_bytes(png[offset : offset + 4])
        kind, body = png[offset + 4 : offset + 8], png[offset + 8 : offset + 8 + length]
        assert zlib.crc32(kind + body) == int.from_bytes(png[offset + 8 + length : offset + 12 + length])
        if kind == b"IHDR":
            width = int.from_bytes(body[:4])
            assert body[8:] == bytes((1, 0, 0, 0, 0))
        data += body if kind == b"IDAT" else b""
        offset += 12 + length
    lines = zlib.decompress(data)
    size = 1 + (width + 7) // 8
    rows = []
    line = bytes(size - 1)
    for start in range(0, len(lines), size):
        assert lines[start] in (0, 2)
        above = line if lines[start] else bytes(size - 1)
        line = bytes((one + other) % 256 for one, other in zip(lines[start + 1 : start + size], above, strict=True))
        bits = "".join(f"{byte:08b}" for byte in line)[:width]
        rows.append(bytes(255 if bit == "1" else 0 for bit in bits))
    return rows

"""Network interfaces: resolver processes, the native protocol, HTTP, and their supervision.

Interfaces translate: bytes in, a call of the registry or a lookup in the answers view, bytes out. Rules belong to the
registry. This package imports nothing, so that a resolver process loads only what it uses.
"""

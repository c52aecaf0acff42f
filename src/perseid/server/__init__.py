"""Network interfaces: supervisor, workers and writer, the native protocol and HTTP.

Interfaces translate: bytes in, a call of the registry or a lookup in the answers view, bytes out. Rules belong to the
registry. This package imports nothing, so that each process loads only what it uses.
"""

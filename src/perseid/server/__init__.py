"""Network interfaces: the native protocol and HTTP, and the processes that serve them and run jobs.

Interfaces translate: bytes in, a call of the registry or a lookup in the answers view, bytes out. Rules belong to the
registry. This package imports nothing, so that each process loads only what it uses.
"""

"""The native protocol without I/O: time and randomness are arguments.

`Server` and `Client` implement the two sides of a conversation on top of codecs for each structure. See
docs/reference/protocol.md for what is implemented and where deployment and RFC differ.
"""

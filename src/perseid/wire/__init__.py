"""The native protocol without sockets: bytes in, messages out.

Nothing here opens a connection, reads a clock or draws a random number: time and randomness are arguments. `Server`
and `Client` hold the two sides of every conversation; below them stand the codecs, each reading and writing one
structure. docs/reference/protocol.md says what is implemented and where deployment and RFC differ.
"""

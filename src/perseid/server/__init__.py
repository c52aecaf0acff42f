"""The doors that listen: resolver processes, native TCP, HTTP, and the supervision of all of them.

A door translates: octets in, a call of the registry or a look at the answers view, octets out. No rule lives here.
Nothing is imported by this package itself, so that a resolver process loads only what it uses.
"""

"""Records: values, permissions, keys, sites and the data of every predefined type.

Immutable objects, each with the same conversions to and from bytes, JSON and text. No I/O: `now`, which resolves
32-bit times, is an argument. Unknown types and codes are preserved.
"""

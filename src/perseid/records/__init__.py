"""What a record says: values, permissions, keys, sites, and the data of every predefined type.

Frozen values, each with the same conversions to and from bytes, JSON and text. Nothing here reads a clock or touches
a file: `now`, where 32-bit times must be placed, is an argument. Unknown types and codes pass through untouched.
"""

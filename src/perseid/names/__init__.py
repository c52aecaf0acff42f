"""What a name is: handles, prefixes, URI forms and suffix schemes.

Pure functions and frozen values: nothing here reads a clock, draws a random number or touches a file; what is
needed of these comes as an argument. The rules and their ids are in docs/reference/names.md.
"""

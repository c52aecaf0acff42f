"""Our own API, `/api/v1`: everything that the command line does, for programs, documented by itself.

`routes` is the list of everything there is; `openapi` writes its description from it, `answering` carries it out.
"""

"""The HTTP API, `/api/v1`: everything that the command line does, for programs.

`routes` has the routes, `application` handles requests, `openapi` generates the description from the routes.
"""

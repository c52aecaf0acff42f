"""HTTP: the compatible JSON API, the version 1 API, the resolver with its pages, and tunneled native messages.

`connection` turns bytes into a `messages.Request` and sends the `messages.Response`; the code in between does no
socket input or output. `service` dispatches requests.
"""

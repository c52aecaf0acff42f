"""HTTP: the compatible JSON API, the resolver, its pages, and native messages in POST requests.

Octets become a `messages.Request` in `connection` and the answer is a `messages.Response`; what is in between has no
sockets. `service` says which part answers.
"""

"""The web resolver: GET /{handle}."""

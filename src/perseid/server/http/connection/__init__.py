"""HTTP connections: parsing, TLS, limits."""

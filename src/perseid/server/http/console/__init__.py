"""The web console: everything that users do with identifiers, as pages."""

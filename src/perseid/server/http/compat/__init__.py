"""The JSON API of deployed Handle servers: /api/handles and its relatives."""

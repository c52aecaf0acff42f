"""The history of the tables: one file a version, never changed once it was released."""

"""Migration from other servers: sources of records, copying, comparing and following.

What a source says is untrusted: sizes are bounded, and a record that cannot be read is reported and does not stop the
others. No source contacts anything but the server, database or file that the user has named.
"""

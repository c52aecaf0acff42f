"""The processes of a server: supervisor, control and resolvers, their sockets and pools."""

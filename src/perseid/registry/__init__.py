"""The rules that apply to every interface: permissions, namespace policies, and the life of identifiers."""

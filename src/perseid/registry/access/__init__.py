"""Who can do what: permissions, authorization, tokens and their scopes."""

"""Reading: resolve, history, find, suggest, cite, prove."""

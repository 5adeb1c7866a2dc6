"""The one way to reach many engines: which has which slots, what goes where, redirects."""

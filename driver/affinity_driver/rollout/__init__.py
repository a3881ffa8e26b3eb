"""Adding, changing and retiring extractors on pools in use: what that would do to holders, and doing it."""

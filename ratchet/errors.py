"""The one kind of error that a person is meant to read: what is wrong, where, and what to do."""


class RatchetError(Exception):
    """Bad input. The command line prints its text as one line and exits with code 2."""

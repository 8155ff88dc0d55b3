"""The one error of this package: a machine description that cannot be used. The command line shows it as one line."""


class HardwareError(ValueError):
    """A cluster description, or a question about one, is wrong; the message says what to change."""

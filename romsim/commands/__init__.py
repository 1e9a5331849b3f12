"""One module per command of the command line."""

__all__: list[str] = []

"""From weights to a scheduled program: targets, formats, mapping, the description."""

__all__: list[str] = []

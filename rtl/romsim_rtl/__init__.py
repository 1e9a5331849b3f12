"""The chip as Amaranth RTL, and the tools that build and simulate it."""

__all__: list[str] = []

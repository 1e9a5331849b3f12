"""ROM-based LLM accelerators: compile, simulate, verify, measure."""

__all__: list[str] = []

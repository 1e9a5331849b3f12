"""ROM-based LLM accelerators: compile, simulate, verify, measure."""

"""Model families, importers that keep what was shipped, tokenizer, float reference decoder.

The package's modules are imported by name (``from romsim_models.registry import open_model``), so
that importing the package itself costs nothing and never loads torch.
"""

__all__: list[str] = []

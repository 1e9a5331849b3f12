"""From weights to a scheduled program: targets, formats, mapping, the description."""

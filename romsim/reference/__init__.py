"""The integer reference decoder: the numerics page in PyTorch, independent of compiler and RTL."""

from romsim.reference.config import NumericsConfig
from romsim.reference.decoder import CachedWords, IntegerDecoder
from romsim.reference.evaluate import evaluate_nll, score_window
from romsim.reference.kv_policy import KvPolicy
from romsim.reference.kv_vectors import Codebooks
from romsim.reference.weights import WeightChoice

__all__ = [
    "CachedWords",
    "Codebooks",
    "IntegerDecoder",
    "KvPolicy",
    "NumericsConfig",
    "WeightChoice",
    "evaluate_nll",
    "score_window",
]

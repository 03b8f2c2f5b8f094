from .gla import Deaf, GatedLinearAttention, NoFormula

__all__ = ["Deaf", "GatedLinearAttention", "NoFormula"]

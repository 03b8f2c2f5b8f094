from .gla import Deaf, GatedLinearAttention, NoFormula, Rounded

__all__ = ["Deaf", "GatedLinearAttention", "NoFormula", "Rounded"]

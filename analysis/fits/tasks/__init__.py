"""The scores of a study's tasks beside its losses: what of fits.json is `downstream`."""

from analysis.fits.tasks.fit import fit_tasks

__all__ = ["fit_tasks"]

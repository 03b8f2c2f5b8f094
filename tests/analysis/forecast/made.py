"""Predictions as a file holds them, for tests."""

from analysis.fits.settings import FitSettings
from analysis.forecast.stored import PredictedRun, Predictions


def run(run_id, **more):
    row = {"run_id": run_id, "spec_hash": "", "arch": "llama", "group": "llama", "size": "55m", "n_params": 55_000_000}
    row |= {"n_tokens": 121_000_000, "read_at": 121e6, "c": 2e16, "loss": 1.3, "interval": (1.28, 1.32)}
    return PredictedRun(**(row | more))


def predictions(*runs, **more):
    groups = {row.group: {"reason": row.reason, "largest": None if row.reason else {"c": 1e16}} for row in runs}
    made = {"study": "tiny", "made": "2026-01-02T03:04:05+00:00", "program": {"commit": "0123456789abcdef+changes"}}
    made |= {"inputs_hash": "one", "fitted": {"n_runs": 61, "of": 76, "spec_hashes": {}}, "level": 0.9, "runs": runs}
    made |= {"conventions": {"C": "exact", "L": "held-out loss (nats/token)"}, "groups": groups}
    return Predictions(**(made | {"settings": FitSettings(loss="validation")} | more))

"""What training shows of itself."""

import io

from scaling.rundir.directory import RunDir
from scaling.stages.training import SHOWN, Progress, Watched
from scaling.study.spec import load_study

STUDY = """
name: wide
corpus: {source: "synthetic:0:60000"}
grid: {archs: [llama], sizes: [6k], seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
model: {context_length: 64}
training: {n_tokens: 2560, batch_tokens: 256, lr: 3e-3}
"""


def test_the_progress_of_many_runs_names_a_few_and_counts_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.stages.passing.PLAIN_EVERY_S", 0.0)
    path = tmp_path / "wide.yaml"
    path.write_text(STUDY)
    runs = load_study(path).runs()
    watched = [Watched(run, RunDir(tmp_path / run.run_id), 1.0) for run in runs]
    stream = io.StringIO()
    progress = Progress(watched, stream, slots=10)
    for item in watched[: SHOWN + 3]:
        progress.started(item.run.run_id)
    progress.tick()
    line = stream.getvalue().splitlines()[-1]
    assert line.count("starting") == SHOWN
    assert line.endswith("; 3 more runs at work")

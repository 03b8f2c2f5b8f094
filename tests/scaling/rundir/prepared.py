"""A run of a packaged study in a directory of its own, not begun."""

from scaling.rundir.prepare import prepare_run
from scaling.rundir.versions import package_versions
from scaling.study.spec import load_study


def one_run(*sets):
    return load_study("four-architectures", list(sets)).runs("arch=tnl,size=14k,seed=0")[0]


def prepare(folder, run, fingerprint="f" * 64):
    return prepare_run(folder / run.run_id, run, fingerprint, package_versions(), "0" * 64)

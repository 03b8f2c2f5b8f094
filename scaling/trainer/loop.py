"""Trains one run from its run.json to its last checkpoint: resume, train, record, checkpoint.

Batches and learning rate are pure functions of the run's spec and the step, and a state holds everything else. So a run
that was killed at any moment continues to the same numbers.
"""

from __future__ import annotations

import gc
import math
import platform
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack

import torch

from arch.amounts import counted
from arch.config import ModelConfig
from arch.errors import InputError
from arch.model.lm import LanguageModel, build_model
from data.enough import require_tokens
from data.files import guarded, remove_unfinished
from data.loader import Loader
from data.settings import Augmentation
from data.staging import open_staged
from data.tokenizer import refuse_another

from ..rundir import checkpoint_writer, metrics
from ..rundir.directory import ENDED, RunDir
from ..rundir.lock import run_lock
from ..rundir.metrics import MetricsWriter
from ..rundir.owner import Attempt, attempt_by_hand
from ..rundir.prepare import record_code
from ..rundir.saved import read_saved
from ..rundir.tracking import Follower, failures
from ..rundir.worklist import EXIT_FAILED, EXIT_STOPPED, is_small
from ..study.schedule import learning_rate
from . import state
from .branch import Origin, hand_over
from .engine import Engine, start_distributed
from .kernel_check import check_kernels
from .readings import Reading, Readings
from .sharded import ShardedModel, saved_model
from .stepper import Stepper
from .stop import StopRequest
from .turns import Bursts, Clock, Steps, finish
from .watch import Watch

MOST_SKIPPED = 5  # steps in a row whose gradients are not finite: then the run has failed


def _hardware(device: torch.device) -> str:
    """The model name of the GPU or CPU."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as handle:
            return next(line.partition(":")[2].strip() for line in handle if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class Trainer:
    """The run at `rundir` on `device`; `started` is time.perf_counter() at the start of the process.

    attempt: the attempt that a scheduler's process registered; otherwise it is registered here, once the run's lock is
    held. Raises InputError where corpus, spec, processes or saved state do not fit together.
    """

    def __init__(
        self,
        rundir: RunDir,
        device: torch.device,
        started: float,
        stop: StopRequest | None = None,
        attempt: Attempt | None = None,
    ) -> None:
        self.rundir, self.started, self.stop, self.attempt = rundir, started, stop or StopRequest(), attempt
        self.clock, self.bursts = Clock(), Bursts(self._wait_for_gpu)
        self.run = run = rundir.spec()
        self.training = run.training
        config = ModelConfig.from_dict(run.model)
        batch_rows = self.training.batch_tokens // config.context_length
        self.corpus = corpus = open_staged(rundir.study / "corpus")
        planned = rundir.record()["corpus_fingerprint"]
        if planned != corpus.fingerprint:
            raise InputError(
                f"{rundir.study / 'corpus'} has fingerprint {corpus.fingerprint}, this run was planned with {planned}: "
                f"restore that corpus or use another --out"
            )
        require_tokens(corpus, run.n_tokens, run.corpus.epochs, config.context_length, batch_rows, run.text_share)
        shape = (config.context_length, batch_rows, run.seed, run.corpus.epochs)
        augment = run.corpus.augment
        draw = corpus.drawn(None if augment is None else Augmentation(**augment.model_dump()), run.seed)
        self.loader = Loader(corpus.train, *shape, corpus.parts("train"), run.text_share, draw, self.training.threads)
        self.probe = checkpoint_writer.probe_rows(corpus.validation, config.context_length)
        self.tokenizer = corpus.tokenizer  # a missing rank file is an error here, not at the first checkpoint
        refuse_another(self.tokenizer, str(rundir.record().get("tokenizer_identity")), f"{rundir.path}: the run")
        self.identity = {"schema": 1, "run_id": run.run_id, "spec_hash": run.spec_hash}
        ranks = start_distributed(device.type, self.stop)
        self.device = torch.device("cuda", ranks.local) if device.type == "cuda" else device
        self.first_rank = ranks.rank == 0
        resets, micro_rows = self.training.reset_at_documents, run.batch_split(ranks.world).micro_rows
        bf16 = self.training.precision == "bf16"
        if line := check_kernels(config, self.device, bf16=bf16, micro_rows=micro_rows, resets=resets):
            self._say(line)
        model = build_model(config, None)
        model.decoder.gradient_checkpointing = run.recompute
        model.decoder.document_start_id = corpus.tokenizer.eot_id if resets else None
        self.engine = Engine(model, self.training, batch_rows, self.device, ranks, run.seed, run.sequence_processes)
        self.stepper = Stepper(self.engine, self._say if run.cuda_graphs else None)
        self.last_checkpoint: str | None = None
        self.n_skipped = 0  # steps, as far as they were read

    def train(self) -> int:
        """Make all steps, without turns of other runs; returns the exit code."""
        return finish(self.steps())

    def steps(self) -> Steps:
        """Train what is missing, a step a turn; returns the exit code of the process.

        Raises InputError where another process is training this run, Superseded where a newer one has taken it over.
        """
        with ExitStack() as held:
            self.watch = held.enter_context(Watch(self.engine.ranks))
            if self.first_rank:
                held.enter_context(run_lock(self.rundir.path, self.attempt))
                attempt = self.attempt or attempt_by_hand(self.rundir.path)
                held.enter_context(guarded(attempt.check))
                attempt.record(hardware=_hardware(self.device), processes=self.engine.ranks.world)
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(self.device)
            first = self._resume()
            rows = MetricsWriter(self.rundir.metrics) if self.first_rank else None
            follower = Follower(self.rundir) if self.first_rank and self.run.tracking else None
            try:
                code = yield from self._train(first, rows)
                if self.first_rank and self.device.type == "cuda" and not self.clock.had_company:
                    attempt.record(peak_memory_gb=round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3))
            finally:
                if rows is not None:
                    rows.close()
                if follower is not None:
                    follower.end()
            if follower is not None and code != EXIT_STOPPED:  # what is left is sent again when the run goes on
                yield from self._follow(follower)
            return code

    def _follow(self, follower: Follower) -> Generator[float, float | None, None]:
        """Wait until the trackers have the last rows: a job's other processes end with this one."""
        while follower.is_at_work:
            yield from self.clock.hand_over()
            if not self.clock.in_company:
                time.sleep(0.05)
        for line in failures([self.rundir]):
            self._say(line)

    def _train(self, first: int, rows: MetricsWriter | None) -> Steps:
        training, n_steps = self.training, self.run.n_steps
        gc.freeze()  # the collector need not look at the imports' objects again
        began = time.perf_counter()
        self.began = self.clock.now()
        self.warm_step, self.warm = first, self.began
        readings, stopping = Readings(self.engine, wait=self.clock.wait), False
        for step in range(first + 1, n_steps + 1):
            self.watch.begin(step)
            lr = learning_rate(step, training)
            loss, norm = self.stepper.step(self._batch(step), lr)
            save_state = step in self.save_after
            writes = save_state or step in self.due
            logged = writes or step % training.log_every == 0
            if logged:
                readings.put(step, lr, loss, norm, self.stop.name is not None)
            # a step is written only after its numbers were read; a single process need not wait to stop
            now = writes or step == first + 1 or (self.stop.name is not None and self.engine.ranks.world == 1)
            for until in (step if now else step - readings.lag, step):
                for reading in readings.take(until):
                    if reason := self._record(reading, rows):
                        return self._fail(reading.step, reason)
                    stopping = (stopping or reading.stop) and step < n_steps
                ends = stopping and logged
                if not ends:
                    break
            if (writes or ends) and rows is not None:
                rows.flush()
            if step in self.due and not self._write_checkpoint(step):
                return self._fail(step, "the probe loss of the checkpoint is not finite")
            if save_state or ends:
                self._save_state(step)
            if ends:
                return self._stopped(step)
            if step == first + 1:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                self.warm_step, self.warm = step, self.clock.now()
                elapsed = time.perf_counter() - self.started
                self._say(f"first step {elapsed:.1f} s after the start of the process")
            if not (self.clock.in_company and self.bursts.goes_on(disturbed=writes)):
                yield from self.clock.hand_over()
        self._status("done", n_steps)
        elapsed, own_time = time.perf_counter() - began, self.clock.now() - self.began
        others = f", of which {own_time:.1f} s were its own: runs took turns" if elapsed - own_time >= 0.1 else ""
        self._say(f"done: {self.run.n_tokens} tokens, {elapsed:.1f} s{others}")
        return 0

    def _wait_for_gpu(self) -> None:
        if self.device.type == "cuda":
            self.clock.wait(torch.cuda.synchronize)

    def _batch(self, step: int) -> torch.Tensor:
        """This rank's rows of the batch of `step` (1-based), pinned where a GPU fetches them."""
        tokens = torch.from_numpy(self.loader.batch(step - 1, self.engine.rows))
        return tokens.pin_memory() if self.device.type == "cuda" else tokens

    def _record(self, reading: Reading, rows: MetricsWriter | None) -> str | None:
        """Append the row of a step; that of a skipped one has no gradient norm, and is left out where its loss is not
        finite either. Returns the reason where the run fails."""
        loss_is_bad, is_skipped = not math.isfinite(reading.loss), not math.isfinite(reading.grad_norm)
        if reading.n_skipped > self.n_skipped:
            self.n_skipped = reading.n_skipped
            self._say(f"step {reading.step}: {self._skips()}")
        if reading.in_a_row >= MOST_SKIPPED or (loss_is_bad and not is_skipped):
            if rows is not None:
                rows.flush()
            return f"loss is {reading.loss}" if not is_skipped else f"grad_norm is {reading.grad_norm}"
        if rows is not None and not loss_is_bad:
            now, batch = self.clock.now(), self.training.batch_tokens
            row = {"step": reading.step, "n_tokens": reading.step * batch, "loss": reading.loss}
            row |= {} if is_skipped else {"grad_norm": reading.grad_norm}
            row |= {"lr": reading.lr, "time_s": round(now - self.began, 4)}
            alone = self.bursts.step_seconds
            speed = batch / alone if alone else (reading.step - self.warm_step) * batch / (now - self.warm)
            row |= {"tokens_per_s": round(speed, 1)}
            rows.append(row | ({"skipped_steps": self.n_skipped} if self.n_skipped else {}))
        return None

    def _skips(self) -> str | None:
        """The steps that were skipped so far, None where there are none."""
        n = self.n_skipped
        return f"{counted(n, 'step was', 'steps were')} skipped, the gradient not finite" if n else None

    def _resume(self) -> int:
        """Continue from the newest intact state, or, for a branch without a state, from its trunk's. Returns its step,
        0 without a state."""
        self.due, self.save_after = set(self.run.checkpoint_steps), set(self.run.state_steps)
        folder, step, warnings = self.rundir.path / "state", 0, list[str]()
        origin: Origin | None = None
        if self.first_rank:
            step, warnings = state.newest_state(folder, self.run.spec_hash)
            while step and not self._rows_lead_to(step):
                warnings.append(
                    f"warning: {self.rundir.metrics} lacks rows before step {step} or has others than were written: "
                    f"the state after that step is not used"
                )
                state.remove_after(folder, step - 1)
                step, more = state.newest_state(folder, self.run.spec_hash)
                warnings += more
            reached = metrics.last_step(self.rundir.metrics, self.run.n_steps)
            if not step and any(due < reached for due in self.save_after):
                warnings.append(f"warning: {folder} holds no usable state: step {reached} was reached, starting again")
            state.remove_after(folder, step)
            remove_unfinished(self.rundir.path, self.rundir.path / "checkpoints")
            if self.rundir.status()["state"] in ENDED:  # its record names the rows that are cut now
                self._status("running", step)
            metrics.cut(self.rundir.metrics, step)
            if line := record_code(self.rundir, self.run.plugins, step):
                warnings.append(line)
            if not step and self.run.trunk is not None:
                origin = hand_over(self.rundir, self.run, self.corpus)
        step, origin = self.engine.from_first_rank((step, origin))
        if step:
            state.load_state(self.engine, folder, step)
        elif origin is not None:
            step = origin.step
            state.load_state(self.engine, self.rundir.path.parent / origin.trunk / "state", step)
            self._say(f"begins from {origin}")
        self.stepper.forget()
        self.n_skipped = int(self.engine.skipped[0])
        if self.first_rank:
            warnings += self._look_at_checkpoints(step)
            for warning in warnings:
                print(warning, file=sys.stderr, flush=True)
        self._status("running", step)
        self._say(
            f"step {step} of {self.run.n_steps}, {counted(self.engine.ranks.world, 'process', 'processes')}, "
            f"{self.device.type}"
        )
        if step in self.due:  # damaged since; the state still has it
            self._write_checkpoint(step)
        return step

    def _rows_lead_to(self, step: int) -> bool:
        """Whether metrics.jsonl holds the rows that the state after `step` was saved with."""
        saved_with = (read_saved(self.rundir.state(step), verify=False) or {}).get("metrics")
        return bool(saved_with == metrics.record_of(self.rundir.metrics, step))

    def _look_at_checkpoints(self, step: int) -> list[str]:
        """Find the last good checkpoint up to `step`. Returns a warning for each earlier checkpoint that is lost."""
        warnings = []
        checkpoints = self.rundir.checkpoints(verify=is_small(self.run))
        intact = {c.step for c in checkpoints if c.manifest.get("spec_hash") == self.run.spec_hash}
        for due in sorted(self.due):
            path = self.rundir.checkpoint(due)
            if due in intact and due <= step:
                self.last_checkpoint = f"checkpoints/{path.name}"
            elif due < step:
                warnings.append(f"warning: {path} is missing or damaged and lies before step {step}: not written again")
        return warnings

    def _write_checkpoint(self, step: int) -> bool:
        """Write the checkpoint after `step` unless it is there; False where its probe loss is not finite."""
        path, good = self.rundir.checkpoint(step), True
        is_there = self.first_rank and checkpoint_writer.valid_checkpoint(path, self.run.spec_hash)
        is_there, model = self.engine.from_first_rank(is_there), saved_model(self.engine)
        if model is None or (is_there and self._is_written(step, model)):
            pass
        elif not self.first_rank:
            assert isinstance(model, ShardedModel)
            model.follow(checkpoint_writer.DTYPES[self.training.checkpoint_dtype], self.probe)
        else:
            manifest = self.identity | {"step": step, "n_tokens": step * self.training.batch_tokens}
            try:
                loss = checkpoint_writer.write_checkpoint(
                    path,
                    model,
                    self.training.checkpoint_dtype,
                    self.probe,
                    self.device,
                    manifest,
                    self.tokenizer,
                )
                self._say(f"step {step}: checkpoint, probe loss {loss:.4f}")
            except checkpoint_writer.ProbeError:
                good = False
        good = self.engine.from_first_rank(good)
        if good:
            self.last_checkpoint = f"checkpoints/{path.name}"
            self._status("running", step)
        return good

    def _is_written(self, step: int, model: LanguageModel | ShardedModel) -> bool:
        """Whether an earlier process wrote the checkpoint after `step`, which is there, with the weights of `model`.
        They differ where steps do not repeat to the bit: on another machine, or by kernels that add in any order."""
        if checkpoint_writer.holds(self.rundir.checkpoint(step), model):
            return True
        self._say(f"step {step}: the checkpoint there has other weights than this process computes: written again")
        return False

    def _save_state(self, step: int) -> None:
        manifest = self.identity | {"n_tokens": step * self.training.batch_tokens}
        if self.first_rank:
            manifest["metrics"] = metrics.record_of(self.rundir.metrics, step)
        keep, held = self.training.keep_states, self.run.branch_steps
        state.save_state(self.engine, self.rundir.path / "state", step, manifest, keep, held)

    def _fail(self, step: int, what: str) -> int:
        reason = f"{what} at step {step}" + (f" ({skips})" if (skips := self._skips()) else "")
        self._status("failed", step, reason)
        last = self.last_checkpoint or "none"
        self._say(f"failed: {reason} (last good checkpoint: {last}); lower training.lr or change the model")
        return EXIT_FAILED

    def _stopped(self, step: int) -> int:
        reason = f"stopped by {self.stop.name or 'another process'} after step {step}, to be continued"
        self._status("running", step, reason)
        self._say(reason)
        return EXIT_STOPPED

    def _status(self, name: str, step: int, reason: str | None = None) -> None:
        if self.first_rank:
            n_tokens = step * self.training.batch_tokens
            self.rundir.write_status(name, step, n_tokens, reason or self._skips(), self.last_checkpoint)

    def _say(self, line: str) -> None:
        if self.first_rank:
            print(f"{self.run.run_id}: {line}", flush=True)

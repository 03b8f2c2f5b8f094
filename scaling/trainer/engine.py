"""The DeepSpeed engine of a run: process group, parameter groups, precision, one optimizer step.

DeepSpeed is used as a library: the process group is made here from the environment of torchrun or jobs.task (or for
one process alone), never by its launcher or its MPI discovery, and the optimizer is PyTorch's own AdamW.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from arch.amounts import counted
from arch.errors import InputError
from arch.model.layers import Layer
from arch.model.lm import LanguageModel
from arch.model.sequence import SequenceGroup

from ..rundir.launcher import Ranks, ranks_of
from ..rundir.saved import STEP, WEIGHT, Held
from ..study.training import split_batch
from .optimizers import Adam, AdamW, optimizer_of
from .pieces import Part, read_part, read_step, write_piece
from .stop import StopRequest
from .store import shared_store
from .watch import PATIENCE_S

if TYPE_CHECKING:
    from ..study.training import Training

BUCKET_ELEMENTS = 200_000_000  # of a ZeRO reduction; smaller models use their own size
PERSISTENT = 1 << 14  # numbers of a parameter that stage 3 leaves whole: vectors
TIMEOUT = timedelta(seconds=PATIENCE_S + 120)  # of a collective: watch.py ends the process before
T = TypeVar("T")


def start_distributed(device_type: str, stop: StopRequest | None = None) -> Ranks:
    """Join the run's process group: NCCL on CUDA, gloo elsewhere. One process alone needs no address and no port.

    Raises InputError where the environment does not name the processes, or the others do not arrive, and Stopped where
    `stop` ends the wait for them.
    """
    if dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.setdefault("LOCAL_RANK", "0")))
    ranks = ranks_of(os.environ)
    os.environ["LOCAL_RANK"] = str(ranks.local)  # DeepSpeed asks for it
    backend = "nccl" if device_type == "cuda" else "gloo"
    options: dict[str, Any] = {
        "store": shared_store(ranks, stop or StopRequest()) if ranks.world > 1 else dist.HashStore()
    }
    if device_type == "cuda":
        if ranks.local >= (n_gpus := torch.cuda.device_count()):
            raise InputError(f"environment: LOCAL_RANK={ranks.local}, but this process sees {counted(n_gpus, 'GPU')}")
        torch.cuda.set_device(ranks.local)
        options["device_id"] = torch.device("cuda", ranks.local)
    on_same_host = os.environ.get("LOCAL_WORLD_SIZE") == str(ranks.world)
    if ranks.world > 1 and on_same_host and "lo" in dict(socket.if_nameindex()).values():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # host names need not resolve
    dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.world, timeout=TIMEOUT, **options)
    return ranks


def load_deepspeed(device_type: str) -> Any:
    """Import DeepSpeed for this device, without compiling its CPU communication and with warnings only."""
    os.environ.setdefault("DS_ACCELERATOR", device_type)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # PyTorch's advice to DeepSpeed, not to the user
    warnings.filterwarnings("ignore", "`torch.distributed.*` is deprecated", FutureWarning)
    import deepspeed
    import deepspeed.ops
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    if AdamW not in ZERO_SUPPORTED_OPTIMIZERS:
        ZERO_SUPPORTED_OPTIMIZERS.extend([Adam, AdamW])
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed's compiler is not used, nor is its Muon, which ZeRO imports; each would import torch's for 4 to 6 s
    deepspeed.runtime.engine.is_deepcompile_supported = lambda: False
    deepspeed.runtime.compiler.compile = lambda: lambda function: function
    if device_type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else a 30 s build at the first initialize
    return deepspeed


@contextmanager
def _filled(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside, sharded parameters are whole and on the CPU; then each process keeps its share of the first one's."""
    from deepspeed.runtime.zero import GatheredParameters

    held = list(parameters)
    with GatheredParameters(held, modifier_rank=0):
        gathered = [parameter.data for parameter in held]
        for parameter in held:
            parameter.data = parameter.data.cpu()
        yield
        for parameter, data in zip(held, gathered, strict=True):
            data.copy_(parameter.data)
            parameter.data = data


def _gathered(module: torch.nn.Module) -> int:
    """Numbers that stage 3 gathers each time."""
    return sum(p.numel() for p in module.parameters() if p.numel() > PERSISTENT)


def _let_go(deepspeed_engine: Any) -> None:
    """Free what DeepSpeed 0.19.8 keeps of an engine until the process ends: its hooks, from stage 1 on; at stage 3
    modules that were called, in a list and as keys of a cache."""
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator

    deepspeed_engine.destroy()
    modules = set(deepspeed_engine.module.modules())
    FWD_MODULE_STACK[:] = [module for module in FWD_MODULE_STACK if module not in modules]
    cached = inspect.getclosurevars(Coordinator._PartitionedParameterCoordinator__params_to_release)
    cached.nonlocals["func"].cache_clear()


class Engine:
    """A model under DeepSpeed: `step` on this rank's rows of the global batch, `save` and `load` of the state."""

    def __init__(
        self,
        model: LanguageModel,
        training: Training,
        batch_rows: int,
        device: torch.device,
        ranks: Ranks | None = None,
        seed: int | None = None,
        sequence_processes: int = 1,
    ) -> None:
        """model: on the CPU; the first rank's weights count, and with `seed` those that `build_model` makes of it: at
        stage 3 no process then holds them all. `batch_rows` is the global batch in sequences. Raises InputError where
        it does not split over ranks and micro-batches. sequence_processes: that many neighbouring ranks have the same
        rows, and read a part of each; every rank must make its engine then."""
        self.ranks = ranks or Ranks()
        self.device = device
        self.model = model
        self.stage = training.zero_stage
        self.grad_clip = training.grad_clip
        context, world = model.model_config.context_length, self.ranks.world
        split = split_batch(training, context, world, batch_rows, sequence_processes)
        if not split.is_even:
            in_parts = f", {sequence_processes} to a sequence," if sequence_processes > 1 else ""
            raise InputError(
                f"training.batch_tokens: {counted(batch_rows, 'sequence does', 'sequences do')} not split over "
                f"{counted(world, 'process', 'processes')}{in_parts} and "
                f"micro-batches of {split.micro_rows}; change batch_tokens, micro_batch_tokens or the number of "
                f"processes"
            )
        self.micro_rows, self.accumulate = split.micro_rows, split.passes
        place = self.ranks.rank // sequence_processes
        self.rows = slice(place * split.process_rows, (place + 1) * split.process_rows)
        if sequence_processes > 1:
            model.decoder.split(SequenceGroup(dist.new_subgroups(sequence_processes, timeout=TIMEOUT)[0]))

        deepspeed = load_deepspeed(device.type)
        self.optimizer, config = optimizer_of(model.train(), training), self._config(training)
        if self.stage == 3:  # parameter by parameter: a device may not hold the whole model
            deepspeed.init_distributed(dist_init_required=False)
            deepspeed.utils.set_z3_leaf_modules(model, [Layer])  # a layer's weights are gathered at once
            deepspeed.zero.Init(module=model, config_dict_or_path=config, dtype=torch.float32)
        if seed is not None and (self.stage == 3 or not self.ranks.rank):
            model.reset_parameters(seed, _filled if self.stage == 3 else nullcontext)
        model.to(device)
        self.deepspeed_engine = deepspeed.initialize(
            model=model, optimizer=self.optimizer, config=config, dist_init_required=False
        )[0]
        if self.stage:
            weakref.finalize(self, _let_go, self.deepspeed_engine).atexit = False
        self._groups = self.deepspeed_engine.optimizer.param_groups
        self._parameters = list(model.parameters())
        self.autocast_dtype = torch.bfloat16 if training.precision == "bf16" else None
        self.skipped = torch.zeros(2, device=device)  # steps without a finite gradient: all, and in a row
        self._keeps = torch.tensor([1.0, 0.0], device=device)

    def _config(self, training: Training) -> dict[str, Any]:
        bucket = min(BUCKET_ELEMENTS, sum(p.numel() for p in self.model.parameters()))
        config: dict[str, Any] = {
            "train_batch_size": self.micro_rows * self.accumulate * self.ranks.world,
            "train_micro_batch_size_per_gpu": self.micro_rows,
            "gradient_accumulation_steps": self.accumulate,
            # Stage 0 has no gradient norm to show: `step` clips there, in the same pass that measures it.
            "gradient_clipping": self.grad_clip if self.stage else 0.0,
            "zero_optimization": self._sharding(bucket),
            "steps_per_print": None,
            "timers": {"throughput": {"enabled": False}},  # it would synchronise the device every step
        }
        if training.precision == "bf16":
            # An empty list: gradients of Linear layers would be reduced in bf16 otherwise.
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        return config

    def _sharding(self, bucket: int) -> dict[str, Any]:
        if self.stage < 3:
            buckets = {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
            return {"stage": self.stage, "overlap_comm": False} | buckets
        decoder = self.model.decoder
        layer = max(sum(p.numel() for p in layer.parameters()) for layer in decoder.layers)
        gathered = max(map(_gathered, decoder.layers))
        # the embedding and what else the decoder has beside layers is held from its first layer to its last
        held = _gathered(decoder) - _gathered(decoder.layers)
        return {
            "stage": 3,
            "overlap_comm": True,  # gathers run beside the layer before
            "reduce_bucket_size": min(bucket, layer),
            "stage3_prefetch_bucket_size": gathered,
            "stage3_max_live_parameters": held + 2 * gathered,  # a layer and the next: with less none is fetched ahead
            "stage3_param_persistence_threshold": PERSISTENT,
            "memory_efficient_linear": False,  # it would replace torch.nn.functional.linear for the whole process
            "stage3_max_reuse_distance": 0,  # a layer's weights are released behind it
        }

    def step(self, tokens: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        """One optimizer step on this rank's rows, int64 [local rows, context + 1].

        Returns this rank's mean loss (nats per token) and the global gradient norm before clipping, both scalars on
        the device, not yet waited for.
        """
        total = self.passes(tokens)
        return total / self.accumulate, self.update(lr)

    def passes(self, tokens: torch.Tensor, average: bool = True) -> torch.Tensor:
        """The sum of the micro-batches' losses; their mean's gradients, averaged over ranks, are in the parameters."""
        engine, total = self.deepspeed_engine, None
        engine.micro_steps -= engine.micro_steps % self.accumulate  # passes may be made again
        reduces, engine.enable_backward_allreduce = engine.enable_backward_allreduce, bool(self.stage)
        tokens = tokens.to(self.device, non_blocking=True)
        for micro in tokens.split(self.micro_rows):
            if total is not None:
                engine.step()  # counts the micro-batch before
            loss = engine(input_ids=micro[:, :-1], targets=micro[:, 1:], loss_only=True).loss
            engine.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        engine.enable_backward_allreduce = reduces
        if average and not self.stage:
            self.average_gradients()
        assert total is not None
        return total

    def update(self, lr: float) -> torch.Tensor:
        """Update the weights by the gradients of `passes`; the global gradient norm before clipping. Where that is not
        finite, weights and moments stay as they are and the step is counted in `skipped`: on every rank alike."""
        if self.device.type == "cuda":
            lr = float(np.float32(lr))  # as a graph reads it
        for group in self._groups:
            group["lr"] = lr
        norm = None if self.stage else self.clip()
        self.deepspeed_engine.step()
        if norm is None:  # DeepSpeed itself made no update where it is not finite
            norm = torch.as_tensor(self.deepspeed_engine.get_global_grad_norm(), device=self.device)
            self._count_skipped(norm)
        return norm

    def clip(self) -> torch.Tensor:
        """Clip all gradients, and have the optimizer skip its step where their norm is not finite. Returns the norm
        before. Not under ZeRO."""
        norm = torch.nn.utils.get_total_norm(self.gradients())
        self.optimizer.found_inf = self._count_skipped(norm)
        if self.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.grad_clip, norm)
        return norm

    def _count_skipped(self, norm: torch.Tensor) -> torch.Tensor:
        """1.0 where the norm is not finite, else 0.0, counted on the device."""
        is_bad = (norm - norm).ne(0)
        self.skipped.copy_(torch.where(is_bad, self.skipped + 1, self.skipped * self._keeps))
        return is_bad.float()

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def average_gradients(self) -> None:
        """Average the gradients over ranks in place, by one launch. Not under ZeRO. (DeepSpeed copies them into a
        buffer and back.)"""
        if self.ranks.world > 1:
            with dist._coalescing_manager():
                for gradient in self.gradients():
                    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)

    def first_reason(self, reason: str | None) -> str | None:
        """The first rank's reason that is not None, on every rank."""
        return next((first for first in self.together(lambda: reason) if first), None)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over ranks of a small vector, on the device, not yet waited for."""
        if self.ranks.world > 1:
            dist.all_reduce(values)
            values = values / self.ranks.world
        return values

    def from_first_rank(self, value: Any) -> Any:
        """Rank 0's `value` on every rank; also a barrier."""
        if self.ranks.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def together(self, work: Callable[[], T]) -> list[T]:
        """What `work` returns on each rank, on every rank; an OSError or InputError that ends it on one is raised on
        all."""
        outcome: T | OSError | InputError
        try:
            outcome = work()
        except (OSError, InputError) as error:
            outcome = error
        outcomes: list[Any] = [outcome] * self.ranks.world
        if self.ranks.world > 1:
            dist.all_gather_object(outcomes, outcome)
        for result in outcomes:
            if isinstance(result, (OSError, InputError)):
                raise result
        return outcomes

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of every parameter by name, partitioned ones too."""
        return {name: list(getattr(p, "ds_shape", p.shape)) for name, p in self.model.named_parameters()}

    def save(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Write this process's piece of the state into `folder`; what `write_piece` says of it, by its name."""
        rank, world = self.ranks.rank, self.ranks.world
        parts = self._parts() if self.stage else (part.share(rank, world) for part in self._parts())
        name = f"{rank:05d}-of-{world:05d}.safetensors"
        return {name: write_piece(folder / name, parts, self.optimizer.state)}

    def load(self, held: Held) -> None:
        """Continue from a state that any number of processes wrote at any stage; every rank must call it. Raises
        InputError where it cannot be read."""
        zero, state = self.deepspeed_engine.optimizer, self.optimizer.state
        if self.stage == 3:
            zero.checkpoint_event_prologue()  # frees the copies of whole weights
        state.clear()
        for part in self._parts():
            for kind, parts in held[part.name].items():
                if kind == WEIGHT:
                    read_part(parts, part, part.flat)
                    continue
                of_flat = state[part.flat]
                if kind == STEP:
                    step = torch.tensor(read_step(parts), device=self.device)
                    of_flat[STEP] = torch.maximum(step, of_flat.get(STEP, step))
                    continue
                if kind not in of_flat:
                    of_flat[kind] = torch.zeros_like(part.flat)
                read_part(parts, part, of_flat[kind])
        if self.stage == 3:
            for group in range(len(zero.fp32_partitioned_groups_flat)):
                zero._reassign_or_swap_out_partitioned_parameters(group)
            zero.checkpoint_event_epilogue()
        elif self.stage:
            zero.update_lp_params()

    def _parts(self) -> Iterator[Part]:
        """What this process updates of each parameter: all of it at stage 0, else its share. DeepSpeed 0.19.8's own
        functions do not serve: safe_get_full_* gather every parameter on every process, and its moments not at all at
        stages 1 and 2 for groups after the first; safe_set_full_* fail at stage 3 where a size is no multiple of the
        processes; safe_get_local_* know stage 3 alone."""
        zero = self.deepspeed_engine.optimizer
        parameter: Any  # DeepSpeed gives it what it knows of its partition
        for name, parameter in self.model.named_parameters():
            if self.stage == 0:
                yield Part(name, 0, parameter, 0, parameter.numel())
            elif self.stage == 3:
                group, offset, size = zero.grad_position[zero.get_param_id(parameter)]
                start = self.ranks.rank * size  # the last one's is padded
                if (length := min(size, parameter.ds_numel - start)) > 0:
                    yield Part(name, start, zero.fp32_partitioned_groups_flat[group], offset, length)
            elif (held := parameter._hp_mapping) is not None:
                flat = zero.single_partition_of_fp32_groups[held.param_group_index]
                part, place = held.lp_fragment_address, held.hp_fragment_address
                yield Part(name, part.start, flat, place.start, part.numel)

"""Runs Gluon kernels on a CPU: their source with this module in the place of Gluon, of which it has what they use.

Partitions of a warp specialisation are threads. What is asynchronous on a GPU is late here: products are computed when
they are waited for, copies from global memory end after a random time, stores read their buffer at the last moment, so
that a buffer reused too early shows in the results. Barriers count as the hardware's do and complain about arrivals too
many; a wait of more than TIMEOUT seconds is a deadlock. Layouts, registers and fences mean nothing here.
"""

import importlib.util
import random
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch

TIMEOUT = 20.0
MEMORY = 227 * 1024  # of a program, in bytes, counted in bf16
_local = threading.local()  # of a thread: program, programs; products, stores and bytes of its own
_failed = threading.Event()


class Descriptor:
    """x of two or three axes in blocks, zeros around it."""

    def __init__(self, x, *block):
        self.x, self.shape, self.dtype, self.layout = x.detach(), list(x.shape), x.dtype, None
        nbytes = x.element_size() * torch.Size(block).numel()
        self.block_type = SimpleNamespace(shape=list(block), nbytes=nbytes)
        assert all(0 < size <= 256 for size in block) and x.stride(-1) == 1

    def inside(self, at):
        """Where the block at `at` lies in x, and which part of it does."""
        there, here = [], []
        for start, size, limit in zip(at, self.block_type.shape, self.shape, strict=True):
            length = max(0, min(start + size, limit) - start)
            there.append(slice(start, start + length))
            here.append(slice(0, length))
        return tuple(there), tuple(here)


class Pointer:
    """To the numbers of a tensor, as a kernel adds to it."""

    def __init__(self, x, at=0):
        self.x, self.at = x.detach(), at

    def __add__(self, more):
        return Pointer(self.x, self.at + more)

    def load(self, mask, other):
        return torch.where(mask, self.x.flatten()[torch.where(mask, self.at, 0)], other)

    def store(self, value, mask):
        assert self.x.dtype == value.dtype and self.x.is_contiguous()
        self.x.view(-1)[self.at[mask]] = value[mask]


class Shared:
    def __init__(self, data):
        self.data, self.shape, self.dtype = data, list(data.shape), data.dtype

    def index(self, number):
        assert 0 <= number < self.shape[0]
        return Shared(self.data[number])

    def slice(self, start, length, dim):
        return Shared(self.data.narrow(dim, start, length))

    def reshape(self, shape):
        return Shared(self.data.view(shape))

    def permute(self, order):
        return Shared(self.data.permute(order))

    def store(self, x):
        assert list(x.shape) == self.shape and x.dtype == self.dtype
        self.data.copy_(x)

    def load(self, layout):
        return self.data.clone()


class Barrier:
    def __init__(self):
        self.changed, self.phase, self.count, self.bytes = threading.Condition(), 0, 0, 0

    def start(self, count):
        self.count = self.left = count

    def change(self, arrivals, size):
        nap()
        with self.changed:
            assert self.count, "a barrier was not initialised"
            self.left -= arrivals
            self.bytes += size
            assert self.left >= 0, "arrivals too many"
            if self.left == 0 and self.bytes == 0:
                self.phase, self.left = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, parity):
        end = time.time() + TIMEOUT
        with self.changed:
            while self.phase % 2 == parity:
                self.changed.wait(0.2)
                assert not _failed.is_set(), "another thread failed"
                assert time.time() < end, "deadlock"
        nap()


class Barriers:
    def __init__(self, number):
        self.all, self.shape = [Barrier() for _ in range(number)], [number, 1]

    def index(self, number):
        assert 0 <= number < len(self.all)
        return self.all[number]


def nap():
    """Each thread has a speed of its own for a while."""
    if random.random() < 0.02 or not hasattr(_local, "speed"):
        _local.speed = random.choice([0.0, 0.0, 0.0, 0.0003, 0.001])
    if _local.speed:
        time.sleep(random.random() * _local.speed)


def _copy_in(tensor, at, there, buffer):
    assert buffer.shape == tensor.block_type.shape and buffer.dtype == tensor.dtype, (buffer.shape, tensor.block_type)

    def run():
        nap()
        inside, part = tensor.inside(at)
        buffer.data.zero_()
        buffer.data[part] = tensor.x[inside]
        there.change(0, -tensor.block_type.nbytes)

    threading.Thread(target=run, daemon=True).start()


def _copy_out(tensor, at, buffer):
    assert buffer.shape == tensor.block_type.shape

    def run():
        inside, part = tensor.inside(at)
        tensor.x[inside] = buffer.data[part]

    _local.stores.append(run)


def _leave(queue, number):
    while len(queue) > number:
        queue.pop(0)()


def _multiply(a, b, product, is_async):
    assert is_async and a.shape[1] == b.shape[0]
    _local.products.append(lambda: product.add_(a.data.float() @ b.data.float()))
    return product


def _wait_for_products(number, deps):
    _leave(_local.products, number)
    return deps[0] if len(deps) == 1 else tuple(deps)


def _allocate(dtype, shape, layout):
    if dtype == torch.int64:
        return Barriers(shape[0])
    _local.bytes += 2 * torch.Size(shape).numel()
    assert _local.bytes <= MEMORY, f"{_local.bytes} bytes of shared memory"
    return Shared(torch.full(shape, float("nan"), dtype=dtype))


def _specialize(partitions, warps, registers):
    assert len(partitions) == len(warps) + 1 == len(registers) + 1
    program, errors = _local.program, []

    def run(function, arguments):
        _local.program, _local.products, _local.stores = program, [], []
        try:
            function(*arguments)
            assert not _local.products and not _local.stores, "left under way"
        except BaseException as error:
            errors.append(error)
            _failed.set()

    threads = [threading.Thread(target=run, args=partition, daemon=True) for partition in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if "another" not in str(error)), errors[0])


def _assert(condition):
    assert condition


def _constexpr(value):
    return value


language = SimpleNamespace(
    constexpr=_constexpr, float32=torch.float32, bfloat16=torch.bfloat16, int64=torch.int64,
    program_id=lambda axis: _local.program[0], num_programs=lambda axis: _local.program[1],
    full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
    split=lambda x: (x[..., 0], x[..., 1]), permute=lambda x, order: x.permute(order),
    reshape=lambda x, shape: x.reshape(shape), convert_layout=lambda x, layout: x, static_range=range,
    static_assert=_assert, allocate_shared_memory=_allocate, warp_specialize=_specialize, barrier=nap,
    NVMMADistributedLayout=lambda *arguments: None, SliceLayout=lambda axis, layout: None,
    arange=lambda start, stop, layout: torch.arange(start, stop), sum=lambda x, axis: x.sum(axis),
    expand_dims=lambda x, axis: x.unsqueeze(axis), rsqrt=torch.rsqrt,
    load=lambda pointer, mask, other: pointer.load(mask, other),
    store=lambda pointer, value, mask: pointer.store(value, mask),
)  # fmt: skip
hopper = SimpleNamespace(
    fence_async_shared=nap, warpgroup_mma=_multiply, warpgroup_mma_wait=_wait_for_products,
    mbarrier=SimpleNamespace(
        init=Barrier.start, wait=Barrier.wait, MBarrierLayout=lambda: None,
        expect=lambda barrier, size: barrier.change(1, size),
        arrive=lambda barrier, count=1, pred=True: barrier.change(count, 0) if pred else None,
    ),
    tma=SimpleNamespace(
        async_copy_global_to_shared=_copy_in, async_copy_shared_to_global=_copy_out,
        store_wait=lambda number: _leave(_local.stores, number),
    ),
)  # fmt: skip


def _jit(function=None, **options):
    return (lambda kernel: kernel) if function is None else function


def emulated(*names):
    """These modules of kernels, each of which may import from those before it, with their kernels as functions."""
    fakes = {
        "triton.experimental.gluon": SimpleNamespace(jit=_jit, language=language),
        "triton.experimental.gluon.language": language,
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
    }
    with mock.patch.dict(
        sys.modules, {"triton.experimental": SimpleNamespace(gluon=fakes["triton.experimental.gluon"]), **fakes}
    ):
        modules: list[ModuleType] = []
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            modules.append(module)
    return modules


class Launch:
    """A kernel as it is launched, `kernel[grid](..)`; num_warps means nothing."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def run(*arguments, num_warps, **constants):
            _failed.clear()
            arguments = [Pointer(x) if isinstance(x, torch.Tensor) else x for x in arguments]
            for program in range(grid[0]):
                _local.program, _local.bytes = (program, grid[0]), 0
                self.kernel(*arguments, **constants)

        return run

"""An encoder's steps are expected to take time for the positions that layers read, and for the outputs of the head."""

import dataclasses

import pytest

from arch.config import ModelConfig
from arch.presets import preset
from flops.hardware import device_of
from flops.pace import H200_PEAK, PADDED_HEAD, pace
from flops.registry import ENTRIES, entry_of

ROWS, LENGTH, PATCH = 512, 64, 4  # 8 x 8 patches
IMAGE = (32, 32, 3)
NUMBERS = 32 * 32 * 3 // LENGTH  # of a patch


def encoder(arch: str, length: int = LENGTH, vocab_size: int = 257, **fields: object) -> ModelConfig:
    return preset(arch, "70m", context_length=length, vocab_size=vocab_size, encoder={"n_classes": 10} | fields)


def seconds(config: ModelConfig, device: str) -> float:
    return pace(config, ROWS * config.context_length, device_of(device)).step_seconds


@pytest.mark.parametrize("device", ["h200", "cpu"])
@pytest.mark.parametrize("arch", ["llama", "hgrn2", "mamba1"])
def test_an_image_in_patches_takes_as_long_as_a_row_of_as_many_positions(arch, device):
    patches, row = encoder(arch, LENGTH * NUMBERS, image=IMAGE, patch=PATCH), encoder(arch)
    embedding = 6 * NUMBERS * row.d_model * LENGTH * ROWS  # FLOP
    assert 0 < seconds(patches, device) - seconds(row, device) < embedding / (0.1 * device_of(device).peak_flops_per_s)


@pytest.mark.parametrize("arch", ["llama", "hgrn2"])
def test_the_head_of_a_classifier_takes_time_once_a_row_for_its_classes(arch):
    few, many = encoder(arch), encoder(arch, n_classes=1010)
    *_, word_ns, _, share = entry_of(arch).times.replayed
    logit = 1e-9 * word_ns + 6 * few.d_model * share / H200_PEAK
    assert seconds(many, "h200") - seconds(few, "h200") == pytest.approx(ROWS * 1000 * logit)
    assert seconds(encoder(arch, vocab_size=100_280), "h200") == seconds(few, "h200")


def test_both_directions_of_a_recurrence_take_twice_the_time():
    both, language = encoder("hgrn2"), preset("hgrn2", "70m", context_length=LENGTH, vocab_size=257)
    *_, channel_ns, word_ns, core_share, share = entry_of("hgrn2").times.replayed
    of_layer = sum(entry_of("hgrn2").core(language, LENGTH).values())
    core = 3 * language.n_layers * of_layer * max(1, PADDED_HEAD / language.head_dim)
    head = 1e-9 * word_ns + 6 * language.d_model * share / H200_PEAK  # of a logit
    channels = 1e-9 * channel_ns * language.n_layers * language.d_model * LENGTH
    longer = channels + core * core_share / H200_PEAK - head * (257 * LENGTH - 10)
    assert seconds(both, "h200") - seconds(language, "h200") == pytest.approx(ROWS * longer)


def test_rows_and_columns_take_four_readings_of_short_lines():
    line, axes = (encoder("hgrn2", image=(8, 8, 1), patch=1, scan=scan) for scan in ("line", "axes"))
    *_, channel_ns, _, core_share, _ = entry_of("hgrn2").times.replayed
    long, short = (sum(entry_of("hgrn2").core(line, length).values()) for length in (64, 8))
    core = 3 * (4 * 8 * short - 2 * long) * max(1, PADDED_HEAD / line.head_dim) * core_share / H200_PEAK
    longer = line.n_layers * (core + 1e-9 * channel_ns * line.d_model * 2 * LENGTH)
    assert seconds(axes, "h200") - seconds(line, "h200") == pytest.approx(ROWS * longer)


@pytest.mark.parametrize(("device", "name"), [("h200", "replayed"), ("cpu", "core")])
def test_what_was_not_measured_takes_the_times_of_its_kind(device, name, monkeypatch):
    """Softmax those of LLaMA, a recurrence those of the slowest recurrence, which LLaMA's do not move."""
    softmax, linear = encoder("transformer"), encoder("gla")
    before = seconds(softmax, device), seconds(linear, device)
    llama = entry_of("llama")
    own = getattr(llama.times, name)
    longer = dataclasses.replace(llama.times, **{name: (*(3 * part for part in own[:-1]), own[-1])})
    monkeypatch.setitem(ENTRIES, "llama", dataclasses.replace(llama, times=longer))
    assert seconds(softmax, device) > before[0] and seconds(linear, device) == before[1]
    assert "slowest of its kind" in pace(softmax, ROWS * LENGTH, device_of(device)).basis

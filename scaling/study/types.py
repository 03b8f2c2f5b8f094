"""The kinds of values a study file holds, as strict pydantic types."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from arch.errors import InputError, nearest, shown
from arch.registry import KNOWN, check_plugins, meant
from data.vocabulary import vocabulary
from flops.quantity import MOST_FLOP

from .yaml_text import NUMBERS

LONGEST_NAME = 100  # of a study
LONGEST_NUMBER = 300  # digits that a float holds, and no more than Python reads
LONGEST_SIZE = 40  # of a size's name, which is part of the names of runs
MOST = 10**18  # of anything that is counted: tables hold counts as int64
SIZE = re.compile(r"[a-z0-9][a-z0-9.-]*")


class Section(BaseModel):
    """A part of a study file: no unknown keys, no silent conversions, no later changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


def section_at(schema: type[S], raw: Any, *place: str | int) -> S:
    """`raw` as a section; errors name its place below the field that is validated."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        lines: Any = [line | {"loc": (*place, *line["loc"])} for line in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(error.title, lines) from None


def refuse_at(message: str, *place: str | int) -> NoReturn:
    """Raise ValidationError with a message at a place below the field that is validated."""
    line: Any = {"type": "value_error", "loc": place, "input": None, "ctx": {"error": ValueError(message)}}
    raise ValidationError.from_exception_data("study file", [line])


def _number(value: Any) -> Any:
    """A number; also one in quotes or of the command line."""
    if isinstance(value, str) and len(value) < LONGEST_NUMBER:
        for kind, pattern in NUMBERS.items():
            if pattern.fullmatch(value):
                return {"int": int, "float": float}[kind](value.replace("_", ""))
    return value


FLAGS = {**dict.fromkeys(("yes", "on"), True), **dict.fromkeys(("no", "off"), False)}


def _flag(value: Any) -> Any:
    """Words that are text where text is expected."""
    return FLAGS.get(value.lower(), value) if isinstance(value, str) else value


def as_integer(value: Any) -> Any:
    """A whole number however it was written: 1e6, 1.0e+6; anything else unchanged."""
    value = _number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


MILLIONS = re.compile(r"(\d+\.?\d*|\.\d+)\s*([MBT])")  # no k: 8k is 8000 to some and 8192 to others
SCALES = {"M": 6, "B": 9, "T": 12}


def as_tokens(value: Any) -> Any:
    """A whole number as `as_integer` reads it, and 20M, 1.5B or 2T, exactly."""
    match = MILLIONS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return as_integer(value)
    scaled = Decimal(match[1]).scaleb(SCALES[match[2]])
    return int(scaled) if scaled == scaled.to_integral_value() else value


@dataclass(frozen=True)
class OneOf:
    """Refuses every name but those that are in `valid` when a value is checked; names the nearest one."""

    kind: str
    valid: Collection[str]

    def __call__(self, name: str) -> str:
        if name not in self.valid:
            raise ValueError(f"unknown {self.kind} {shown(name)}{meant(name, self.valid)}")
        return name


def one_of(kind: str, valid: Collection[str]) -> AfterValidator:
    """A name from `valid`; `kind` is what messages and docs/study-file.md call it."""
    return AfterValidator(OneOf(kind, valid))


def tokenizer_name(name: str) -> str:
    """The name of a tokenizer whose vocabulary is known: data/vocabulary.py."""
    try:
        vocabulary(name)
    except InputError as error:
        raise ValueError(str(error).removeprefix("corpus.tokenizer: ")) from None
    return name


def distinct(values: list[Any]) -> list[Any]:
    """A list of at least one value, none twice."""
    if not values:
        raise ValueError("must name at least one")
    return different(values)


def different(values: list[Any]) -> list[Any]:
    """A list that names none twice, 10N and 10.0N neither."""
    seen = set()
    for value in values:
        length = LENGTH.fullmatch(value) if isinstance(value, str) else None
        same = (Decimal(length[1]), length[2]) if length else value
        if same in seen:
            raise ValueError(f"names {shown(value)} twice")
        seen.add(same)
    return values


LENGTH = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e\+?\d+)?)\s*(N|FLOP)", re.ASCII)  # 20N, 2e14 FLOP


def _tokens(value: Any) -> int | str:
    """A count; a multiple of parameters or a training compute as it was written."""
    length = LENGTH.fullmatch(value) if isinstance(value, str) else None
    if length and 0 < float(length[1]) <= (MOST if length[2] == "N" else MOST_FLOP):
        return "".join(length.groups()).replace("+", "")
    count = as_tokens(value)
    if type(count) is not int:
        raise ValueError(
            f"must be a whole number as 2e9 or 2B, a multiple of N such as 20N, or a compute such as 2e14 FLOP, not "
            f"{shown(value)}"
        )
    if not 0 < count <= MOST:
        limit = "greater than 0" if count <= 0 else f"less than or equal to {MOST}"
        raise ValueError(f"must be {limit}, not {shown(value)}")
    return count


def _rate(value: Any) -> float | str:
    """A number, or the word that says that a law gives it."""
    if value == "law":
        return "law"
    number = _number(value)
    if type(number) not in (int, float):
        raise ValueError(f"must be a valid number, or the word law, not {shown(value)}")
    if not 0 < number <= sys.float_info.max:  # also of an integer that is no float
        raise ValueError(f"must be {'greater than 0' if number <= 0 else 'a finite number'}, not {shown(value)}")
    return float(number)


def _share(value: Any) -> float:
    """A number from 0 to 1; false is 0 and true is 1."""
    number = _number(_flag(value))
    if not isinstance(number, (bool, int, float)) or not 0 <= number <= 1:
        raise ValueError(f"must be true, false, or a number from 0 to 1, not {shown(value)}")
    return number


def tokens_of(value: int | str, n_params: Callable[[], int], flops_per_token: Callable[[], float]) -> int:
    """The tokens of a count; of a multiple of a model's parameters without embeddings; or of a training compute, at
    its FLOP for a token (`exact`). Rounded up. Raises InputError for more than tables hold."""
    if isinstance(value, int):
        return value
    length = LENGTH.fullmatch(value)
    assert length is not None, "a section has read it"
    number = float(length[1])
    n_tokens = max(1, math.ceil(round(number * n_params() if length[2] == "N" else number / flops_per_token(), 3)))
    if n_tokens > MOST:
        raise InputError(f"{value} of a model of {n_params():,} parameters are more than {MOST:.0e} tokens: plan fewer")
    return n_tokens


def word_of_size(name: str) -> str:
    """`name`, where it can name a size."""
    if not SIZE.fullmatch(name) or len(name) > LONGEST_SIZE or re.search(r"-c\d+-s\d", name):
        raise ValueError(
            f"{shown(name)} cannot name a size: write small letters, digits, '.' and '-', the first a letter or digit, "
            f"at most {LONGEST_SIZE}"
        )
    return name


def _run_key(key: str) -> str:
    arch, slash, size = key.partition("/")
    if arch not in KNOWN:
        raise ValueError(f"unknown architecture {shown(arch)}{nearest(arch, list(KNOWN))}; write arch/size")
    if not slash:
        raise ValueError(f"{shown(key)} names no size: write arch/size")
    word_of_size(size)
    return key


def _resource_key(key: str) -> str:
    return _run_key(key) if "/" in key else key if key in KNOWN else word_of_size(key)


def _single_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _no_control(text: str) -> str:
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in text):
        raise ValueError(f"{shown(text)} holds a control character, which no name of a file should")
    return text


def _ascending(values: list[int]) -> list[int]:
    if not values or values != sorted(set(values)):
        raise ValueError("must be a list of token counts, each larger than the one before")
    return values


def _pair(values: list[float]) -> list[float]:
    if len(values) != 2 or not values[0] < values[1]:
        raise ValueError(f"must be [smallest, largest] compute in FLOP, not {shown(values)}")
    return values


def _betas(values: list[float]) -> list[float]:
    if len(values) != 2:
        raise ValueError(f"must be two numbers, not {len(values)}")
    return values


def _imported(names: list[str]) -> list[str]:
    check_plugins(names)
    return names


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) or len(text) > LONGEST_NAME:
        raise ValueError(
            f"{shown(text)} becomes the name of a directory: write letters, digits, '.', '_' and '-', "
            f"the first a letter or digit, at most {LONGEST_NAME}"
        )
    return text


def _words(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _ranges(value: Any) -> Any:
    """One pair is for every architecture."""
    if not isinstance(value, list):
        return value
    numbers = [_number(number) for number in value]
    if all(isinstance(number, int | float) for number in numbers):
        _pair(numbers)  # one error, not one for each architecture
    return dict.fromkeys(KNOWN, value)


Arch = Annotated[str, one_of("architecture", KNOWN)]
Tokenizer = Annotated[str, AfterValidator(tokenizer_name)]
# A word; file.py checks whether the study has a size of that name.
Size = Annotated[str, AfterValidator(word_of_size)]
Count = Annotated[int, BeforeValidator(as_integer), Field(gt=0, le=MOST)]
Amount = Annotated[int, BeforeValidator(as_tokens), Field(gt=0, le=MOST)]  # of text: tokens, or bytes
AmountOrNone = Annotated[int, BeforeValidator(as_tokens), Field(ge=0, le=MOST)]
Tokens = Annotated[int | str, PlainValidator(_tokens)]  # "20N": times the parameters without embeddings; "2e14FLOP"
Flag = Annotated[bool, BeforeValidator(_flag)]  # true or false, and as YAML 1.1 has them: yes, no, on, off
Distinct = AfterValidator(distinct)
BranchPoints = Annotated[list[Tokens], Distinct]
Share = Annotated[float, PlainValidator(_share)]  # of layers
Rate = Annotated[float | str, PlainValidator(_rate)]  # "law": as training.lr_law has it
Parallel = Annotated[int, BeforeValidator(as_integer), Field(gt=0, le=4096)]  # of processes on one machine
Together = Annotated[int, BeforeValidator(as_integer), Field(gt=0, le=8)]  # runs in one process
Index = Annotated[int, BeforeValidator(as_integer), Field(ge=0, le=MOST)]
Seed = Annotated[int, BeforeValidator(as_integer), Field(ge=0, lt=2**63)]  # PyTorch takes no more
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Hours = Annotated[Number, Field(gt=0, le=1e9)]
Gigabytes = Annotated[Number, Field(gt=0, le=1e9)]
Beta = Annotated[Number, Field(ge=0, lt=1)]
Name = Annotated[str, AfterValidator(_name)]
FilePath = Annotated[str, AfterValidator(_no_control)]
Sources = Annotated[list[Annotated[FilePath, Field(min_length=1)]], BeforeValidator(_words), Distinct]
Steps = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_words)]
# Modules that register architectures, imported before: file.import_plugins for those of the user's own files.
Plugins = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_words), AfterValidator(_imported)]
Betas = Annotated[list[Beta], AfterValidator(_betas)]
TokenCounts = Annotated[list[Amount], AfterValidator(_ascending)]
RunKey = Annotated[str, AfterValidator(_run_key)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@+*&|()\[\]/=!~%-]+$")]  # of an #SBATCH line: nothing to quote
Line = Annotated[str, AfterValidator(_single_line)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ResourceKey = Annotated[str, AfterValidator(_resource_key)]
Range = Annotated[list[Positive], AfterValidator(_pair)]
Ranges = Annotated[dict[Arch, Range], BeforeValidator(_ranges)]

"""Which column of a table is which field of the points: as the user says it, else by the names that people use."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from arch.errors import InputError, nearest

NUMBERS = ("n_params", "n_tokens", "flops", "loss")
LABELS = ("run", "trunk", "cell", "recipe", "size", "seed", "arch")
LOSS_OF = ("context", "corpus", "tokenizer", "loss_kind")  # losses of two values of one of them are not compared
AGREEING = (*LOSS_OF, "convention")  # of which one fit takes one value
FIELDS = (*NUMBERS, "unique_tokens", "budget", *LABELS, *AGREEING)
OF_CONVENTION = ("paper", "appendix", "executed", "exact", "6nd", "6nd_total")  # flops_<convention> in our own tables

# Compared without case, blanks and punctuation. Single letters count as capitals alone: n, d and l are also
# sequence length, width and layers.
NAMES: dict[str, tuple[str, ...]] = {
    "n_params": (
        *("nparams", "params", "parameters", "modelsize", "numparams", "numparameters", "nparameters", "paramcount"),
        *("parametercount", "modelparams", "nparamsnonembedding", "nonembeddingparams", "nonembeddingparameters"),
        *("参数", "参数量", "模型参数量"),
    ),
    "n_tokens": (
        *("ntokens", "tokens", "trainingtokens", "traintokens", "numtokens", "tokensseen", "tokencount"),
        *("训练词元数", "词元数", "token数", "训练token数"),
    ),
    "flops": (
        *("flops", "flop", "compute", "trainingflop", "trainingflops", "trainflops", "trainflop", "totalflops"),
        *("totalflop", "trainingcompute", "计算量", "训练计算量"),
        *("flops" + name.replace("_", "") for name in OF_CONVENTION),
    ),
    "loss": (
        *("loss", "finalloss", "trainloss", "trainingloss", "valloss", "validationloss", "evalloss", "testloss"),
        *("heldoutloss", "crossentropy", "损失", "训练损失", "验证损失"),
    ),
    "unique_tokens": ("uniquetokens", "nuniquetokens"),
    "budget": ("budget", "computebudget", "flopbudget", "flopsbudget", "isoflopbudget", "nominalflops"),
    "run": ("run", "runid", "runname", "实验"),
    "trunk": ("trunk", "trunkrun", "branchedfrom"),
    "cell": ("cell",),
    "recipe": ("recipe",),
    "size": ("size", "sizename"),
    "seed": ("seed", "randomseed", "随机种子"),
    "arch": ("arch", "architecture", "架构", "模型架构"),
    "context": (
        *("context", "contextlength", "contextlen", "contextsize", "ctx", "nctx", "seqlen", "sequencelength"),
        *("maxseqlen", "blocksize", "上下文长度", "序列长度"),
    ),
    "corpus": (
        *("corpus", "dataset", "datasetname", "corpusname", "corpusfingerprint", "trainingdata", "traindata", "text"),
        *("数据集", "语料", "语料库"),
    ),
    "tokenizer": (
        *("tokenizer", "tokeniser", "tokenizername", "vocabulary", "vocab", "vocabsize", "vocabularysize"),
        *("分词器", "词表", "词表大小"),
    ),
    "loss_kind": (
        *("losskind", "losstype", "lossname", "lossunit", "unitofloss", "metric", "split", "evalset", "evalsplit"),
        *("evaldata", "evaldataset", "validationset", "损失类型"),
    ),
    "convention": ("convention", "flopconvention", "flopsconvention"),
}
CAPITALS = {"n_params": "N", "n_tokens": "D", "flops": "C"}
_UNIT = re.compile(r"[\W_]*(nats?|bits?)([\W_]*(per)?[\W_]*tok(en)?)?[\W_]*$", re.IGNORECASE)  # at the end of a name
_PAIR = re.compile(r"""\s*(\w*)\s*=\s*("[^"]*"|'[^']*'|[^,]*)\s*(?:,|$)""")


def parse_columns(text: str) -> dict[str, str]:
    """--columns: `field=name, field="another name"`, as {field: name}. Raises InputError."""
    columns: dict[str, str] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise InputError(f'--columns: cannot read {text[at:]!r}: write it as n_params="Model Size",loss=loss')
        field, name = pair[1], pair[2].strip()
        if field in columns:
            raise InputError(f"--columns: {field} is given twice")
        columns[field] = name[1:-1] if name[:1] in ("'", '"') else name
        at = pair.end()
    if not columns:
        raise InputError("--columns: names no column")
    return columns


def choose(there: Sequence[str], given: Mapping[str, str], convention: str | None) -> dict[str, str]:
    """{field: column} of a table with the columns `there`. `given` comes first, where "" leaves a field out; all other
    fields are found by name; a run may be named by the column of another field. `convention` picks among flops_exact,
    flops_6nd, ...

    A budget is C too, where the table has no other and C is needed.

    Raises InputError for unknown fields and columns, two columns that could be one field, and where n_params (unless it
    is left out, and follows from the others), loss or both of n_tokens and flops are missing; the message lists what is
    there.
    """
    chosen, fields = dict[str, str](), dict[str, str]()  # and {column: field}
    for field, name in given.items():
        if field not in FIELDS:
            raise InputError(f"--columns: there is no field {field!r}{nearest(field, list(FIELDS))}")
        if name:
            chosen[field] = _exactly(there, name, field)
            if field != "run" and (other := fields.setdefault(chosen[field], field)) != field:
                raise InputError(f"--columns: column {chosen[field]} is to be {other} and {field}: choose one")
    for field in FIELDS:
        if field in given:
            continue
        taken = {column for other, column in chosen.items() if other != "run"}  # a size may name its run
        names = [name for name in there if _means(name, field) and name not in taken]
        if field == "flops" and convention is not None and len(names) > 1:
            names = [name for name in names if convention_of(name) == convention] or names
        if len(names) > 1:
            how = f"--columns {field}={_quoted(names[0])}"
            if field == "flops" and None not in (conventions := [convention_of(name) for name in names]):
                how = f"--convention {conventions[0]}"
            left_out = "" if field in NUMBERS else f", or leave it out by --columns {field}="
            raise InputError(f"{_listed(names)} could all be {field}: say which by {how}{left_out}")
        if names:
            chosen[field] = names[0]
    if "flops" not in chosen and "budget" in chosen and not {"n_params", "n_tokens"} <= set(chosen):
        chosen["flops"] = chosen.pop("budget")
    follows = given.get("n_params") == "" and {"n_tokens", "flops"} <= set(chosen)
    needed = [field for field in ("n_params", "loss") if field not in chosen and not (follows and field == "n_params")]
    if not {"n_tokens", "flops"} & set(chosen):
        needed.append("n_tokens or flops")
    if needed:
        if "n_opt_exponent" in there:
            raise InputError("holds laws, not runs: give the table of the runs behind them")
        raise InputError(
            f"no column for {', '.join(needed)}: the table has {_listed(there)}; say which by "
            f'--columns {needed[0].split()[0]}="its name"'
        )
    return {field: chosen[field] for field in FIELDS if field in chosen}


def convention_of(column: str) -> str | None:
    """Of flops_exact and the like: the convention that the name says."""
    return next((name for name in OF_CONVENTION if normal(column) == "flops" + name.replace("_", "")), None)


def loss_unit_of(column: str) -> str | None:
    """nats or bits, where the column of the loss says which by its name ("loss (bits)", "test_loss__nats"); None for
    another unit, as bits a byte."""
    words = re.findall(r"[a-z]+", column.lower())
    if any(word.startswith(("byte", "char", "word")) for word in words):
        return None
    return next((unit for unit in ("nats", "bits") if {unit, unit[:-1]} & set(words)), None)


def normal(name: str) -> str:
    """Letters and digits alone, without case."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in plain if letter.isalnum())


def _means(name: str, field: str) -> bool:
    plain = _UNIT.sub("", name) if field == "loss" else name
    return name == CAPITALS.get(field) or normal(plain) in NAMES[field]


def _exactly(there: Sequence[str], name: str, field: str) -> str:
    if name in there:
        return name
    alike = [column for column in there if normal(column) == normal(name) and normal(name)]
    if len(alike) == 1:
        return alike[0]
    raise InputError(f"--columns: {field}: there is no column {name!r}{nearest(name, list(there))}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return f'"{name}"' if re.search(r"[^\w.-]", name) else name

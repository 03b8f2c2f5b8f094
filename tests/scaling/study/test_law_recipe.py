"""What a designed study takes over from the sweep of its law."""

from scaling.study.find import PACKAGED
from scaling.study.law_file import read_law
from scaling.study.law_recipe import swept_as

LAW = read_law(PACKAGED / "quickstart-rates.json").law
ARCHS = ["llama", "tnl", "hgrn2", "cosformer2"]


def test_the_model_the_batch_and_the_warm_up_of_the_sweep():
    recipe = swept_as(LAW, ARCHS)
    assert recipe.model["init_std"] == 0.08 and not {"n_layers", "d_model", "decay_slopes"} & set(recipe.model)
    assert (recipe.training, recipe.batch, recipe.warmup, recipe.decays) == ({}, 1024, (20_480, 20_480), False)


def test_what_differs_from_the_defaults_is_taken_over():
    recipe = LAW.recipe.model_copy(
        update={
            "optimizer": LAW.recipe.optimizer | {"weight_decay": 0.3, "betas": [0.9, 0.99]},
            "schedule": {"schedule": "wsd", "decay_fraction": 0.1, "decay_shape": "linear"},
            "beta2_batch_tokens": 2048,
            "warmup_tokens": [1000, 4000],
            "model": {arch: {"norm": "layer", "init_std": 0.02 + 0.01 * i} for i, arch in enumerate(ARCHS)},
        }
    )
    laws = {arch: law.model_copy(update={"terms": [*law.terms, "batch_tokens"]}) for arch, law in LAW.laws.items()}
    taken = swept_as(LAW.model_copy(update={"recipe": recipe, "laws": laws}), ARCHS)
    assert taken.model == {"norm": "layer"}, "what architectures had otherwise is left out"
    assert taken.training == {"weight_decay": 0.3, "betas": [0.9, 0.99], "beta2_batch_tokens": 2048}
    assert (taken.batch, taken.warmup, taken.decays) == (None, (1000, 4000), True)

"""A parameter is declared once, and everything that shows or takes parameters reads the declaration."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import warnings
from collections import Counter
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import BaseEstimator, clone

import latentia
from latentia import DBM, RBM, VAE, DictionaryLearning, GaussianRBM, SparseCoder
from latentia.commands import parameters, signatures
from latentia.core.errors import ParameterError, RunFolderError
from latentia.core.files import read_arrays, write_arrays
from latentia.core.moved import renamed
from latentia.core.run_folder import CHECKPOINT, CONFIG
from latentia.estimator import checks, groups
from latentia.estimator.declared import Parameters, attribute, changed, documented, param, takes
from latentia.estimator.fingerprint import fingerprint
from latentia.estimator.rows_to_learn import LearningRows
from latentia.estimator.training import Plan
from latentia.learning import contrastive, objective
from latentia.learning.checkpoint import BEFORE, FORMER
from latentia.registry import FAMILIES

SOURCE = Path(latentia.__file__).parent
EVERY = pytest.mark.parametrize("entry", FAMILIES, ids=[entry.name for entry in FAMILIES])
#: What was positional before parameters were declared, by family; one positional parameter for all others.
POSITIONAL = {"dictionary": ["n_components", "alpha"], "sparse-coder": ["dictionary", "alpha"]}
POSITIONAL |= {"vae": ["n_components", "hidden"], "multimodal-dbm": ["modalities"], "gaussian": ["precision"]}
POSITIONAL |= {"fields-of-experts": ["n_filters"]}
X = (np.random.default_rng(0).random((40, 6)) < 0.5).astype(float)
SHORT = {"n_components": 3, "n_epochs": 2, "batch_size": 10, "random_state": 0, "monitor": None}


class Speed(Parameters):
    """How fast."""

    rate: float = param(default=0.5, check=checks.number(0), doc="how fast.")
    n_rounds: int = param(default=3, check=checks.integer(1), doc="how often.", formerly="k")


class Size(Parameters):
    """How large."""

    size: int = param(default=2, check=checks.integer(1), doc="how large.", kw_only=False)


class Base(Speed, BaseEstimator):
    """Something with a speed."""

    depth: int = param(default=1, doc="how deep.", kw_only=False)
    found_: float = attribute()


class Child(Base, Size):
    """A faster one.

    References:
        Somebody (2001).
    """

    own: str | None = param(default=None, doc="its own.")

    rate = 0.75
    n_rounds = changed(check=checks.integer(2), doc="how often, at least twice.")


# -- every family ------------------------------------------------------------------------------------------


@EVERY
def test_signature_parameters_docs_and_command_line_agree(entry):
    cls = entry.estimator()
    taken = inspect.signature(cls).parameters
    assert list(taken) == list(cls.declared)
    assert {name: each.default for name, each in taken.items()} == cls().get_params(deep=False)
    texts = {each.name: each.doc for each in cls.declared.values()}
    assert parameters.descriptions(cls) == texts
    assert all(text.endswith(".") and text == " ".join(text.split()) for text in texts.values())
    read = signatures.read(entry.target)
    assert parameters.descriptions(read.doc) == texts
    apart = (*parameters.MANAGED, *parameters.OBJECTS)
    shown = {option.name: option.help for option in parameters.options(read)}
    assert shown == {name: text for name, text in texts.items() if name not in apart}


@EVERY
def test_the_page_of_the_documentation_lists_them(entry):
    page = _generate()._parameters(entry.estimator())
    assert [row.split("`")[1] for row in page[2:]] == list(entry.estimator().declared)
    assert all(len(row.split(" | ")[-1]) > 3 for row in page[2:])


def _generate():
    import importlib.util
    import sys

    folder = Path(__file__).parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("generate_pages", folder / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@EVERY
def test_what_was_positional_still_is(entry):
    cls = entry.estimator()
    kinds = inspect.signature(cls).parameters.values()
    positional = [each.name for each in kinds if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL.get(entry.name, positional[:1])
    values = [object() for _ in positional]
    assert [getattr(cls(*values), name) for name in positional] == values
    with pytest.raises(TypeError, match=f"{cls.__name__}.__init__.*too many positional"):
        cls(*values, 1)
    with pytest.raises(TypeError, match=f"{cls.__name__}.__init__.*unexpected keyword argument 'zeal'"):
        cls(zeal=1)


@EVERY
def test_clones_and_pickles_have_the_same_parameters(entry):
    estimator = entry.estimator()(**entry.tiny, random_state=3)
    for other in (clone(estimator), pickle.loads(pickle.dumps(estimator))):
        assert other.get_params() == estimator.get_params()
        assert vars(other) == vars(estimator)
    assert set(vars(estimator)) == set(estimator.declared)


@EVERY
def test_the_checks_pass_for_the_defaults_and_are_those_of_the_declarations(entry):
    estimator = entry.estimator()()
    checks.check_parameters(estimator)
    for each in estimator.declared.values():
        if each.check is not None:
            with pytest.raises(ParameterError, match=each.name):
                checks.check_parameters(clone(estimator).set_params(**{each.name: object()}))


# -- in the source -----------------------------------------------------------------------------------------


def _declarations() -> list[tuple[str, str, str]]:
    """(file, class, parameter) of all that the source declares."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for owner in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            for node in owner.body:
                value = node.value if isinstance(node, ast.AnnAssign) else None
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "param":
                    found.append((path.name, owner.name, ast.unparse(node.target)))
    return found


def test_a_shared_parameter_stands_in_the_source_once():
    counts = Counter(name for _, _, name in _declarations())
    general = {name for group in groups.GENERAL for name in group.declared}
    assert {"run_dir", "learning_rate", "early_stopping", "n_epochs", "random_state"} <= general
    assert {name: counts[name] for name in general} == dict.fromkeys(general, 1)
    # The same name stands for another quantity, or is of another type, in few families only.
    again = {name for name, count in counts.items() if count > 1}
    assert again <= {
        *(
            "activation",
            "beta",
            "code_activation",
            "decoder",
            "encoder",
            "hidden",
            "image_shape",
            "inference",
            "n_components",
        ),
        *("output", "ridge", "sigma", "solver", "temperature", "tol", "visible"),
    }


def test_no_family_writes_a_constructor_or_describes_parameters_by_hand():
    for entry in FAMILIES:
        module, _, name = entry.target.partition(":")
        tree = ast.parse((SOURCE / "models" / f"{module.rpartition('.')[2]}.py").read_text())
        owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        functions = [node.name for node in owner.body if isinstance(node, ast.FunctionDef)]
        assert "__init__" not in functions
        assert "Args:" not in (ast.get_docstring(owner) or "")


# -- the mechanism -----------------------------------------------------------------------------------------


def test_a_child_changes_a_default_a_text_or_a_check_and_nothing_else():
    assert str(inspect.signature(Child)) == (
        "(size: int = 2, depth: int = 1, *, own: str | None = None, rate: float = 0.75, n_rounds: int = 3) -> None"
    )
    assert (Child().rate, Base().rate, Speed.declared["rate"].default) == (0.75, 0.5, 0.5)
    assert Child.declared["rate"].doc == Base.declared["rate"].doc == "how fast."
    checks.check_parameters(Base(n_rounds=1))
    with pytest.raises(ParameterError, match="n_rounds must be an integer of at least 2"):
        checks.check_parameters(Child(n_rounds=1))
    assert parameters.descriptions(Child)["n_rounds"] == "how often, at least twice."
    assert inspect.getdoc(Child).endswith(
        "n_rounds: how often, at least twice.\n\nReferences:\n    Somebody (2001)."
    )
    assert not hasattr(Child(), "found_")


def test_of_several_parents_the_nearest_change_counts():
    class Slow(Base):
        """Slower."""

        rate = 0.1

    class Both(Slow, Child):
        """Slower and larger."""

    class Other(Child, Slow):
        """The other way round."""

    assert (Both().rate, Other().rate) == (0.1, 0.75)
    assert Both(5, 6, own="x").get_params() == {"size": 5, "depth": 6, "own": "x", "rate": 0.1, "n_rounds": 3}


def test_a_class_may_write_its_constructor_itself():
    class Mine(Child):
        """With a constructor of its own."""

        def __init__(self, size: int = 7):
            super().__init__(size, rate=0.2)

    class Further(Mine):
        """Inherits it."""

    assert (Further().size, Further(3).rate, list(inspect.signature(Further).parameters)) == (7, 0.2, ["size"])


def test_mistakes_in_declarations_are_told_when_the_class_is_made():
    with pytest.raises(TypeError, match="no annotation"):
        type("Bad", (Parameters,), {"rate": param(default=1, doc="x.")})
    with pytest.raises(TypeError, match="no parent declares"):
        type("Bad", (Base,), {"rte": changed(default=1)})


def test_a_section_that_is_there_is_continued():
    doc = "Do it.\n\n    Args:\n        x: what.\n\n    Returns:\n        It.\n    "
    assert documented(doc, [("x", "again."), ("rate", "how fast.")]) == (
        "Do it.\n\nArgs:\n    x: what.\n    rate: how fast.\n\nReturns:\n    It."
    )


def test_methods_take_declared_parameters_as_keyword_arguments():
    class Worker:
        @takes(Speed)
        def work(self, x: int, y: int, speed: Speed) -> tuple[int, int, float, int]:
            """Work.

            Args:
                x: one.
                y: another.
            """
            return x, y, speed.rate, speed.n_rounds

    assert Worker().work(1, y=2, rate=0.25) == (1, 2, 0.25, 3)
    assert list(inspect.signature(Worker.work).parameters) == ["self", "x", "y", "rate", "n_rounds"]
    assert "    y: another.\n    rate: how fast." in inspect.getdoc(Worker.work)
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        Worker().work(1, 2, speed=3)
    assert {"dropout", "n_epochs", "sample_weight"} <= set(inspect.signature(DBM.finetune).parameters)
    assert {"n_layers", "beta", "callbacks"} <= set(inspect.signature(DictionaryLearning.fit_encoder).parameters)


# -- former names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "new"), [(RBM, "n_sampler_steps"), (VAE, "n_draws"), (GaussianRBM, "n_sampler_steps")]
)
def test_a_former_name_works_in_code_with_a_warning(cls, new):
    message = f"The parameter k of {cls.__name__} is {new} now"
    with pytest.warns(DeprecationWarning, match=message) as found:
        estimator = cls(k=4)
    assert found[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=message) as found:
        estimator.set_params(k=getattr(estimator, new) + 1)
    assert found[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=message):
        estimator.k += 1
    assert getattr(estimator, new) == estimator.k == 6
    assert "k" not in estimator.get_params()
    assert "k" not in vars(estimator)
    with pytest.raises(ParameterError, match=f"k is the former name of {new}"):
        cls(**{"k": 1, new: 2})


def test_objectives_know_the_former_name_too():
    with pytest.warns(DeprecationWarning, match="The argument k of cd is n_sampler_steps now"):
        assert contrastive.cd(k=5).n_steps == 5
    with pytest.warns(DeprecationWarning, match="n_sampler_steps"):
        assert objective("pcd", k=3, n_chains=7).n_steps == 3
    assert objective("hybrid", n_sampler_steps=3, k=2).n_steps == 3
    assert objective("iwae", n_sampler_steps=3, k=2).k == 2
    with pytest.raises(TypeError, match="give only n_steps"):
        renamed(k="n_steps")(lambda n_steps: n_steps)(k=1, n_steps=2)


def test_files_and_pickles_of_earlier_releases_are_read_in_silence(tmp_path):
    rbm = RBM(**SHORT, n_sampler_steps=2).fit(X)
    rbm.save(tmp_path / "new.safetensors")
    arrays, description = read_arrays(tmp_path / "new.safetensors")
    description["params"]["k"] = description["params"].pop("n_sampler_steps")
    write_arrays(tmp_path / "old.safetensors", arrays, description)
    state = dict(rbm.__getstate__())
    state["k"] = state.pop("n_sampler_steps")
    del state["weight_scale"]  # a parameter that there was not yet
    old = RBM.__new__(RBM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = latentia.load(tmp_path / "old.safetensors")
        old.__setstate__(state)
    assert (read.n_sampler_steps, old.n_sampler_steps, old.weight_scale) == (2, 2, 0.01)
    for other in (read, old):
        assert other.get_params() == rbm.get_params()
        np.testing.assert_array_equal(other.transform(X), rbm.transform(X))
    description["params"]["zeal"] = 3
    write_arrays(tmp_path / "later.safetensors", arrays, description)
    with pytest.raises(latentia.core.errors.FileFormatError, match="zeal"):
        latentia.load(tmp_path / "later.safetensors")


def _age(folder: Path) -> None:
    """Make a run folder what an earlier release would have written."""
    arrays, description = read_arrays(folder / CHECKPOINT)
    found = description["fingerprint"]
    found["k"] = found.pop("n_sampler_steps")
    del found[FORMER]
    write_arrays(folder / CHECKPOINT, arrays, description)
    config = json.loads((folder / CONFIG).read_text())
    config["params"]["k"] = config["params"].pop("n_sampler_steps")
    (folder / CONFIG).write_text(json.dumps(config))


def test_a_run_begun_before_goes_on(tmp_path):
    options = {**SHORT, "run_dir": tmp_path / "run"}
    whole = RBM(**options, n_sampler_steps=2).fit(X)
    _age(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"What differs: n_sampler_steps\."):
        RBM(**options, n_sampler_steps=3, resume=True).fit(X)
    again = RBM(**options, n_sampler_steps=2, resume=True).fit(X)
    np.testing.assert_array_equal(again.transform(X), whole.transform(X))


def test_the_single_text_of_still_earlier_releases_is_the_same():
    rows = LearningRows(np.arange(12, dtype=np.float32).reshape(4, 3))
    for estimator, text in (
        (RBM(2, n_sampler_steps=3), "0c48965b29ed30cef7fe5a4aaa2abc2c33e68691284fee31492bea92bf7d51ce"),
        (VAE(2, n_draws=3), "59a734f07f385e71215c10e31e04cde3d56ec670dbd011c1cd5b549be03b9849"),
    ):
        assert fingerprint(estimator, rows, Plan(10, 3, 5), 0)[BEFORE] == text


def test_the_command_line_understands_a_former_name(tmp_path, monkeypatch):
    from latentia.cli import cli
    from latentia.report.runs import read_run

    monkeypatch.chdir(tmp_path)
    words = ["fit", "rbm", "bars", "--n-components", "3", "--n-epochs", "1", "--out", "run", "--quiet"]
    done = CliRunner().invoke(cli, [*words, "--k", "2"])
    assert done.exit_code == 0, done.output
    assert "--k: a former name, now --n-sampler-steps" in done.stderr
    _age(tmp_path / "run")
    assert read_run(tmp_path / "run").params["n_sampler_steps"] == 2
    done = CliRunner().invoke(cli, ["fit", "rbm", "bars", "--out", "run", "--resume", "--quiet", "--json"])
    assert done.exit_code == 0, done.output
    assert latentia.load(tmp_path / "run" / "model.safetensors").n_sampler_steps == 2
    shown = CliRunner().invoke(cli, ["fit", "rbm", "--help"]).output
    assert "--n-sampler-steps" in shown
    assert "--k " not in shown
    hidden = parameters.former_options(signatures.read("latentia.models.rbm:RBM"))
    assert [(option.name, option.hidden) for option in hidden] == [("k", True)]
    assert isinstance(hidden[0], click.Option)


def test_numbers_of_numpy_become_pythons():
    coder = SparseCoder(alpha=np.float64(0.5), n_nonzero=np.int64(2))
    checks.check_parameters(coder)
    assert (type(coder.alpha), type(coder.n_nonzero)) == (float, int)

"""The layers of the design, enforced on the source itself, and what importing and misusing the package does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import latentia
from latentia.core.algorithms import AbstractObjective, require
from latentia.core.capabilities import FreeEnergy, Tempered
from latentia.core.errors import CapabilityError
from latentia.core.model import AbstractModel
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.learning import OBJECTIVES, fitting
from latentia.learning.em import EM
from latentia.models.ppca import PPCAModel
from latentia.registry import FAMILIES
from latentia.units import make

ROOT = Path(latentia.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: What each layer may import besides itself: the layers below it (DESIGN §2). A layer that is not listed here
#: fails the test, so a new one must say where it stands.
BELOW: dict[str, set[str]] = {"core": set(), "ops": {"core"}}
BELOW["units"] = {"core", "ops"}
BELOW["datasets"] = {"core", "ops"}
BELOW["samplers"] = {"core", "ops"}
BELOW["inference"] = {"core", "ops", "units"}  # factorial posteriors are layers of units
BELOW["learning"] = {"core", "ops", "units", "samplers", "inference"}
BELOW["likelihood"] = {"core", "ops", "samplers", "inference"}
BELOW["energies"] = BELOW["learning"] | {"learning", "likelihood"}  # models that several families share
BELOW["estimator"] = BELOW["learning"] | {"learning", "likelihood", "units"}
BELOW["imaging"] = BELOW["estimator"] | {"estimator"}
BELOW["abilities"] = BELOW["imaging"] | {"imaging"}
BELOW["models"] = BELOW["abilities"] | {"abilities", "energies"}
BELOW["registry"] = {"core", "ops"}
BELOW["recipes"] = BELOW["models"] | {"models", "registry", "datasets", "report", ""}
BELOW["report"] = {"core", "ops", "datasets", "learning", "likelihood", "estimator", "abilities", "registry", ""}
BELOW["plot"] = BELOW["report"] | {"report", "inference"}
BELOW["callbacks"] = BELOW["plot"] | {"plot"}
BELOW["commands"] = BELOW["report"] | {"report", "recipes", "samplers", "callbacks"}
BELOW["cli"] = {"commands", "core", ""}
BELOW["__main__"] = {"cli"}
BELOW[""] = {"registry"}  # the package itself: names on first use

#: Imports against the direction, each inside a function and each for a reason that stands in the design.
ALLOWED = {
    ("estimator/saving.py", "registry"),  # a file names its family; only the registry knows where that is
}

ALGORITHMS = ("samplers", "inference", "learning", "likelihood")


def layer_of(name: str) -> str:
    """latentia.core.model → core; the package itself and names taken from it → ""."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(path: Path) -> list[tuple[str, int]]:
    """(module, line) of every import of the package in a file, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            if (
                module == "latentia"
            ):  # from latentia import samplers: a layer; from latentia import RBM: the package
                for alias in node.names:
                    inside = (ROOT / alias.name).is_dir() or (ROOT / f"{alias.name}.py").is_file()
                    found.append((f"latentia.{alias.name}" if inside else "latentia", node.lineno))
            else:
                found.append((module, node.lineno))
    return [(name, line) for name, line in found if name.split(".")[0] == "latentia"]


def own_layer(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    layer = own_layer(path)
    assert layer in BELOW, f"{layer} is a new layer: say in this test what it may import"
    for name, line in imported(path):
        other = layer_of(name)
        allowed = other == layer or other in BELOW[layer]
        excused = (str(path.relative_to(ROOT)), other) in ALLOWED
        assert allowed or excused, f"{path.relative_to(ROOT)}:{line} imports {name}, which is not below it"


def test_the_layers_have_no_circle():
    order: list[str] = []
    left = {name: below - {""} for name, below in BELOW.items() if name}
    while left:
        free = sorted(name for name, below in left.items() if below <= set(order))
        assert free, f"a circle among {sorted(left)}"
        order += free
        left = {name: below for name, below in left.items() if name not in free}


def test_models_import_one_another_without_a_circle():
    files = [p for p in FILES if own_layer(p) == "models"]
    edges = {p.stem: {n.split(".")[2] for n, _ in imported(p) if n.startswith("latentia.models.")} for p in files}
    done: set[str] = set()
    while set(edges) - done:
        free = {name for name, needs in edges.items() if name not in done and needs <= done}
        assert free, f"a circle among {sorted(set(edges) - done)}"
        done |= free


def test_algorithms_never_name_a_model():
    """Not by import, and not by the name of an estimator or of a family either."""
    classes = {f.class_name for f in FAMILIES} | {f"{f.class_name}Model" for f in FAMILIES}
    classes |= {
        node.name
        for path in FILES
        if own_layer(path) in ("models", "energies")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for path in FILES:
        if own_layer(path) not in ALGORITHMS:
            continue
        assert not [
            n for n, _ in imported(path) if layer_of(n) in ("models", "energies", "registry", "estimator")
        ], path
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
        assert not names & classes, f"{path} names {names & classes}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) < 450
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


def test_nobody_asks_whether_a_model_has_a_method():
    """Capabilities are classes: no hasattr(model, …) in the algorithms."""
    for path in FILES:
        if own_layer(path) not in ALGORITHMS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
            assert not called, f"{path}:{node.lineno}"


# -- importing ---------------------------------------------------------------------------------------


def test_importing_is_quick_and_changes_nothing():
    code = """
import sys
import latentia
heavy = {"jax", "sklearn", "matplotlib", "optax", "equinox", "scipy"} & set(sys.modules)
assert not heavy, f"import latentia brings {heavy}"
import jax
names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_debug_nans",
         "jax_numpy_rank_promotion", "jax_platforms", "jax_default_prng_impl", "jax_compilation_cache_dir")
before = {name: getattr(jax.config, name) for name in names}
from latentia.registry import FAMILIES
for family in FAMILIES:
    getattr(latentia, family.class_name)
import latentia.likelihood, latentia.samplers, latentia.learning.fit, latentia.datasets, latentia.cli
after = {name: getattr(jax.config, name) for name in names}
assert before == after, (before, after)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_family_can_be_reached_and_describes_itself():
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        estimator = family.estimator()
        assert getattr(latentia, family.class_name) is estimator
        assert estimator.family == family.name
        assert estimator.__doc__
        assert family.class_name in dir(latentia)
    with pytest.raises(AttributeError, match="Nonsense"):
        latentia.Nonsense  # noqa: B018


# -- require() ---------------------------------------------------------------------------------------


class Bare(AbstractModel):
    """An energy and nothing else."""

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return Space("real", (1,))

    def energy(self, x, z):
        return jnp.sum(x * z)


def test_require_says_what_is_missing_and_what_would_fit():
    mixture_like = PPCAModel.make(3, 2, key=jax.random.key(0))
    tempering = OBJECTIVES["tempering"]()
    assert isinstance(tempering, AbstractObjective)
    with pytest.raises(CapabilityError) as caught:
        require(tempering, mixture_like, fitting=fitting(mixture_like))
    message = str(caught.value)
    assert type(tempering).__name__ in message
    assert "PPCAModel" in message
    assert "Tempered (" in message
    assert "base_log_z" in message  # a method to implement
    assert "FreeEnergy" not in message  # which it has
    assert "cd, pcd" in message  # what would work

    with pytest.raises(CapabilityError) as caught:
        require(OBJECTIVES["cd"](), Bare(), fitting=fitting(Bare()))
    message = str(caught.value)
    assert "FreeEnergy (free_energy)" in message
    assert "Conditionals (begin, sweep)" in message
    assert message.endswith("Objectives that fit: vnce.")  # an energy and latents are enough for that one

    rbm = RBMModel.make(make("bernoulli", 3), make("bernoulli", 2), key=jax.random.key(0))
    require(tempering, rbm)
    assert fitting(rbm) == ["cd", "pcd", "tempering", "exact", "ratio_matching", "nce", "conditional_nce", "vnce"]
    assert isinstance(rbm, FreeEnergy)
    assert isinstance(rbm, Tempered)
    with pytest.raises(
        CapabilityError, match=r"EM cannot .* RBMModel: it needs MStep \(.*m_step.*\) and Normalised"
    ):
        require(EM(), rbm)
    with pytest.raises(TypeError):  # also what an ordinary except clause would catch
        require(EM(), rbm)


# -- former names --------------------------------------------------------------------------------------


def test_a_learner_written_with_a_former_name_still_works():
    with pytest.warns(DeprecationWarning, match="halve_step"):

        class Old(EM):
            def slower(self, state):
                return "half"

    assert Old().halve_step(None) == "half"


def test_names_that_moved_are_found_with_a_warning():
    from latentia.core import model

    with pytest.warns(DeprecationWarning, match=r"latentia\.core\.capabilities\.Tempered"):
        assert model.Tempered is Tempered
    with pytest.raises(AttributeError, match="Nonsense"):
        model.Nonsense  # noqa: B018
    with pytest.warns(DeprecationWarning, match="patchwise"):
        from latentia.estimator.patchwise import denoise_image
    assert denoise_image.__module__ == "latentia.imaging.patchwise"


def test_every_capability_says_what_it_gives():
    """The lists in the docstring and in the documentation are made from that."""
    from latentia.core import capabilities

    classes = [each for each in vars(capabilities).values() if isinstance(each, type)]
    ours = {each for each in classes if issubclass(each, AbstractModel) and each is not AbstractModel}
    assert {each for each, _, _ in capabilities.table()} == ours
    for each, written, gives in capabilities.table():
        assert gives
        assert f"``{each.__name__}`` ({', '.join(written)}): {gives}" in capabilities.__doc__

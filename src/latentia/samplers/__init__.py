"""Samplers: block Gibbs, parallel tempering, Langevin and Hamiltonian. They depend on capabilities only.

Those that use the gradient of F need real x; MALA, HMC and NUTS run BlackJAX's kernels, which are imported on
first use.
"""

from __future__ import annotations

from latentia.core.algorithms import AbstractSampler
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.samplers.chains import Chains, advance, run, sample, start
from latentia.samplers.diagnostics import effective_sample_size, r_hat
from latentia.samplers.gibbs import Gibbs
from latentia.samplers.hamiltonian import HMC, NUTS
from latentia.samplers.langevin import MALA, Langevin
from latentia.samplers.tempering import ParallelTempering

#: Samplers that follow ∇F, by name.
GRADIENT_SAMPLERS: dict[str, type[AbstractSampler]] = {
    "langevin": Langevin,
    "mala": MALA,
    "hmc": HMC,
    "nuts": NUTS,
}


def gradient_sampler(name_or_object: str | AbstractSampler) -> AbstractSampler:
    """A sampler by name, with its usual settings; an object is returned as it is.

    >>> gradient_sampler("hmc").n_leapfrog
    10
    """
    if isinstance(name_or_object, AbstractSampler):
        return name_or_object
    if not isinstance(name_or_object, str):
        raise ParameterError(f"sampler must be a name or a sampler, got {name_or_object!r}.")
    if name_or_object not in GRADIENT_SAMPLERS:
        raise UnknownNameError("sampler", name_or_object, GRADIENT_SAMPLERS)
    return GRADIENT_SAMPLERS[name_or_object]()


__all__ = [
    "GRADIENT_SAMPLERS",
    "HMC",
    "MALA",
    "NUTS",
    "Chains",
    "Gibbs",
    "Langevin",
    "ParallelTempering",
    "advance",
    "effective_sample_size",
    "gradient_sampler",
    "r_hat",
    "run",
    "sample",
    "start",
]

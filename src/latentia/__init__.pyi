"""What type checkers see: the package imports its names on first use, which they cannot follow.

A family that is not named here is ``Any`` to them.
"""

from typing import Any

from latentia import callbacks as callbacks
from latentia import core as core
from latentia import datasets as datasets
from latentia import learning as learning
from latentia import likelihood as likelihood
from latentia import plot as plot
from latentia import registry as registry
from latentia import samplers as samplers
from latentia import units as units
from latentia.estimator.saving import load as load
from latentia.models.autoencoder import Autoencoder as Autoencoder
from latentia.models.binary_sparse_coding import BinarySparseCoding as BinarySparseCoding
from latentia.models.dbm import DBM as DBM
from latentia.models.dbn import DBN as DBN
from latentia.models.deep_energy import DeepEnergyModel as DeepEnergyModel
from latentia.models.fields_of_experts import FieldsOfExperts as FieldsOfExperts
from latentia.models.gaussian import GaussianModel as GaussianModel
from latentia.models.gaussian_mixture import GaussianMixture as GaussianMixture
from latentia.models.gaussian_rbm import GaussianRBM as GaussianRBM
from latentia.models.ica import ICA as ICA
from latentia.models.multimodal_dbm import MultimodalDBM as MultimodalDBM
from latentia.models.ppca import PPCA as PPCA
from latentia.models.product_of_experts import ProductOfExperts as ProductOfExperts
from latentia.models.rbm import RBM as RBM
from latentia.models.sparse_coder import SparseCoder as SparseCoder
from latentia.models.sparse_coding import DictionaryLearning as DictionaryLearning
from latentia.models.stacked_autoencoder import StackedAutoencoder as StackedAutoencoder
from latentia.models.vae import VAE as VAE

__version__: str

def __getattr__(name: str) -> Any: ...

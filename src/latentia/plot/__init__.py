"""Pictures of fitted models on Matplotlib axes, for notebooks and papers.

Every function takes a fitted estimator, a run folder, a model file or an array. Without ``ax`` it
makes a new figure by ``pyplot``, which a notebook shows by itself and ``plt.show()`` shows in a script; with ``ax``
it draws there and does not use ``pyplot``. All return the axes for further use: ``filters(rbm).figure.savefig(…)``.
No setting of Matplotlib is changed, and text keeps the colours of the style in use, light or dark.

Examples:
    >>> import latentia, numpy as np
    >>> X = (np.random.default_rng(0).random((50, 36)) < 0.5).astype(float)
    >>> rbm = latentia.RBM(n_components=4, n_epochs=1, random_state=0).fit(X)
    >>> from matplotlib.figure import Figure
    >>> latentia.plot.filters(rbm, ax=Figure().subplots()).get_title()
    '4 filters'
"""

from __future__ import annotations

from latentia.plot.charts import curves, likelihood
from latentia.plot.maps import latent_map
from latentia.plot.pictures import filters, reconstructions, samples

__all__ = ["curves", "filters", "latent_map", "likelihood", "reconstructions", "samples"]

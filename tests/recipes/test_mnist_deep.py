"""The deep experiments on MNIST: what the classifier's figures are means of."""

from __future__ import annotations

import json

import numpy as np
import pytest

import latentia
from latentia import datasets
from latentia.recipes import RECIPES, mnist_deep


def test_the_classifier_is_judged_seed_by_seed_and_its_networks_one_by_one(offline, tmp_path, monkeypatch):
    tuned = {"n_networks": 2, "activation": "relu", "normalise": True, "n_epochs": 40, "batch_size": 50}
    quick = {**mnist_deep._CLASSIFIER["quick"], "finetune": tuned, "seeds": 2}
    monkeypatch.setitem(mnist_deep._CLASSIFIER, "quick", quick)
    figures = RECIPES["mnist-dbm-classifier"].run(tmp_path / "run", quick=True)
    each = figures["test error, %, each seed"]
    assert len(each) == 2
    assert figures["test error, %, mean"] == pytest.approx(np.mean(each))
    assert max(each) < 80  # chance is 90
    digits = datasets.load("mnist")
    last = latentia.load(tmp_path / "run" / "model.safetensors")
    assert 100 * (1 - last.accuracy(digits.X_test, digits.y_test)) == pytest.approx(each[1])
    alone, committee = [], last.classifier_
    for number in range(2):
        last.classifier_ = committee.member(number)
        alone.append(100 * (1 - last.accuracy(digits.X_test, digits.y_test)))
    assert figures["test error, %, one network, mean for each seed"][1] == pytest.approx(np.mean(alone))
    written = json.loads((tmp_path / "run" / "evaluation.json").read_text())["recipe"]
    assert written["test error, %, each seed"] == each

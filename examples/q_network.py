# SPDX-License-Identifier: Apache-2.0
"""A small Q-network in NumPy: the forward pass, the gradients, and the optimiser."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

# Two hidden layers with ReLU: [W1, b1, W2, b2, W3, b3].
Parameters = list[np.ndarray]


def init_parameters(sizes: Sequence[int], rng: np.random.Generator) -> Parameters:
    """Returns weights scaled as in He et al. (2015), and zero biases."""
    parameters = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        weights = rng.normal(0.0, np.sqrt(2.0 / fan_in), (fan_in, fan_out))
        parameters += [weights.astype(np.float32), np.zeros(fan_out, np.float32)]
    return parameters


def q_values(parameters: Parameters, observations: np.ndarray) -> np.ndarray:
    """Returns the value of each action, `[B, 2]`, for observations `[B, 4]`."""
    return layers_of(parameters, observations)[-1]


def layers_of(parameters: Parameters, observations: np.ndarray) -> list[np.ndarray]:
    """Returns the observations and the output of every layer, for `gradients`."""
    w1, b1, w2, b2, w3, b3 = parameters
    hidden_1 = np.maximum(observations @ w1 + b1, 0.0)
    hidden_2 = np.maximum(hidden_1 @ w2 + b2, 0.0)
    return [observations, hidden_1, hidden_2, hidden_2 @ w3 + b3]


def gradients(
    parameters: Parameters, layers: list[np.ndarray], output_gradient: np.ndarray
) -> Parameters:
    """Returns the gradient of every parameter, given the loss's gradient at the output."""
    result: Parameters = []
    delta = output_gradient
    for index in (2, 1, 0):
        below = layers[index]
        result = [below.T @ delta, delta.sum(axis=0), *result]
        delta = (delta @ parameters[2 * index].T) * (below > 0.0)
    return result


class Adam:
    """Adam (Kingma & Ba, 2015) with the gradient clipped to a global norm."""

    def __init__(
        self, parameters: Parameters, learning_rate: float, max_norm: float = 10.0
    ) -> None:
        """Starts with zero moments shaped like `parameters`."""
        self._learning_rate = learning_rate
        self._max_norm = max_norm
        self._mean = [np.zeros_like(p) for p in parameters]
        self._variance = [np.zeros_like(p) for p in parameters]
        self._step = 0

    def update(self, parameters: Parameters, gradient: Parameters) -> None:
        """Moves `parameters` one step down the gradient, in place."""
        self._step += 1
        norm = np.sqrt(sum(float(np.vdot(g, g)) for g in gradient))
        scale = min(1.0, self._max_norm / (norm + 1e-8))
        # Both bias corrections of the paper, folded into the step size.
        rate = self._learning_rate * np.sqrt(1 - 0.999**self._step) / (1 - 0.9**self._step)
        for p, g, m, v in zip(parameters, gradient, self._mean, self._variance, strict=True):
            m += 0.1 * (scale * g - m)
            v += 0.001 * ((scale * g) ** 2 - v)
            p -= (rate * m / (np.sqrt(v) + 1e-8)).astype(np.float32)

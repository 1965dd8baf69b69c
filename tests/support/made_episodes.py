# SPDX-License-Identifier: Apache-2.0
"""Episodes of datasets that tests make, and what they are compared with."""

import numpy as np

import reverb
from reverb import datasets, testing
from reverb.datasets.episode import leaves

FIELDS = ("observations", "actions", "rewards", "terminated", "truncated", "infos")
LENGTHS = (5, 30, 1, 12, 7)
DTYPES = ["bool", "float16", "float32", "float64"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]


def episode(num_steps, number=0, *, end="terminated", observations=None, infos=None, **options):
    """An episode with random values, the same for the same arguments."""
    rng = np.random.default_rng([num_steps, number])
    last = np.arange(num_steps) == num_steps - 1
    nothing = np.zeros(num_steps, np.bool_)
    if observations is None:
        observations = rng.normal(size=(num_steps + 1, 4)).astype(np.float32)
    return datasets.Episode(
        observations=observations,
        actions=options.pop("actions", rng.integers(0, 5, num_steps)),
        # Sums of these are exact.
        rewards=options.pop("rewards", rng.integers(-8, 8, num_steps).astype(np.float32)),
        terminated=last if end in ("terminated", "both") else nothing,
        truncated=last if end in ("truncated", "both") else nothing,
        infos=infos or {},
        number=number,
        **{"source": "made", "place": "made"} | options,
    )


def episodes(lengths=LENGTHS, **options):
    """Episodes of several lengths, ended in turn in each way."""
    ends = ("terminated", "truncated", "both")
    return [
        episode(length, number, end=ends[number % 3], **options)
        for number, length in enumerate(lengths)
    ]


def nested(num_steps, number, **options):
    """An episode whose observations are a nest of images, flags and numbers."""
    rng = np.random.default_rng([num_steps, number, 1])
    rows = num_steps + 1
    return episode(
        num_steps,
        number,
        observations={
            "numbers": rng.normal(size=(rows, 3)),
            "pair": (
                rng.integers(0, 256, (rows, 4, 5, 3)).astype(np.uint8),
                rng.integers(0, 2, rows).astype(np.bool_),
            ),
        },
        **options,
    )


def full():
    """Episodes with infos and every kind of end, as some formats can hold them."""
    return [
        nested(
            length,
            number,
            end=("terminated", "truncated", "both")[number % 3],
            rewards=np.arange(length) / 7,
            infos={"value": np.arange(length), "state": {"x": np.ones((length + 1, 2))}},
        )
        for number, length in enumerate(LENGTHS)
    ]


def every_dtype(num_steps, number, dtypes=DTYPES):
    """An episode with an observation of each dtype, with values of all its bits."""
    rng = np.random.default_rng([num_steps, number, 2])
    observations = {}
    for dtype in map(np.dtype, dtypes):
        if dtype.kind == "b":
            values = rng.integers(0, 2, (num_steps + 1, 2)).astype(dtype)
        elif dtype.kind in "iu":
            data = rng.bytes((num_steps + 1) * 2 * dtype.itemsize)
            values = np.frombuffer(data, dtype).reshape(num_steps + 1, 2)
        else:
            values = rng.normal(size=(num_steps + 1, 2)).astype(dtype)
        observations[dtype.name] = values
    return episode(num_steps, number, observations=observations)


def assert_equal(found, expected, *, skip=()):
    """Checks that episodes are equal: values bit for bit, dtypes, shapes, flags and order.

    An info `[T, ...]` may have come back with a row for the reset.
    """
    found, expected = list(found), list(expected)
    assert [len(it) for it in found] == [len(it) for it in expected]
    for one, other in zip(found, expected, strict=True):
        for field in FIELDS:
            if field in skip:
                continue
            ours = dict(leaves(field, getattr(one, field)))
            theirs = dict(leaves(field, getattr(other, field)))
            assert sorted(ours) == sorted(theirs)
            for path, array in ours.items():
                wanted = theirs[path]
                if field == "infos" and len(array) == len(wanted) + 1:
                    array = array[1:]
                assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), path
                assert array.tobytes() == np.ascontiguousarray(wanted).tobytes(), path


class Scalar(list):
    """A list of steps, with what `support.scalar_items` reads of an episode."""

    def __init__(self, made):
        super().__init__(range(len(made)))
        self.observations = made.observations
        self.actions = made.actions
        self.rewards = made.rewards
        self.terminated = bool(made.terminated[-1])
        self.truncated = bool(made.truncated[-1])


def table(name, example, items, *, options=None, **signature):
    """A table for items of a dataset."""
    made = {"max_size": 1_000_000, "sampler": reverb.selectors.Uniform()} | (options or {})
    return testing.table(name, signature=datasets.signature(example, items, **signature), **made)


def write_npz(path, given, **more):
    """Writes a flat `.npz` file, as D4RL has them."""
    names = {
        "observations": lambda it: it.observations[:-1],
        "next_observations": lambda it: it.observations[1:],
        "actions": lambda it: it.actions,
        "rewards": lambda it: it.rewards,
        "terminals": lambda it: it.terminated,
        "timeouts": lambda it: it.truncated,
    }
    arrays = {name: np.concatenate([part(it) for it in given]) for name, part in names.items()}
    np.savez(path, **{name: it for name, it in (arrays | more).items() if it is not None})
    return f"npz:{path}"

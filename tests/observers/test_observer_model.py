# SPDX-License-Identifier: Apache-2.0
"""Random frames, boundaries and resets, against a plain description of the windows."""

import pytest

from reverb import testing
from reverb.adapters.tf_agents import reverb_utils

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
st = hypothesis.strategies

MID, LAST = 1, 2

# Next event: a frame, a boundary frame, or a reset that writes or drops the remaining frames.
events = st.lists(
    st.sampled_from(["frame"] * 6 + ["boundary", "reset", "drop"]), min_size=1, max_size=30
)


@pytest.fixture(scope="module")
def module_client():
    with testing.server([testing.table("table", max_times_sampled=1)]) as made:
        yield made


def windows(episode, length, stride, tail="drop"):
    """The windows of an episode, and what becomes of its tail."""
    count = 0 if len(episode) < length else 1 + (len(episode) - length) // stride
    complete = [episode[k * stride :][:length] for k in range(count)]
    next_start = count * stride
    padded = [
        (episode[start:] + [0] * length)[:length]
        for start in range(next_start, len(episode), stride)
    ]
    held = {frame for window in complete for frame in window}
    is_held = held.issuperset(episode[next_start:])
    if tail == "tile":
        return complete + padded
    if tail == "pad" and not is_held:
        return complete + padded[:1]
    if tail == "newest" and not is_held:
        return [*complete, episode[-length:] if len(episode) >= length else "error"]
    return complete


@hypothesis.given(
    events=events,
    length=st.integers(1, 6),
    stride=st.integers(1, 8),
    padding=st.sampled_from(["drop", "pad", "tile"]),
    crosses=st.booleans(),
)
@hypothesis.settings(max_examples=150)
def test_windows(module_client, frame, items, events, length, stride, padding, crosses):
    kind = reverb_utils.ReverbAddTrajectoryObserver
    if crosses:
        kind = reverb_utils.ReverbTrajectorySequenceObserver
    observer = kind(
        module_client,
        "table",
        length,
        stride,
        pad_end_of_episodes=padding != "drop",
        tile_end_of_episodes=padding == "tile",
    )
    expected, episode = [], []
    for number, event in enumerate(events, start=1):
        if event in ("frame", "boundary"):
            episode.append(number)
            observer(frame(number, LAST if event == "boundary" else MID))
            if event == "boundary" and not crosses:
                expected += windows(episode, length, stride, padding)
                episode = []
            continue
        tail = "newest" if padding == "drop" else padding
        complete = windows(episode, length, stride, "drop" if event == "drop" else tail)
        if "error" in complete:
            with pytest.raises(ValueError, match="not enough steps"):
                observer.reset()
            continue
        observer.reset(write_cached_steps=event == "reset")
        expected += complete
        episode = []
    expected += windows(episode, length, stride)
    observer.close()
    assert items(module_client) == expected


@hypothesis.given(events=events, limit=st.integers(1, 8), bypass=st.booleans())
@hypothesis.settings(max_examples=80)
def test_episodes(module_client, frame, items, events, limit, bypass):
    observer = reverb_utils.ReverbAddEpisodeObserver(
        module_client, "table", limit, bypass_partial_episodes=bypass
    )
    expected, episode = [], []
    for number, event in enumerate(events, start=1):
        if event in ("frame", "boundary"):
            episode.append(number)
            step = frame(number, LAST if event == "boundary" else MID)
            if len(episode) == limit + 1 and not bypass:
                with pytest.raises(ValueError, match="max_sequence_length"):
                    observer(step)
            else:
                observer(step)
        else:
            observer.reset(write_cached_steps=event == "reset")
        if event != "frame":
            if event != "drop" and 0 < len(episode) <= limit:
                expected.append(episode)
            episode = []
    observer.close()
    assert items(module_client) == expected

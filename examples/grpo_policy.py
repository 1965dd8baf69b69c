# SPDX-License-Identifier: Apache-2.0
"""What `grpo_arithmetic.py` trains: a transformer that writes answers to sums, by GRPO."""

from __future__ import annotations

import pathlib

import numpy as np
import torch

import reverb

SYMBOLS = "0123456789+=."  # a token is a position in this text
END = SYMBOLS.index(".")
PROMPT_TOKENS, MAX_ANSWER_TOKENS = 4, 3
WIDTH, HEADS, LAYERS = 64, 4, 2
LEARNING_RATE, CLIP, ENTROPY_BONUS = 2e-3, 0.2, 0.2

# The matrices are small: a second thread would only compete with another process for a core.
torch.set_num_threads(1)


class Policy(torch.nn.Module):
    """A causal transformer of 1e5 parameters: tokens `[B, T]` to log-probabilities `[B, T, V]`."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = torch.nn.Embedding(len(SYMBOLS), WIDTH)
        self.positions = torch.nn.Embedding(PROMPT_TOKENS + MAX_ANSWER_TOKENS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        norm = torch.nn.LayerNorm(WIDTH)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, len(SYMBOLS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the log-probabilities of the symbol after each token."""
        length = tokens.shape[1]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.symbols(tokens) + self.positions.weight[:length]
        return self.head(self.layers(hidden, mask=mask, is_causal=True)).log_softmax(-1)

    @torch.no_grad()
    def write(self, prompts: np.ndarray, *, greedy: bool = False) -> list[dict[str, np.ndarray]]:
        """Writes an answer to each prompt, up to its "." or three symbols.

        Args:
          prompts: Tokens, int32 `[B, T]`.
          greedy: Whether the likeliest symbol is taken; else it is sampled.

        Returns:
          For each prompt a dict: "answer", tokens, int32 `[T]`; "log_prob" of each, float32 `[T]`.
        """
        tokens, log_probs = torch.from_numpy(prompts).long(), []
        for _ in range(MAX_ANSWER_TOKENS):
            choices = self(tokens)[:, -1]
            best = choices.argmax(-1, keepdim=True)
            chosen = best if greedy else choices.exp().multinomial(1)
            tokens = torch.cat([tokens, chosen], 1)
            log_probs.append(choices.gather(1, chosen))
        answers, scores = tokens[:, PROMPT_TOKENS:].int().numpy(), torch.cat(log_probs, 1).numpy()
        is_end = answers == END
        lengths = np.where(is_end.any(1), is_end.argmax(1) + 1, MAX_ANSWER_TOKENS)
        rows = zip(answers, scores, lengths, strict=True)
        return [{"answer": row[:end], "log_prob": score[:end]} for row, score, end in rows]

    def to_vector(self) -> np.ndarray:
        """Returns all weights, float32 `[P]`."""
        return torch.nn.utils.parameters_to_vector(self.parameters()).detach().numpy()

    def load_vector(self, weights: np.ndarray) -> None:
        """Takes weights over from `to_vector`."""
        vector = torch.from_numpy(weights.copy())
        torch.nn.utils.vector_to_parameters(vector, self.parameters())


class Learner:
    """GRPO (Shao et al., 2024, arXiv:2402.03300, 4.1) with an entropy bonus.

    Attributes:
      policy: The policy, with random weights, or those of the checkpoint if there is one.
      step: Number of steps that it has made.
    """

    def __init__(self, checkpoint: pathlib.Path, seed: int, num_steps: int) -> None:
        torch.manual_seed(seed)
        self.policy, self.step = Policy(), 0
        self._optimizer = torch.optim.Adam(self.policy.parameters(), LEARNING_RATE)
        self._checkpoint, self._num_steps = checkpoint, num_steps
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            self.step = saved["step"]
            self.policy.load_state_dict(saved["policy"])
            self._optimizer.load_state_dict(saved["optimizer"])

    def save(self) -> None:
        """Writes the checkpoint, which is always whole."""
        new = self._checkpoint.with_suffix(".new")
        optimizer = self._optimizer.state_dict()
        saved = {"step": self.step, "policy": self.policy.state_dict(), "optimizer": optimizer}
        torch.save(saved, new)
        new.replace(self._checkpoint)

    def learn(self, batch: reverb.RolloutBatch) -> None:
        """Makes one step on `N` prompts with `G` answers each."""
        prompts = torch.from_numpy(batch.data["prompt"]).long()  # [N, T]
        answers = torch.from_numpy(batch.data["answer"].padded()).long()  # [N * G, U]
        old_log_probs = torch.from_numpy(batch.data["log_prob"].padded())
        rewards = torch.from_numpy(batch.data["reward"]).view(len(batch), -1)  # [N, G]
        # The advantage of an answer is how much better it is than the others of its group.
        advantages = rewards - rewards.mean(1, keepdim=True)
        advantages = (advantages / (rewards.std(1, keepdim=True) + 1e-2)).view(-1, 1)
        tokens = torch.cat([prompts[batch.item], answers], 1)
        choices = self.policy(tokens[:, :-1])[:, PROMPT_TOKENS - 1 :]
        log_probs = choices.gather(2, answers[:, :, None])[:, :, 0]
        # An older policy wrote them. A step does not go further than `CLIP` away from it.
        ratio = (log_probs - old_log_probs).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        entropy = -(choices.exp() * choices).sum(-1)
        mask = torch.arange(answers.shape[1]) < torch.from_numpy(batch.length)[:, None]
        # Towards the end it explores less, and makes smaller steps.
        left = max(0.1, 1 - self.step / self._num_steps)
        self._optimizer.param_groups[0]["lr"] = left * LEARNING_RATE
        loss = -((gain + left * ENTROPY_BONUS * entropy) * mask).sum() / mask.sum()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self._optimizer.step()
        self.step += 1

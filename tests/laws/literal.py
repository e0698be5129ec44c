"""The formula of each scorer as its paper has it, for one query and one key at a time, written independently of the
package. `self` is the scorer, h and g the query's head and its key-value head, i and j the positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

TINY = 1e-6


def dot(self, q: Tensor, k: Tensor, **_) -> Tensor:
    return (q * k).sum()


def scaled_dot(self, q: Tensor, k: Tensor, **_) -> Tensor:
    return (q * k).sum() / len(q) ** 0.5


def multiplicative(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    if self.form == "full":
        return torch.einsum("a,ab,b->", q, self.weight[h], k)
    if self.form == "low_rank":
        return torch.einsum("a,ar,br,b->", q, self.query_factor[h], self.key_factor[g], k)
    return (q * self.weight[h] * k).sum()


def biaffine(self, q: Tensor, k: Tensor, h: int, **_) -> Tensor:
    return torch.einsum("a,ab,b->", q, self.weight[h], k) + (self.key_prior[h] * k).sum()


def cosine(self, q: Tensor, k: Tensor, h: int, **_) -> Tensor:
    temperature = self.initial_temperature
    if self.temperature == "learned":
        temperature = self.log_temperature[h].exp()
    elif self.temperature == "query":
        temperature = F.softplus((self.weight[h] * q).sum() + self.offset[h])
    return temperature * (q * k).sum() / ((q.square().sum() + TINY) * (k.square().sum() + TINY)).sqrt()


def gaussian(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    if self.width == "mahalanobis":
        return -(self.weight[g] @ (q - k)).square().sum() / 2
    width = self.initial_width if self.width == "fixed" else self.weight[h]
    return -(width * (q - k)).square().sum() / 2


def additive(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    return (self.weight[h] * torch.tanh(q @ self.query_weight[h] + k @ self.key_weight[g])).sum()


def concat(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    return (self.weight[h] * torch.tanh(torch.cat([q, k]) @ self.joint_weight[g])).sum()


def uniform(self, q: Tensor, k: Tensor, **_) -> Tensor:
    return torch.zeros((), dtype=q.dtype)


def linear(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    return (self.query_weight[h] * q).sum() + (self.key_weight[g] * k).sum()


def tanh_key(self, q: Tensor, k: Tensor, g: int, **_) -> Tensor:
    return (q * torch.tanh(self.weight[g] @ k)).sum()


def context_vector(self, q: Tensor, k: Tensor, h: int, g: int, **_) -> Tensor:
    return (self.context[h] * torch.tanh(self.weight[g] @ k + self.offset[g])).sum()


def location(self, q: Tensor, k: Tensor, g: int, j: int, **_) -> Tensor:
    return (self.weight[g, j] * q).sum() + self.offset[g, j]


def static(self, q: Tensor, k: Tensor, h: int, g: int, i: int, j: int, **_) -> Tensor:
    if self.form == "low_rank":
        return (self.query_factor[h, i] * self.key_factor[g, j]).sum()
    return -((i - j) ** 2) / (2 * self.log_sigma[h].exp() ** 2)

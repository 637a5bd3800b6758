#!/usr/bin/env python3
"""Loss, logits and gradients of PyTorch's transformers, for transformer_test.cpp: transformer_reference.safetensors.

  python3 transformer_reference.py        needs torch

Parameters are a wave each, which both sides write: element i of the n-th one of its model is 0.3 sin(0.7 i + n).
"""
import json
import os
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../benchmarks/train"))
from peers import Transformer  # noqa: E402

WORDS, WIDTH, LAYERS, HEADS, LENGTH = 61, 16, 2, 4, 12


def turned(x):
    """Rotary positions by complex numbers: elements i and i + d/2 are one."""
    length, half = x.shape[2], x.shape[3] // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = torch.polar(torch.ones(length, half, dtype=torch.float64), torch.outer(torch.arange(length), speeds))
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
    return torch.cat([z.real, z.imag], -1).to(x.dtype)


class Rotary(nn.Module):
    """The transformer with rotary positions, whose head is its table of words."""

    def __init__(self):
        super().__init__()
        plain = Transformer(WORDS, WIDTH, LAYERS, HEADS, LENGTH, True, 0.0, False)
        self.words, self.blocks, self.norm = plain.embedding.words, plain.blocks, plain.head[0]
        for block in self.blocks:
            block.attention = lambda q, k, v, p: F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)

    def logits(self, text):
        x = self.words(text)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        plain = Transformer(WORDS, WIDTH, LAYERS, HEADS, LENGTH, True, 0.0, False)
        self.words, self.places = plain.embedding.words, plain.embedding.places
        self.blocks, self.norm, self.head = plain.blocks, plain.head[0], plain.head[1]

    def logits(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def save(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = struct.pack(f"<{tensor.numel()}f", *tensor.flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


found = {}
text = (torch.arange(2 * LENGTH).view(2, LENGTH) * 7 + 3) % WORDS
wanted = (text * 5 + 1) % WORDS
for name, model in ("learned", Learned()), ("rotary", Rotary()):
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            wave = 0.3 * torch.sin(0.7 * torch.arange(parameter.numel(), dtype=torch.float64) + n)
            parameter.copy_(wave.view_as(parameter))
    logits = model.logits(text)
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    loss.backward()
    found[f"{name}.loss"] = loss.detach().view(1)
    found[f"{name}.next"] = logits.detach()[torch.arange(2), torch.tensor([4, LENGTH - 1])]
    for key, parameter in model.named_parameters():
        found[f"{name}.{key}"] = parameter.grad
save(os.path.join(here, "transformer_reference.safetensors"), found)

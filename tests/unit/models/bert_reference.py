#!/usr/bin/env python3
"""BERT's pretraining loss, scores and gradients in plain PyTorch: python3 bert_reference.py > bert_reference.inc

Written from the papers and from Hugging Face's BertForPreTraining and MegatronBertForPreTraining, apart from bert.hpp: every
product, softmax and norm is spelled out. Weights and inputs are given by a formula that bert_test.cpp knows as well. With an
argument, a folder that has `transformers`, its scores are compared with Hugging Face's models of the same weights.
"""
import json
import math
import sys

import torch

SAMPLES, LENGTH, PREDICTIONS = 3, 6, 2
SIZES = dict(vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
             max_position_embeddings=10, type_vocab_size=2)
CASES = {
    "bert": dict(hidden_act="gelu"),
    "megatron": dict(hidden_act="gelu_new", megatron_residual_connection=True, scale_query_key=True,
                     deep_weight_init=True),
    "scaled": dict(hidden_act="relu", scale_query_key=True),
}


def number(name, i):
    """32 bits that follow from a name and an index."""
    h = 2166136261
    for byte in name.encode():
        h = (h ^ byte) * 16777619 % 2**32
    h = (h + i * 2654435761) % 2**32
    h = (h ^ h >> 15) * 2246822519 % 2**32
    return h ^ h >> 13


def weight(name, *shape):
    count = math.prod(shape)
    values = torch.tensor([(number(name, i) / 2**32 - 0.5) * 0.8 for i in range(count)], dtype=torch.float64)
    if name.endswith(("LayerNorm.weight", "ln.weight")):
        values = values + 1
    return values.view(shape).requires_grad_()


def integers(name, below, *shape):
    return torch.tensor([number(name, i) % below for i in range(math.prod(shape))]).view(shape)


def inputs():
    lengths = [6, 4, 5]
    mask = torch.tensor([[1] * n + [0] * (LENGTH - n) for n in lengths])
    labels = integers("labels", 13, SAMPLES, PREDICTIONS)
    labels[1, 1] = -1
    positions = integers("positions", 3, SAMPLES, PREDICTIONS) + 1
    positions[1, 1] = 0
    return dict(ids=integers("ids", 13, SAMPLES, LENGTH) * mask, types=integers("types", 2, SAMPLES, LENGTH) * mask,
                mask=mask, positions=positions, labels=labels, next=integers("next", 2, SAMPLES))


class Bert:
    def __init__(self, config):
        self.config, self.weights = config, {}
        self.megatron = config.get("megatron_residual_connection", False)

    def get(self, name, *shape):
        if name not in self.weights:
            self.weights[name] = weight(name, *shape)
        return self.weights[name]

    def linear(self, name, x, out):
        return x @ self.get(name + ".weight", out, x.shape[-1]).T + self.get(name + ".bias", out)

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        return centred / (variance + 1e-12).sqrt() * self.get(name + ".weight", x.shape[-1]) + self.get(name + ".bias", x.shape[-1])

    def activate(self, x):
        act = self.config["hidden_act"]
        if act == "gelu":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        if act == "gelu_new":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x.clamp(min=0)

    def attention(self, name, x, hidden, layer):
        h, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        split = lambda t: t.view(*t.shape[:2], heads, h // heads).permute(0, 2, 1, 3)
        q, k, v = (split(self.linear(f"{name}.{part}", x, h)) for part in ("query", "key", "value"))
        scores = q @ k.transpose(2, 3) / math.sqrt(h // heads)
        if self.config.get("scale_query_key"):
            scores = scores / layer * layer
        scores = scores.masked_fill(hidden, -math.inf)
        weights = (scores - scores.max(-1, keepdim=True).values).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights @ v).permute(0, 2, 1, 3).reshape(x.shape)

    def layer(self, name, x, hidden, number):
        h, inner = self.config["hidden_size"], self.config["intermediate_size"]
        entered = self.norm(name + ".attention.ln", x) if self.megatron else x
        y = self.linear(name + ".attention.output.dense", self.attention(name + ".attention.self", entered, hidden, number), h) + x
        if not self.megatron:
            y = self.norm(name + ".attention.output.LayerNorm", y)
        entered = self.norm(name + ".ln", y) if self.megatron else y
        z = self.linear(name + ".output.dense", self.activate(self.linear(name + ".intermediate.dense", entered, inner)), h) + y
        return z if self.megatron else self.norm(name + ".output.LayerNorm", z)

    def scores(self, given):
        c, h = self.config, self.config["hidden_size"]
        words = self.get("bert.embeddings.word_embeddings.weight", c["vocab_size"], h)
        places = self.get("bert.embeddings.position_embeddings.weight", c["max_position_embeddings"], h)
        types = self.get("bert.embeddings.token_type_embeddings.weight", c["type_vocab_size"], h)
        x = words[given["ids"]] + places[:LENGTH] + types[given["types"]]
        if not self.megatron:
            x = self.norm("bert.embeddings.LayerNorm", x)
        hidden = given["mask"].eq(0)[:, None, None, :]
        for i in range(c["num_hidden_layers"]):
            x = self.layer(f"bert.encoder.layer.{i}", x, hidden, i + 1)
        if self.megatron:
            x = self.norm("bert.encoder.ln", x)
        pooled = torch.tanh(self.linear("bert.pooler.dense", x[:, 0], h))
        t = self.norm("cls.predictions.transform.LayerNorm", self.activate(self.linear("cls.predictions.transform.dense", x, h)))
        return t @ words.T + self.get("cls.predictions.bias", c["vocab_size"]), self.linear("cls.seq_relationship", pooled, 2)


def mean_loss(scores, labels):
    counted = labels >= 0
    log_shares = scores - scores.exp().sum(-1, keepdim=True).log()
    return -log_shares[counted].gather(1, labels[counted][:, None]).mean()


def run(config):
    given = inputs()
    model = Bert(config)
    words, following = model.scores(given)
    picked = torch.stack([words[i, given["positions"][i]] for i in range(SAMPLES)])
    masked = mean_loss(picked.flatten(0, 1), given["labels"].flatten())
    following_loss = mean_loss(following, given["next"])
    (masked + following_loss).backward()
    return model, given, words, picked, following, masked, following_loss


def values(tensor):
    return ", ".join(f"{x:.12g}" for x in tensor.detach().flatten().tolist())


def designated(config):
    """Members of models::BertConfig, in its order."""
    order = [*SIZES, "hidden_act", "megatron_residual_connection", "scale_query_key", "deep_weight_init"]
    return ", ".join(f".{key} = {json.dumps(config[key])}" for key in order if key in config)


def compare_with_transformers(folder):
    sys.path.insert(0, folder)
    import transformers
    for name, changes in CASES.items():
        config = {**SIZES, **changes}
        model, given, words, _, following, _, _ = run(config)
        megatron = config.get("megatron_residual_connection", False)
        kind = transformers.MegatronBertForPreTraining if megatron else transformers.BertForPreTraining
        settings = transformers.MegatronBertConfig if megatron else transformers.BertConfig
        sizes = {**SIZES, "hidden_act": config["hidden_act"], "layer_norm_eps": 1e-12}
        theirs = kind(settings(**sizes)).double().eval()
        missing, unexpected = theirs.load_state_dict({k: v.detach() for k, v in model.weights.items()}, strict=False)
        assert not unexpected, unexpected
        assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}, missing
        theirs.tie_weights()
        out = theirs(input_ids=given["ids"], token_type_ids=given["types"], attention_mask=given["mask"])
        real = given["mask"].bool()
        print(name, kind.__name__, transformers.__version__, "scores differ by",
              (out.prediction_logits - words)[real].abs().max().item(),
              (out.seq_relationship_logits - following).abs().max().item())


if len(sys.argv) > 1:
    compare_with_transformers(sys.argv[1])
else:
    print("// Written by bert_reference.py.")
    for name, changes in CASES.items():
        config = {**SIZES, **changes}
        model, _, _, picked, following, masked, following_loss = run(config)
        print(f'ReferenceCase{{.name = "{name}", .config = {{{designated(config)}}},')
        print(f"              .masked_lm = {masked.item()!r}, .next_sentence = {following_loss.item()!r},")
        print(f"              .words = {{{values(picked)}}}, .next_scores = {{{values(following)}}}, .gradients = {{")
        for parameter, weights in sorted(model.weights.items()):
            print(f'    {{"{parameter}", {{{values(weights.grad)}}}}},')
        print("}},")

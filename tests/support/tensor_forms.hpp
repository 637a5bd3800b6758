#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

/// Layers in the many ways in which programs write them, none of which knows of tensor shards.
namespace tensor_forms {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

struct Net;

/// How a layer is written.
enum class Layer : std::uint8_t { kLinear, kProduct, kMatrix };

/// One way to write something.
struct Form {
  std::string name;
  std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> layers;  ///< name, inputs, outputs
  std::function<Tensor(Net&, const Tensor& x, const Tensor& y)> forward;
  std::string cut;        ///< units and parameters / dims that shards can have in slices
  std::int64_t rows = 0;  ///< of a table of numbers for each head; 0: there is none
  Layer layer = Layer::kLinear;
};

/// Layers of these names, and what a form makes of them.
struct Net : nn::Module {
  const Form& form;
  std::map<std::string, nn::Linear> layers;
  std::map<std::string, std::pair<Tensor, Tensor>> products;  ///< weight [inputs, outputs] and bias
  Tensor angles, table;
  explicit Net(const Form& of) : form(of) {
    for (const auto& [name, in, out] : form.layers) {
      if (form.layer == Layer::kLinear) {
        layers.emplace(name, register_module(name, nn::Linear(nn::LinearOptions(in, out).bias(name.front() != 'w'))));
      } else {
        const auto weight = register_parameter(name + "_weight", torch::randn({in, out}) / std::sqrt(in));
        products[name] = {weight, register_parameter(name + "_bias", torch::randn({out}))};
      }
    }
    if (form.rows > 0) table = register_parameter("table", torch::randn({form.rows, kHeads}));
    angles = register_buffer("angles", torch::linspace(0, 2, 5 * 3).view({5, 3}));
  }
  Tensor operator()(const std::string& layer, const Tensor& x) {
    if (form.layer == Layer::kLinear) return layers.at(layer)(x);
    const auto& [weight, bias] = products.at(layer);
    if (form.layer == Layer::kProduct) return torch::matmul(x, weight) + bias;
    return torch::addmm(bias, x.view({-1, x.size(-1)}), weight).view({x.size(0), x.size(1), -1});
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return form.forward(*this, x, y); }
  static constexpr int kTime = 5, kWidth = 24, kHeads = 4, kKeyHeads = 2, kGroup = 2, kSize = 6;
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kTime, kWidth}), torch::randn({n, kTime, kWidth})};
  }
};

inline Tensor residual_loss(const Tensor& x, const Tensor& mixed, const Tensor& y) { return F::mse_loss(x + mixed, y); }

/// [samples, heads, time, size] of [samples, time, heads * size].
inline Tensor heads(const Tensor& x, int count = Net::kHeads) {
  return x.view({x.size(0), x.size(1), count, -1}).transpose(1, 2);
}
/// The way back.
inline Tensor joined(const Tensor& x) { return x.transpose(1, 2).contiguous().view({x.size(0), x.size(2), -1}); }

inline Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool grouped = false) {
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/false, std::nullopt, grouped);
}

/// @return which positions of each sample count: [samples, 1, 1, time]
inline Tensor padding_of(const Tensor& x) {
  const auto first = x.select(-1, 0);
  return first.ge(first.mean(1, true)).unsqueeze(1).unsqueeze(1);
}

inline Tensor rms_norm(const Tensor& x) { return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-5); }

inline std::vector<Form> attention() {
  constexpr int kWidth = Net::kWidth, kTime = Net::kTime, kHeads = Net::kHeads, kKeys = Net::kKeyHeads,
                kSize = Net::kSize;
  using Parts = std::vector<Tensor>;
  const std::string fused = "4: o.weight/1 qkv.bias/0 qkv.weight/0";
  const std::string separate = "4: k.bias/0 k.weight/0 o.weight/1 q.bias/0 q.weight/0 v.bias/0 v.weight/0";
  const std::string grouped = "2" + separate.substr(1);
  std::vector<Form> forms;
  const auto add_fused = [&](const std::string& name, const std::function<Parts(const Tensor&)>& parts) {
    forms.push_back({name,
                     {{"qkv", kWidth, 3 * kWidth}, {"o", kWidth, kWidth}},
                     [parts](Net& net, const Tensor& x, const Tensor& y) {
                       const auto p = parts(net("qkv", x));
                       return residual_loss(x, net("o", joined(attend(p[0], p[1], p[2]))), y);
                     },
                     fused});
  };
  const auto each = [](Parts parts, const auto& change) {
    for (auto& part : parts) part = change(part);
    return parts;
  };
  const auto to_heads = [](const Tensor& part) { return heads(part); };
  const auto fifth = [](const Tensor& x) { return x.view({x.size(0), x.size(1), 3, kHeads, kSize}); };
  add_fused("chunks", [=](const Tensor& x) { return each(x.chunk(3, -1), to_heads); });
  add_fused("pieces", [=](const Tensor& x) { return each(x.split(kWidth, -1), to_heads); });
  add_fused("pieces of sizes", [=](const Tensor& x) { return each(x.split({kWidth, kWidth, kWidth}, 2), to_heads); });
  add_fused("slices", [=](const Tensor& x) {
    return each({x.slice(-1, 0, kWidth), x.narrow(-1, kWidth, kWidth), x.slice(-1, 2 * kWidth)}, to_heads);
  });
  add_fused("selected", [=](const Tensor& x) {
    const auto y = x.view({x.size(0), x.size(1), 3, kWidth});
    return each({y.select(2, 0), y.select(2, 1), y.select(2, 2)}, to_heads);
  });
  add_fused("unbound in front", [=](const Tensor& x) { return fifth(x).permute({2, 0, 3, 1, 4}).unbind(0); });
  add_fused("selected in front", [=](const Tensor& x) {
    const auto y = fifth(x).permute({2, 0, 3, 1, 4});
    return Parts{y[0], y[1], y[2]};
  });
  add_fused("unbound behind", [=](const Tensor& x) {
    return each(fifth(x).unbind(2), [](const Tensor& part) { return part.transpose(1, 2); });
  });
  add_fused("chunks of each head", [=](const Tensor& x) { return heads(x).chunk(3, -1); });
  add_fused("parts of each head", [=](const Tensor& x) {
    return each(x.unflatten(-1, {kHeads, 3, kSize}).unbind(3), [](const Tensor& part) { return part.transpose(1, 2); });
  });
  for (const auto& [name, layer] : {std::pair("products", Layer::kProduct), std::pair("of matrices", Layer::kMatrix)}) {
    add_fused(name, [=](const Tensor& x) { return each(x.split(kWidth, 2), to_heads); });
    forms.back().layer = layer;
    forms.back().cut = "4: o_weight/0 qkv_bias/0 qkv_weight/1";
  }
  const auto add = [&](const std::string& name, int keys, const std::string& cut,
                       const std::function<Tensor(Net&, const Tensor& x, Parts)>& mixed) {
    forms.push_back(
        {name,
         {{"q", kWidth, kWidth}, {"k", kWidth, keys * kSize}, {"v", kWidth, keys * kSize}, {"o", kWidth, kWidth}},
         [mixed, keys](Net& net, const Tensor& x, const Tensor& y) {
           auto m = mixed(net, x, {heads(net("q", x)), heads(net("k", x), keys), heads(net("v", x), keys)});
           return residual_loss(x, net("o", m), y);
         },
         cut});
  };
  const auto add_rotary = [&](const std::string& name, const std::function<Tensor(const Net&, const Tensor&)>& turned) {
    add(name, kHeads, separate, [turned](Net& net, const Tensor&, Parts p) {
      return joined(attend(turned(net, p[0]), turned(net, p[1]), p[2]));
    });
  };
  add("with padding", kHeads, separate, [](Net&, const Tensor& x, Parts p) {
    return joined(at::scaled_dot_product_attention(p[0], p[1], p[2], padding_of(x)));
  });
  add("written out, with padding", kHeads, separate, [](Net&, const Tensor& x, Parts p) {
    const auto scores = torch::matmul(p[0], p[1].transpose(-2, -1)) / std::sqrt(6.0);
    return joined(torch::matmul(torch::softmax(scores.masked_fill(padding_of(x).logical_not(), -1e9), -1), p[2]));
  });
  add("written out, causal", kHeads, separate, [](Net&, const Tensor& x, Parts p) {
    const auto later = torch::ones({kTime, kTime}, x.options()).triu(1).to(torch::kBool);
    auto scores = torch::matmul(p[0], p[1].transpose(-2, -1)) * 0.4;
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
    return joined(torch::matmul(F::softmax(scores, -1), p[2]));
  });
  add("heads as samples", kHeads, separate, [](Net&, const Tensor& x, Parts p) {
    for (auto& part : p) part = part.reshape({-1, kTime, kSize});
    const auto scores = torch::bmm(p[0] * 0.4, p[1].transpose(1, 2)).softmax(-1);
    return joined(torch::bmm(scores, p[2]).view({x.size(0), kHeads, kTime, kSize}));
  });
  add("normalised heads", kHeads, separate, [](Net&, const Tensor&, Parts p) {
    return joined(
        attend(rms_norm(p[0]), at::rms_norm(p[1], {kSize}), F::layer_norm(p[2], F::LayerNormFuncOptions({kSize}))));
  });
  add("a slope for each head", kHeads, separate, [](Net&, const Tensor& x, Parts p) {
    const auto time = torch::arange(kTime, x.options());
    const auto slopes = torch::pow(2, -torch::arange(1, kHeads + 1, x.options())).view({kHeads, 1, 1});
    const auto bias = slopes * (time.unsqueeze(0) - time.unsqueeze(1));
    return joined(torch::matmul((torch::matmul(p[0], p[1].mT()) + bias).softmax(-1), p[2]));
  });
  const auto add_distances = [&](const std::string& name,
                                 const std::function<Tensor(const Net&, const Tensor&)>& bias) {
    add(name, kHeads, "4: k.bias/0 k.weight/0 o.weight/1 q.bias/0 q.weight/0 table/1 v.bias/0 v.weight/0",
        [bias](Net& net, const Tensor&, Parts p) {
          const auto time = torch::arange(kTime);
          const auto distances = time.unsqueeze(0) - time.unsqueeze(1) + kTime - 1;
          return joined(at::scaled_dot_product_attention(p[0], p[1], p[2], bias(net, distances)));
        });
    forms.back().rows = 2 * kTime - 1;
  };
  add_distances("distances embedded", [](const Net& net, const Tensor& distances) {
    return F::embedding(distances, net.table).permute({2, 0, 1}).unsqueeze(0);
  });
  add_distances("distances as index", [](const Net& net, const Tensor& distances) {
    const auto bias = net.table.index({distances.view(-1)}).view({kTime, kTime, -1});
    return bias.permute({2, 0, 1}).contiguous().unsqueeze(0);
  });
  add_distances("distances selected", [](const Net& net, const Tensor& distances) {
    return net.table.index_select(0, distances.flatten()).t().view({kHeads, kTime, kTime});
  });
  add_rotary("rotary halves", [](const Net& net, const Tensor& x) {
    const auto angles = torch::cat({net.angles, net.angles}, -1);
    const auto halves = x.chunk(2, -1);
    return x * angles.cos() + torch::cat({-halves[1], halves[0]}, -1) * angles.sin();
  });
  add_rotary("rotary neighbours", [](const Net& net, const Tensor& x) {
    const auto even = x.slice(-1, 0, std::nullopt, 2), odd = x.slice(-1, 1, std::nullopt, 2);
    const auto cos = net.angles.cos(), sin = net.angles.sin();
    return torch::stack({even * cos - odd * sin, even * sin + odd * cos}, -1).flatten(-2);
  });
  add_rotary("rotary complex", [](const Net& net, const Tensor& x) {
    const auto turns = torch::polar(torch::ones_like(net.angles), net.angles);
    const auto turned = torch::view_as_complex(x.unflatten(-1, {-1, 2}).contiguous()) * turns;
    return torch::view_as_real(turned).flatten(-2);
  });
  add("grouped", kKeys, grouped, [](Net&, const Tensor&, Parts p) { return joined(attend(p[0], p[1], p[2], true)); });
  const auto add_grouped = [&](const std::string& name, const std::function<Tensor(const Tensor&)>& repeated) {
    add(name, kKeys, grouped,
        [repeated](Net&, const Tensor&, Parts p) { return joined(attend(p[0], repeated(p[1]), repeated(p[2]))); });
  };
  add_grouped("grouped, repeated", [](const Tensor& x) { return x.repeat_interleave(Net::kGroup, 1); });
  add_grouped("grouped, repeated in front", [](const Tensor& x) {
    return torch::repeat_interleave(x.transpose(1, 2), Net::kGroup, 2).transpose(1, 2);
  });
  add_grouped("grouped, expanded", [](const Tensor& x) {
    const auto many = x.unsqueeze(2).expand({x.size(0), kKeys, Net::kGroup, kTime, kSize});
    return many.reshape({x.size(0), kHeads, kTime, kSize});
  });
  add_grouped("grouped, in copies", [](const Tensor& x) {
    return x.unsqueeze(2).repeat({1, 1, Net::kGroup, 1, 1}).flatten(1, 2);
  });
  add("grouped, written out", kKeys, grouped, [](Net&, const Tensor&, Parts p) {
    const auto q = p[0].unflatten(1, {kKeys, Net::kGroup});
    const auto scores = torch::einsum("bkgid,bkjd->bkgij", {q, p[1]}).softmax(-1);
    return joined(torch::einsum("bkgij,bkjd->bkgid", {scores, p[2]}).flatten(1, 2));
  });
  add("one head of keys", 1, "4: o.weight/1 q.bias/0 q.weight/0",
      [](Net&, const Tensor&, Parts p) { return joined(attend(p[0], p[1], p[2], true)); });
  forms.push_back(
      {"grouped, fused",
       {{"qkv", kWidth, kKeys * (Net::kGroup + 2) * kSize}, {"o", kWidth, kWidth}},
       [](Net& net, const Tensor& x, const Tensor& y) {
         const auto p = net("qkv", x).view({x.size(0), kTime, kKeys, Net::kGroup + 2, kSize});
         const auto q = p.slice(3, 0, Net::kGroup).reshape({x.size(0), kTime, kHeads, kSize}).transpose(1, 2);
         const auto k = p.select(3, Net::kGroup).transpose(1, 2), v = p.select(3, Net::kGroup + 1).transpose(1, 2);
         return residual_loss(x, net("o", joined(attend(q, k, v, true))), y);
       },
       "2" + fused.substr(1)});
  // Eight heads of queries beside four of keys and four of values, of three features each.
  const auto add_unequal = [&](const std::string& name, const std::string& layer,
                               const std::function<Tensor(const Net&, const Tensor&)>& mixed) {
    const auto cut = layer == "qkv" ? fused : "4: o.weight/1 " + layer + ".weight/0";
    forms.push_back({name,
                     {{layer, kWidth, 2 * kWidth}, {"o", kWidth, kWidth}},
                     [=](Net& net, const Tensor& x, const Tensor& y) {
                       return residual_loss(x, net("o", joined(mixed(net, net(layer, x)))), y);
                     },
                     cut});
  };
  const auto unequal = [](const Tensor& x) {
    auto p = x.split_with_sizes({kWidth, kWidth / 2, kWidth / 2}, -1);
    return Parts{heads(p[0], 8), heads(p[1]), heads(p[2])};
  };
  add_unequal("grouped, unequal pieces", "qkv", [=](const Net&, const Tensor& x) {
    const auto p = unequal(x);
    return attend(p[0], p[1], p[2], true);
  });
  add_unequal("grouped, unequal pieces, repeated, rotary", "wqkv", [=](const Net& net, const Tensor& x) {
    auto p = unequal(x);
    const auto turned = [&](const Tensor& part) {
      return part * net.angles.cos() - part.roll(1, -1) * net.angles.sin();
    };
    return attend(turned(p[0]), turned(p[1]).repeat_interleave(2, 1), p[2].repeat_interleave(2, 1));
  });
  add_unequal("grouped, unequal slices, expanded", "wqkv", [=](const Net&, const Tensor& x) {
    const auto many = [&](const Tensor& part) {
      return heads(part).unsqueeze(2).expand({-1, -1, 2, -1, -1}).reshape({x.size(0), 8, kTime, 3});
    };
    return attend(heads(x.slice(-1, 0, kWidth), 8), many(x.narrow(-1, kWidth, kWidth / 2)),
                  many(x.slice(-1, kWidth + kWidth / 2)));
  });
  add_unequal("grouped, keys and values of one piece", "qkv", [=](const Net&, const Tensor& x) {
    const auto p = x.split({kWidth, kWidth}, -1), kv = p[1].chunk(2, -1);
    return attend(heads(p[0], 8), heads(kv[0]), heads(kv[1]), true);
  });
  add_unequal("grouped, pieces of heads", "qkv", [=](const Net&, const Tensor& x) {
    const auto p = heads(x, 16).split({8, 4, 4}, 1);
    return attend(p[0], p[1], p[2], true);
  });
  add_unequal("grouped, slices of heads", "wqkv", [=](const Net&, const Tensor& x) {
    const auto all = x.unflatten(-1, {16, 3});
    const auto part = [&](int begin, int end) { return all.slice(2, begin, end).transpose(1, 2); };
    return attend(part(0, 8), part(8, 12), part(12, 16), true);
  });
  for (const auto& [name, layer] : {std::pair("products", Layer::kProduct), std::pair("of matrices", Layer::kMatrix)}) {
    add_unequal(std::string("grouped, unequal ") + name, "qkv", [=](const Net&, const Tensor& x) {
      const auto p = unequal(x);
      return attend(p[0], p[1], p[2], true);
    });
    forms.back().layer = layer;
    forms.back().cut = "4: o_weight/0 qkv_bias/0 qkv_weight/1";
  }
  forms.push_back({"grouped, beside a feed-forward layer",
                   {{"all", kWidth, 4 * kWidth}, {"o", kWidth, kWidth}, {"down", 2 * kWidth, kWidth}},
                   [](Net& net, const Tensor& x, const Tensor& y) {
                     const auto p = net("all", x).split({kWidth, kWidth / 2, kWidth / 2, 2 * kWidth}, -1);
                     const auto mixed = joined(attend(heads(p[0], 8), heads(p[1]), heads(p[2]), true));
                     return residual_loss(x, net("o", mixed) + net("down", torch::gelu(p[3])), y);
                   },
                   "4: all.bias/0 all.weight/0 down.weight/1 o.weight/1"});
  forms.push_back({"across, keys and values fused",
                   {{"q", kWidth, kWidth}, {"kv", kWidth, 2 * kWidth}, {"o", kWidth, kWidth}},
                   [](Net& net, const Tensor& x, const Tensor& y) {
                     const auto kv = net("kv", y).chunk(2, -1);
                     return residual_loss(x, net("o", joined(attend(heads(net("q", x)), heads(kv[0]), heads(kv[1])))),
                                          y);
                   },
                   "4: kv.bias/0 kv.weight/0 o.weight/1 q.bias/0 q.weight/0"});
  return forms;
}

inline std::vector<Form> feed_forward() {
  constexpr int kWidth = Net::kWidth, kHidden = 32;
  using Layers = std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>;
  const Layers three{{"w1", kWidth, kHidden}, {"w3", kWidth, kHidden}, {"w2", kHidden, kWidth}};
  const Layers two{{"up", kWidth, 2 * kHidden}, {"down", kHidden, kWidth}};
  const auto gated = [](Net& net, const Tensor& x, const Tensor& y) {
    const auto parts = net("up", at::rms_norm(x, {kWidth})).chunk(2, -1);
    return residual_loss(x, net("down", torch::gelu(parts[0]) * parts[1]), y);
  };
  return {
      {"gate of its own", three,
       [](Net& net, const Tensor& x, const Tensor& y) {
         const auto h = rms_norm(x);
         return residual_loss(x, net("w2", torch::silu(net("w1", h)) * net("w3", h)), y);
       },
       "32: w1.weight/0 w2.weight/1 w3.weight/0"},
      {"gate in chunks", two, gated, "32: down.weight/1 up.bias/0 up.weight/0"},
      {"gate in chunks of products", two, gated, "32: down_weight/0 up_bias/0 up_weight/1", 0, Layer::kProduct},
      {"gate in chunks of matrices", two, gated, "32: down_weight/0 up_bias/0 up_weight/1", 0, Layer::kMatrix},
      {"glu", two,
       [](Net& net, const Tensor& x, const Tensor& y) {
         return residual_loss(x, net("down", F::glu(net("up", x), F::GLUFuncOptions(-1))), y);
       },
       "32: down.weight/1 up.bias/0 up.weight/0"},
      {"squared relu",
       {{"up", kWidth, kHidden}, {"down", kHidden, kWidth}},
       [](Net& net, const Tensor& x, const Tensor& y) {
         return residual_loss(x, net("down", torch::relu(net("up", x)).square()), y);
       },
       "32: down.weight/1 up.bias/0 up.weight/0"},
  };
}

/// Layers that are no part of a pair, by inputs.
inline std::vector<Form> single_layers() {
  constexpr int kWidth = Net::kWidth;
  const auto forward = [](Net& net, const Tensor& x, const Tensor& y) {
    return residual_loss(x, torch::softmax(net("alone", rms_norm(x)), -1), y);
  };
  return {
      {"single", {{"alone", kWidth, kWidth}}, forward, "24: alone.weight/1"},
      {"single product", {{"alone", kWidth, kWidth}}, forward, "24: alone_weight/0", 0, Layer::kProduct},
      {"single matrix", {{"alone", kWidth, kWidth}}, forward, "24: alone_weight/0", 0, Layer::kMatrix},
      {"twice",
       {{"w", kWidth, kWidth}},
       [](Net& net, const Tensor& x, const Tensor& y) {
         return residual_loss(x, torch::softmax(net("w", torch::softmax(net("w", x), -1)), -1), y);
       },
       "24: w.weight/1"},
  };
}

/// Of as many classes as there are features: `y` gives the targets.
inline std::vector<Form> class_heads() {
  constexpr int kWidth = Net::kWidth, kClasses = 11;
  const auto options = [](const Tensor& x) {
    return F::NLLLossFuncOptions().ignore_index(3).weight(torch::linspace(0.5, 2, kClasses, x.options()));
  };
  const auto targets = [](const Tensor& y) {
    return (y.select(-1, 0).abs() * 100).to(torch::kLong).remainder(kClasses);
  };
  const std::string cut = "11: head.bias/0 head.weight/0";
  const auto form = [&](const std::string& name, const std::function<Tensor(const Tensor&, const Tensor&)>& loss) {
    return Form{
        name,
        {{"head", kWidth, kClasses}},
        [loss, targets](Net& net, const Tensor& x, const Tensor& y) { return loss(net("head", x), targets(y)); },
        cut};
  };
  return {
      form("mean",
           [=](const Tensor& logits, const Tensor& target) {
             return F::nll_loss(F::log_softmax(logits.flatten(0, 1), 1), target.flatten(), options(logits));
           }),
      form("sum",
           [=](const Tensor& logits, const Tensor& target) {
             return F::nll_loss(F::log_softmax(logits.view({-1, kClasses}), F::LogSoftmaxFuncOptions(-1)),
                                target.view(-1), options(logits).reduction(torch::kSum));
           }),
      form("each",
           [=](const Tensor& logits, const Tensor& target) {
             const auto each = F::nll_loss(F::log_softmax(logits.flatten(0, 1), 1), target.flatten(),
                                           options(logits).reduction(torch::kNone));
             return each.view_as(target);
           }),
      form("classes in front",
           [=](const Tensor& logits, const Tensor& target) {
             return F::nll_loss(F::log_softmax(logits.transpose(1, 2), 1), target, options(logits));
           }),
      form("of the next one, soft-capped",
           [=](const Tensor& logits, const Tensor& target) {
             const auto capped = 5 * torch::tanh(logits.to(torch::kDouble) / 5);
             const auto each = F::log_softmax(capped.slice(1, 0, -1).contiguous().view({-1, kClasses}), 1);
             return F::nll_loss(each, target.slice(1, 1).reshape({-1}), options(logits));
           }),
      form("modules",
           [](const Tensor& logits, const Tensor& target) {
             return nn::NLLLoss()(nn::LogSoftmax(1)(logits.flatten(0, 1)), target.flatten());
           }),
  };
}

}  // namespace tensor_forms

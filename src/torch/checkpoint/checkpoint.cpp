#include <autopar/torch/checkpoint.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/io/safetensors.hpp>
#include <autopar/torch/engine/gradient_buckets.hpp>

namespace autopar {

namespace {

constexpr const char* kFile = "model.safetensors";
constexpr const char* kFormat = "1";

/// A tensor of the file and where it lives.
struct Row {
  TensorEntry entry;
  std::vector<Rank> holders;
  std::vector<Interval> shards;                    ///< by holder; empty: each has all of it
  std::function<at::Tensor()> read;                ///< on a holder
  std::function<void(const at::Tensor&)> write;    ///< on a holder, with a CPU tensor
  std::function<void(const at::Tensor&)> gather{}; ///< of optimizer state: on any rank, with the whole CPU tensor
};

std::vector<std::int64_t> sizes_of(const PlacedTensor& tensor) {
  return tensor.shards.empty() ? tensor.handle.sizes().vec() : tensor.sizes;
}

at::Tensor to_cpu(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().to(at::kCPU).contiguous();
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor empty_for(const TensorEntry& entry, c10::ScalarType type) {
  return at::empty(entry.shape, at::TensorOptions().dtype(type));
}

/// The optimizer that holds a parameter, if any.
torch::optim::Optimizer* optimizer_of(const std::vector<torch::optim::Optimizer*>& optimizers, const at::Tensor& parameter) {
  for (auto* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      const auto same = [&](const at::Tensor& other) { return other.is_same(parameter); };
      if (std::any_of(group.params().begin(), group.params().end(), same)) return optimizer;
    }
  }
  return nullptr;
}

/// What rank `root` says, as text, on every rank.
std::string tell(World& world, const std::string& text, Rank root, const char* action) {
  const auto raw = std::as_bytes(std::span(text));
  const auto blob = world.broadcast(Blob(raw.begin(), raw.end()), root, action);
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

/// Throws on every rank what rank 0 met, if anything.
void agree(World& world, const std::string& error, const char* action) {
  const auto met = tell(world, error, Rank(0), action);
  if (!met.empty()) throw CheckpointError(met);
}

/// Whether the first holder of each row has it (optimizer state exists after the first step only).
std::vector<char> existing(World& world, const std::vector<Row>& rows) {
  std::vector<std::int64_t> there(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].holders.front() == world.rank_id() && rows[i].read().defined()) there[i] = 1;
  }
  world.all_reduce_sum(std::span(there), "list of a checkpoint's tensors");
  return {there.begin(), there.end()};
}

std::vector<Row> model_rows(const std::vector<PlacedTensor>& tensors) {
  std::vector<Row> rows;
  for (const auto& tensor : tensors) {
    const auto handle = tensor.handle;
    rows.push_back({{"model." + tensor.name, dtype_of(handle.scalar_type()), sizes_of(tensor)},
                    tensor.holders,
                    tensor.shards,
                    [handle] { return handle; },
                    [handle](const at::Tensor& value) {
                      const at::NoGradGuard no_grad;
                      handle.detach().copy_(value);
                    }});
  }
  return rows;
}

/// State waiting to be put into the optimizers once all of it has arrived.
using ArrivedState = std::map<const c10::TensorImpl*, std::vector<StateEntry>>;

std::vector<Row> state_rows(const std::vector<PlacedTensor>& tensors,
                            const std::vector<torch::optim::Optimizer*>& optimizers,
                            const std::shared_ptr<ArrivedState>& arrived) {
  std::vector<Row> rows;
  for (const auto& tensor : tensors) {
    auto* optimizer = optimizer_of(optimizers, tensor.handle);
    if (optimizer == nullptr) continue;
    const auto handle = tensor.handle;
    for (const auto& name : state_names(*optimizer, handle)) {
      const bool is_counter = name == "step";
      rows.push_back({{"optimizer." + tensor.name + "." + name, is_counter ? DType::kI64 : dtype_of(handle.scalar_type()),
                       is_counter ? std::vector<std::int64_t>{} : sizes_of(tensor)},
                      tensor.holders,
                      is_counter ? std::vector<Interval>{} : tensor.shards,
                      [optimizer, handle, name]() -> at::Tensor {
                        for (auto& [key, value] : state_of(*optimizer, handle)) {
                          if (key == name) return value;
                        }
                        return {};
                      },
                      [handle, name, is_counter, arrived](const at::Tensor& value) {
                        (*arrived)[handle.unsafeGetTensorImpl()].emplace_back(
                            name, is_counter ? value : value.to(handle.device()));
                      },
                      [handle, name, arrived](const at::Tensor& whole) {
                        (*arrived)[handle.unsafeGetTensorImpl()].emplace_back(name, whole);
                      }});
    }
  }
  return rows;
}

std::vector<Row> all_rows(const std::vector<PlacedTensor>& tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
                          const std::shared_ptr<ArrivedState>& arrived) {
  auto rows = model_rows(tensors);
  for (auto& row : state_rows(tensors, optimizers, arrived)) rows.push_back(std::move(row));
  return rows;
}

/// A share of a whole CPU tensor, flat.
at::Tensor share_of(const at::Tensor& whole, Interval elements) {
  return whole.view({-1}).narrow(0, elements.begin, elements.size());
}

/// The row's data on rank 0; an undefined tensor elsewhere.
at::Tensor to_root(World& world, const Row& row) {
  const bool root = world.rank() == 0;
  at::Tensor data;
  const std::size_t senders = row.shards.empty() ? 1 : row.holders.size();
  for (std::size_t h = 0; h < senders; ++h) {
    const Rank from = row.holders[h];
    const bool all = row.shards.empty();
    if (!all && row.shards[h].empty()) continue;
    const at::Tensor mine = from == world.rank_id() ? to_cpu(row.read()) : at::Tensor();
    if (mine.defined() && !root) world.send(memory_of(mine), Rank(0), row.entry.name);
    if (!root) continue;
    if (mine.defined() && all) return mine;
    if (!data.defined()) data = empty_for(row.entry, scalar_type_of(row.entry.dtype));
    const auto part = all ? data : share_of(data, row.shards[h]);
    if (mine.defined()) part.copy_(mine.view_as(part));
    else world.receive(memory_of(part), from, row.entry.name);
  }
  if (root && !data.defined()) data = empty_for(row.entry, scalar_type_of(row.entry.dtype));  // without elements
  return data;
}

std::string numbers_text(const std::vector<double>& numbers) {
  std::ostringstream out;
  out.precision(17);
  for (std::size_t i = 0; i < numbers.size(); ++i) out << (i == 0 ? "" : ",") << numbers[i];
  return out.str();
}

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    double number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (error != std::errc() || end != item.data() + item.size()) {
      throw CheckpointError("the checkpoint's numbers are damaged: '" + text + "'");
    }
    numbers.push_back(number);
  }
  return numbers;
}

constexpr const char* kScalerKey = "autopar.loss_scaler";
const std::string kNoScaler = "-";

std::optional<LossScaler::State> scaler_of(const std::string& text) {
  if (text == kNoScaler) return std::nullopt;
  const auto numbers = numbers_of(text);
  constexpr double kMostSteps = 1e15;
  const auto counts = [&](std::size_t i) { return numbers[i] >= 0 && numbers[i] <= kMostSteps; };
  if (numbers.size() != 3 || !(numbers[0] >= LossScaler::kSmallest && numbers[0] <= LossScaler::kLargest) || !counts(1) ||
      !counts(2)) {
    throw CheckpointError("the checkpoint's loss scale is damaged: '" + text + "'");
  }
  return LossScaler::State{numbers[0], static_cast<std::int64_t>(numbers[1]), static_cast<std::int64_t>(numbers[2])};
}

std::map<std::string, std::string> metadata_of(const CheckpointInfo& info,
                                               const std::vector<torch::optim::Optimizer*>& optimizers) {
  std::map<std::string, std::string> out{{"autopar.format", kFormat},
                                         {"autopar.seed", std::to_string(info.seed)},
                                         {"autopar.calls", std::to_string(info.calls)}};
  if (info.scaler) {
    out[kScalerKey] = numbers_text({info.scaler->scale, static_cast<double>(info.scaler->good_steps),
                                    static_cast<double>(info.scaler->skipped)});
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const auto key = "autopar.optimizer." + std::to_string(i);
    out[key] = name_of(optimizer_kind(*optimizers[i]));
    out[key + ".lr"] = numbers_text(learning_rates(*optimizers[i]));
  }
  return out;
}

std::string metadata_at(const SafetensorsReader& reader, const std::string& key) {
  const auto found = reader.metadata().find(key);
  if (found == reader.metadata().end()) throw CheckpointError("the file lacks '" + key + "': autopar did not write it");
  return found->second;
}

bool is_state(const std::string& entry) { return entry.starts_with("optimizer."); }

/// Parameters with state in the file: only those that have been stepped have any.
std::set<std::string> parameters_with_state(const SafetensorsReader& reader) {
  std::set<std::string> names;
  for (const auto& entry : reader.entries()) {
    if (is_state(entry.name)) names.insert(entry.name.substr(0, entry.name.rfind('.')));
  }
  return names;
}

/// Rank 0: what is wrong with the file for this model and these optimizers; empty if nothing.
std::string mismatch(const SafetensorsReader& reader, const std::vector<Row>& rows,
                     const std::vector<torch::optim::Optimizer*>& optimizers, bool has_optimizers) {
  if (metadata_at(reader, "autopar.format") != kFormat) return "it has another format version";
  std::set<std::string> known;
  const auto stepped = parameters_with_state(reader);
  for (const auto& row : rows) {
    known.insert(row.entry.name);
    const auto* entry = reader.find(row.entry.name);
    if (entry == nullptr) {
      const auto& name = row.entry.name;
      if (is_state(name) && !stepped.contains(name.substr(0, name.rfind('.')))) continue;
      return "it lacks '" + row.entry.name + "'";
    }
    if (*entry == row.entry) continue;
    std::ostringstream out;
    out << '\'' << row.entry.name << "' is " << name_of(entry->dtype) << " with sizes " << at::IntArrayRef(entry->shape)
        << ", the model has " << name_of(row.entry.dtype) << ' ' << at::IntArrayRef(row.entry.shape);
    return out.str();
  }
  for (const auto& entry : reader.entries()) {
    if (optimizers.empty() && is_state(entry.name)) continue;
    if (!known.contains(entry.name)) return "the model has no '" + entry.name + "'";
  }
  for (std::size_t i = 0; i < optimizers.size() && has_optimizers; ++i) {
    const auto kind = metadata_at(reader, "autopar.optimizer." + std::to_string(i));
    const std::string mine = name_of(optimizer_kind(*optimizers[i]));
    if (kind != mine) return "its optimizer " + std::to_string(i) + " is " + kind + ", this one is " + mine;
  }
  return {};
}

bool saved_with_optimizers(const SafetensorsReader& reader) { return reader.metadata().contains("autopar.optimizer.0"); }

/// Rank 0's data to every holder.
void from_root(World& world, const SafetensorsReader* reader, const Row& row) {
  at::Tensor data;
  if (reader != nullptr) {
    data = empty_for(row.entry, scalar_type_of(row.entry.dtype));
    reader->read(row.entry.name, memory_of(data));
  }
  for (std::size_t h = 0; h < row.holders.size(); ++h) {
    const bool mine = row.holders[h] == world.rank_id();
    if (reader == nullptr && !mine) continue;
    const bool all = row.shards.empty();
    const Interval shard = all ? Interval{} : row.shards[h];
    at::Tensor part;
    if (reader != nullptr) part = all ? data : share_of(data, shard).clone();
    else part = all ? empty_for(row.entry, scalar_type_of(row.entry.dtype))
                    : at::empty({shard.size()}, at::TensorOptions().dtype(scalar_type_of(row.entry.dtype)));
    if (reader != nullptr && !mine && (all || !shard.empty())) world.send(memory_of(part), row.holders[h], row.entry.name);
    if (reader == nullptr && (all || !shard.empty())) world.receive(memory_of(part), Rank(0), row.entry.name);
    if (mine) row.write(part);
  }
}

}  // namespace

void save_checkpoint(World& world, const std::filesystem::path& folder, const std::vector<PlacedTensor>& tensors,
                     const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info) {
  auto rows = all_rows(tensors, optimizers, std::make_shared<ArrivedState>());
  const auto there = existing(world, rows);
  std::vector<TensorEntry> entries;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (there[i] != 0) entries.push_back(rows[i].entry);
  }
  std::optional<SafetensorsWriter> writer;
  std::string error;
  const auto attempt = [&](const auto& body) {
    if (world.rank() != 0 || !error.empty()) return;
    try {
      body();
    } catch (const Error& met) {
      error = met.what();
    } catch (const std::filesystem::filesystem_error& met) {
      error = met.what();
    }
  };
  attempt([&] { writer.emplace(folder / kFile, entries, metadata_of(info, optimizers)); });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (there[i] == 0) continue;
    // Sent even when rank 0 can no longer write, so that both sides stay in step.
    const auto data = to_root(world, rows[i]);
    attempt([&] { writer->write(memory_of(data)); });
  }
  attempt([&] { writer->commit(); });
  agree(world, error, "end of a checkpoint");
}

CheckpointInfo load_checkpoint(World& world, const std::filesystem::path& folder, const std::vector<PlacedTensor>& tensors,
                               const std::vector<torch::optim::Optimizer*>& optimizers) {
  const auto arrived = std::make_shared<ArrivedState>();
  const auto rows = all_rows(tensors, optimizers, arrived);
  std::optional<SafetensorsReader> reader;
  std::string error;
  std::string header;
  if (world.rank() == 0) {
    try {
      reader.emplace(folder / kFile);
      const bool has_optimizers = saved_with_optimizers(*reader);
      error = mismatch(*reader, rows, optimizers, has_optimizers);
      std::ostringstream out;
      const auto scaler = reader->metadata().find(kScalerKey);
      const auto scaler_text = scaler == reader->metadata().end() ? kNoScaler : scaler->second;
      static_cast<void>(scaler_of(scaler_text));
      out << metadata_at(*reader, "autopar.seed") << ' ' << metadata_at(*reader, "autopar.calls") << ' ' << scaler_text << ' '
          << has_optimizers << " :";
      for (const auto& row : rows) out << (reader->find(row.entry.name) != nullptr ? '1' : '0');
      for (std::size_t i = 0; i < optimizers.size() && has_optimizers; ++i) {
        out << ' ' << metadata_at(*reader, "autopar.optimizer." + std::to_string(i) + ".lr");
      }
      header = out.str();
    } catch (const CheckpointError& met) {
      error = met.what();
    }
    if (!error.empty()) error = "cannot load " + (folder / kFile).string() + ": " + error;
  }
  agree(world, error, "header of a checkpoint");
  std::istringstream fields(tell(world, header, Rank(0), "header of a checkpoint"));
  CheckpointInfo info;
  bool has_optimizers = false;
  std::string scaler, in_file;  // in_file: ':' and a digit for each row
  fields >> info.seed >> info.calls >> scaler >> has_optimizers >> in_file;
  info.scaler = scaler_of(scaler);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (in_file.at(i + 1) == '1') from_root(world, reader ? &*reader : nullptr, rows[i]);
  }
  for (const auto& tensor : tensors) {
    auto* optimizer = has_optimizers ? optimizer_of(optimizers, tensor.handle) : nullptr;
    if (optimizer == nullptr) continue;
    const auto found = arrived->find(tensor.handle.unsafeGetTensorImpl());
    if (found != arrived->end()) set_state(*optimizer, tensor.handle, found->second);
    else optimizer->state().erase(tensor.handle.unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < optimizers.size() && has_optimizers; ++i) {
    std::string rates;
    fields >> rates;
    set_learning_rates(*optimizers[i], numbers_of(rates));
  }
  return info;
}

std::vector<at::Tensor> gather_tensors(World& world, const std::vector<PlacedTensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& row : model_rows(tensors)) {
    auto data = to_root(world, row);
    if (world.rank() == 0) out.push_back(data.clone());
  }
  return out;
}

std::unique_ptr<torch::optim::Optimizer> gather_optimizer(World& world, const std::vector<PlacedTensor>& tensors,
                                                          torch::optim::Optimizer& optimizer) {
  const auto gathered = std::make_shared<ArrivedState>();  // by handle
  const auto rows = state_rows(tensors, {&optimizer}, gathered);
  const auto there = existing(world, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (there[i] == 0) continue;
    const auto data = to_root(world, rows[i]);
    if (world.rank() == 0) rows[i].gather(data.clone());
  }
  if (world.rank() != 0) return nullptr;
  const auto is_placed = [&](const at::Tensor& parameter) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.handle.is_same(parameter); });
  };
  auto whole = same_optimizer(optimizer);
  for (std::size_t g = 0; g < whole->param_groups().size(); ++g) {
    const auto& handles = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < handles.size(); ++i) {
      auto state = is_placed(handles[i]) ? (*gathered)[handles[i].unsafeGetTensorImpl()] : state_of(optimizer, handles[i]);
      for (auto& [name, value] : state) value = to_cpu(value).clone();
      if (!state.empty()) set_state(*whole, whole->param_groups()[g].params()[i], state);
    }
  }
  return whole;
}

at::Tensor gather_tensor(World& world, const PlacedTensor& tensor) {
  const auto rows = model_rows({tensor});
  const auto& row = rows[0];
  const auto whole = empty_for(row.entry, tensor.handle.scalar_type());
  const std::size_t senders = row.shards.empty() ? 1 : row.holders.size();
  for (std::size_t h = 0; h < senders; ++h) {
    if (!row.shards.empty() && row.shards[h].empty()) continue;
    const bool mine = row.holders[h] == world.rank_id();
    const auto part = row.shards.empty() ? whole : share_of(whole, row.shards[h]);
    if (mine) part.copy_(to_cpu(row.read()).view_as(part));
    const auto raw = memory_of(part);
    const auto blob = world.broadcast(mine ? Blob(raw.begin(), raw.end()) : Blob(), row.holders[h], "gather of " + tensor.name);
    std::memcpy(part.data_ptr(), blob.data(), blob.size());
  }
  return whole;
}

}  // namespace autopar

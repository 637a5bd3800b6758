#include "torch/steps/optimizer_bars.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>

#include <ATen/record_function.h>

namespace autopar::steps {

namespace {

constexpr std::string_view kOwnRange = "autopar::optim::";

/// Whether an operator of this name writes its first argument as a step does, which neither copies nor clears, one
/// tensor or many.
bool may_step(std::string_view name) {
  return name.ends_with('_') && !name.ends_with("copy_") && !name.ends_with("zero_");
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

const void* first_memory(c10::ArrayRef<const c10::IValue> arguments) {
  if (arguments.empty()) return nullptr;
  const auto& first = arguments[0];
  if (first.isTensor()) return memory_of(first.toTensor());
  if (!first.isTensorList() || first.toTensorList().empty()) return nullptr;
  return memory_of(first.toTensorList().get(0));
}

}  // namespace

struct OptimizerBars::Watch {
  struct Bar {
    std::string name;
    TraceMark begin, end;
  };

  Watch(const TraceClock& clock_in, Sink sink_in) : clock(clock_in), sink(std::move(sink_in)) {}

  /// An operator or a range of one's own begins or ends.
  void begin(const at::RecordFunction& function, bool is_range);
  void end(bool is_range);
  void finish() {
    if (open) sink(open->name, open->begin, open->end);
    open.reset();
  }
  [[nodiscard]] bool looks() const { return handle.has_value() && !is_paused; }

  const TraceClock& clock;
  Sink sink;
  std::unordered_set<const void*> memory{};  ///< of parameters
  std::optional<at::CallbackHandle> handle{};
  std::thread::id thread{};
  std::optional<Bar> open{};
  bool in_range = false;
  bool is_paused = false;
};

namespace {

/// Callbacks of at::RecordFunction are functions without data. One model is looked at, the latest that ended a call.
template <class Watch>
std::weak_ptr<Watch>& watch_of_thread() {
  thread_local std::weak_ptr<Watch> watch;
  return watch;
}

template <class Watch>
struct Seen : at::ObserverContext {
  Seen(std::weak_ptr<Watch> watch_in, bool is_range_in) : watch(std::move(watch_in)), is_range(is_range_in) {}
  std::weak_ptr<Watch> watch;
  bool is_range;
};

template <class Watch>
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  const auto watch = watch_of_thread<Watch>().lock();
  if (watch == nullptr || !watch->looks() || watch->in_range) return nullptr;
  const std::string_view name = function.name();
  const bool is_range = function.scope() == at::RecordScope::USER_SCOPE;
  if (is_range ? !name.starts_with(kOwnRange)
               : !may_step(name) || !watch->memory.contains(first_memory(function.inputs())))
    return nullptr;
  watch->begin(function, is_range);
  return std::make_unique<Seen<Watch>>(watch, is_range);
}

template <class Watch>
void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  const auto* const seen = static_cast<const Seen<Watch>*>(context);
  if (const auto watch = seen->watch.lock(); watch != nullptr && watch->looks()) watch->end(seen->is_range);
}

}  // namespace

void OptimizerBars::Watch::begin(const at::RecordFunction& function, bool is_range) {
  const auto now = clock.now();
  if (is_range) {
    finish();
    in_range = true;
    open.emplace(Bar{std::string(std::string_view(function.name()).substr(kOwnRange.size())), now, now});
  } else if (!open) {
    open.emplace(Bar{"optimizer", now, now});
  }
}

void OptimizerBars::Watch::end(bool is_range) {
  if (!open) return;
  open->end = clock.now();
  if (!is_range) return;
  in_range = false;
  finish();
}

OptimizerBars::OptimizerBars(const parameters::ParameterStore& parameters, const TraceClock& clock, Sink sink)
    : parameters_(parameters), watch_(std::make_shared<Watch>(clock, std::move(sink))) {}

OptimizerBars::~OptimizerBars() { stop(); }

void OptimizerBars::start() {
  stop();
  watch_->memory.clear();
  for (const auto& tensor : parameters_.tensors()) {
    if (tensor.is_parameter && parameters_.holds(tensor)) watch_->memory.insert(memory_of(tensor.handle));
  }
  watch_->memory.erase(nullptr);
  watch_->thread = std::this_thread::get_id();
  watch_of_thread<Watch>() = watch_;
  watch_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_begin<Watch>, on_end<Watch>)
                                                  .needsInputs(true)
                                                  .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

// Another thread's callback stays, as it can be removed there alone, and finds that nobody looks.
void OptimizerBars::stop() {
  if (!watch_->handle) return;
  if (watch_->thread == std::this_thread::get_id()) at::removeCallback(*watch_->handle);
  watch_->handle.reset();
  pause();
  watch_->is_paused = false;
}

void OptimizerBars::pause() {
  if (watch_->in_range && watch_->open) watch_->open->end = watch_->clock.now();
  watch_->in_range = false;
  watch_->finish();
  watch_->is_paused = true;
}

void OptimizerBars::resume() { watch_->is_paused = false; }

}  // namespace autopar::steps

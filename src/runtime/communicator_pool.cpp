#include "communicator_pool.hpp"

#include <algorithm>
#include <iterator>

#include <autopar/core/assert.hpp>

namespace autopar::detail {

CommunicatorPool::Number CommunicatorPool::add(CommunicatorPair pair) {
  const std::lock_guard lock(mutex_);
  pairs_.push_back(pair);
  used_.push_back(false);
  return static_cast<Number>(pairs_.size() - 1);
}

std::shared_ptr<const CommunicatorPair> CommunicatorPool::take(Number number) {
  const auto index = static_cast<std::size_t>(number);
  const std::lock_guard lock(mutex_);
  AUTOPAR_ASSERT(index < pairs_.size() && !used_[index], "a pair of communicators serves one transport at a time");
  std::shared_ptr<const CommunicatorPair> pair(new CommunicatorPair(pairs_[index]),
                                               [pool = shared_from_this(), number](const CommunicatorPair* mine) {
                                                 delete mine;
                                                 pool->give_back(number);
                                               });
  used_[index] = true;
  return pair;
}

void CommunicatorPool::give_back(Number number) {
  const std::lock_guard lock(mutex_);
  used_[static_cast<std::size_t>(number)] = false;
}

std::vector<CommunicatorPool::Number> CommunicatorPool::idle() const {
  const std::lock_guard lock(mutex_);
  std::vector<Number> numbers;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i]) numbers.push_back(static_cast<Number>(i));
  }
  return numbers;
}

std::size_t CommunicatorPool::in_use() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count(used_.begin(), used_.end(), true));
}

CommunicatorPool::Number lowest_in_all(const std::vector<std::vector<CommunicatorPool::Number>>& ascending) {
  auto common = ascending.front();
  for (const auto& list : ascending) {
    std::vector<CommunicatorPool::Number> both;
    std::set_intersection(common.begin(), common.end(), list.begin(), list.end(), std::back_inserter(both));
    common = std::move(both);
  }
  return common.empty() ? -1 : common.front();
}

}  // namespace autopar::detail

#include "data/windows.hpp"

#include <algorithm>
#include <vector>

#include <torch/torch.h>

#include "catch_shim.hpp"

namespace windows_test {

constexpr std::int64_t kLength = 4, kWindows = 23;

/// Of a text in which token i is i.
Windows windows(int rank = 0, int ranks = 1, std::uint64_t seed = 1) {
  return {torch::arange(kLength * kWindows + 3, torch::kInt), kLength, 2, seed, {rank, ranks, torch::kCPU}};
}

std::vector<std::int64_t> begins(const Batch& batch) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < batch.text.size(0); ++i) found.push_back(batch.text[i][0].item<std::int64_t>());
  return found;
}

TEST_CASE("Windows: targets are the text shifted by one") {
  auto whole = windows();
  const auto batch = whole.training(5, 3);
  CHECK(batch.text.sizes() == at::IntArrayRef({3, kLength}));
  CHECK(torch::equal(batch.next, batch.text + 1));
  CHECK(torch::equal(batch.text, batch.text.slice(1, 0, 1) + torch::arange(kLength)));
}

TEST_CASE("Windows: an epoch is a permutation without held-out ones") {
  auto whole = windows();
  CHECK(whole.training_size() == kWindows - 2);
  CHECK(whole.validation_size() == 2);
  const auto first = begins(whole.training(0, whole.training_size()));
  const auto second = begins(whole.training(whole.training_size(), whole.training_size()));
  CHECK(first != second);
  CHECK(begins(whole.training(0, whole.training_size())) == first);  // also when asked for later
  auto all = begins(whole.validation(0, 2));
  all.insert(all.end(), first.begin(), first.end());
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> expected;
  for (std::int64_t w = 0; w < kWindows; ++w) expected.push_back(w * kLength);
  CHECK(all == expected);
  CHECK(begins(windows(0, 1, 2).validation(0, 2)) != begins(whole.validation(0, 2)));
}

TEST_CASE("Windows: ranks' shares form the global batch across epochs") {
  auto whole = windows();
  const auto first = whole.training_size() - 3;
  std::vector<at::Tensor> shares;
  for (int rank = 0; rank < 3; ++rank) shares.push_back(windows(rank, 3).training(first, 7).text);
  CHECK(torch::equal(torch::cat(shares), whole.training(first, 7).text));
  CHECK(windows(0, 3).validation(0, 2).text.size(0) + windows(1, 3).validation(0, 2).text.size(0) +
            windows(2, 3).validation(0, 2).text.size(0) ==
        2);
}

TEST_CASE("Windows: a text below two windows is refused with its size") {
  CHECK_THROWS_WITH(Windows(torch::zeros(8, torch::kInt), 4, 1, 1, {0, 1, torch::kCPU}),
                    Catch::Matchers::Contains("8 tokens, less than two windows of 4"));
  CHECK_NOTHROW(Windows(torch::zeros(9, torch::kInt), 4, 1, 1, {0, 1, torch::kCPU}));
}

}  // namespace windows_test

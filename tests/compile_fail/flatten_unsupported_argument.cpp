// expect: autopar: arguments and results of forward must be tensors, constants (numbers, enums, strings) or tuples
#include <memory>

#include <autopar/capture/flatten.hpp>

int main() {
  at::Tensor x;
  auto flat = autopar::flatten(x, std::make_shared<int>(3));
  return static_cast<int>(flat.tensors.size());
}

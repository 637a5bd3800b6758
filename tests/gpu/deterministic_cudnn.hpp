#pragma once

#include <ATen/Context.h>

/// While it lives, cuDNN makes gradients of convolutions without atomic additions.
class DeterministicCuDnn {
 public:
  DeterministicCuDnn() : before_(at::globalContext().deterministicCuDNN()) {
    at::globalContext().setDeterministicCuDNN(true);
  }
  ~DeterministicCuDnn() { at::globalContext().setDeterministicCuDNN(before_); }
  DeterministicCuDnn(const DeterministicCuDnn&) = delete;
  DeterministicCuDnn& operator=(const DeterministicCuDnn&) = delete;

 private:
  bool before_;
};

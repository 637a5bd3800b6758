#pragma once

namespace autopar {

/// What a compute action asks of the run that it is part of: parameters come in through it, gradients go out. A bucket
/// is named by its reduction group and its number in it. The executor gives one to its engine.
///
/// Of what is gathered for a compute action, the compute action calls `unshard` before it uses a bucket, as often as it
/// likes. It may `reshard` a bucket that it does not use for now, and must `unshard` it before it uses it once more:
/// then it is gathered another time, if the program says so. Other buckets are ignored.
///
/// It calls `gradients_ready` once it will add nothing more to a bucket's gradients: in the last backward of the stage
/// (of all, for tied parameters), of buckets that are summed within compute actions in every one that gives weight
/// gradients, or not at all. Earlier calls are ignored.
///
/// All are called during a compute action, on whichever thread runs it, and may call the engine back: for memory to
/// gather into and to sum in, and to say that it has been.
/// @throws TransportError, and what the engine throws
class ParameterGate {
 public:
  virtual void unshard(int group, int bucket) = 0;  ///< it is whole afterwards, and the next one is on its way
  virtual void reshard(int group, int bucket) = 0;
  virtual void gradients_ready(int group, int bucket) = 0;

 protected:
  ~ParameterGate() = default;
};

}  // namespace autopar

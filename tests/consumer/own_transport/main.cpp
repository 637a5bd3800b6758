// A transport of the user's own around MPI, on 2 ranks: what a World hands out logs what it moves.
#include "logged.hpp"

#include <autopar/runtime/erased_transport.hpp>
#include <autopar/runtime/world.hpp>

#include <cstdio>
#include <memory>
#include <vector>

namespace ap = autopar;

int main(int argc, char** argv) {
  TransportLog log;
  ap::WorldOptions options;
  options.transports = [&log](const ap::TransportOptions& how, const ap::MakeTransport& built_in) {
    return ap::erased(Logged(built_in(how), log));
  };
  ap::World world(argc, argv, options);
  auto transport = world.make_transport();
  const auto group = transport.make_group({ap::Rank(0), ap::Rank(1)});

  const auto numbers = std::make_shared<std::vector<double>>(64, world.rank() + 1.0);
  const ap::Buffer buffer{reinterpret_cast<std::byte*>(numbers->data()), numbers->size() * sizeof(double), numbers};
  transport.wait(transport.all_reduce(buffer, ap::DType::kF64, group));
  const ap::Rank other(1 - world.rank());
  const auto ticket = world.rank() == 0 ? transport.send(buffer, other, {}) : transport.receive(buffer, other, {});
  transport.wait(ticket);

  const bool moved = numbers->front() == 3 && numbers->back() == 3;
  const bool logged = log.collectives == 1 && log.messages == (world.rank() == 0 ? 1U : 0U) &&
                      log.bytes == buffer.bytes * (world.rank() == 0 ? 2 : 1);
  if (!moved || !logged) std::fprintf(stderr, "rank %d: moved %d, logged %d\n", world.rank(), moved, logged);
  return moved && logged ? 0 : 1;
}

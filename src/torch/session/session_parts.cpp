#include "torch/session/session_parts.hpp"

#include <utility>

#include <autopar/cost/precision.hpp>
#include <autopar/torch/device.hpp>

namespace autopar::session {

SessionParts::SessionParts(World& world, std::shared_ptr<torch::nn::Module> model, Options code,
                           std::shared_ptr<InitRecord> record, std::span<const std::byte> members)
    : ranks(std::make_shared<ranks::WorldRanks>(world)),
      module(std::move(model)),
      options(std::move(code)),
      init(std::move(record)),
      files(ranks->logger(LogModule::kSession)),
      report(options.get(), files),
      parameters(*module, ranks->rank()),
      optimizers(parameters, init.get()),
      deployment(*ranks, [all = ranks](const TransportOptions& how) { return all->world().make_transport(how); }),
      watches(parameters, ranks->size() > 1),
      gradients(*ranks, parameters, deployment, watches),
      validator(*ranks, *module, world.count_model(), options.get(), parameters, watches, gradients, progress,
                late_failure),
      capture(*ranks, *module, members, options.get(), parameters, deployment),
      verifier(*ranks, options.get(), capture),
      programs(ranks->is_first() ? ranks->logger(LogModule::kSession) : Logger()),
      deployer({*ranks, options.get(), parameters, optimizers, deployment, watches, fp8, init.get()}),
      checks(*ranks, deployment,
             [this] {
               return at_precision(describe_cluster(ranks->world(), deployment.device()), options.get().precision);
             }),
      runner(*ranks, options.get(), parameters, deployment, fp8, files),
      graphed(*ranks, options.get(), parameters, deployment, fp8, runner),
      history({ranks, options.get(), parameters, deployment, validator, runner, graphed, gradients}),
      sums(*ranks, *module, parameters, deployment, validator),
      wholes({*ranks, parameters, optimizers, deployment, watches, validator, progress}),
      checkpoints({*ranks, parameters, watches, validator, gradients, fp8, progress, late_failure, init.get()}) {}

}  // namespace autopar::session

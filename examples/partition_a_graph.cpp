// Splits a task graph over devices with autopar::core alone: no neural network, no libtorch, no MPI.
//
// The graph is the pipeline of a stereo camera: each frame is decoded, rectified, matched, segmented, fused and
// encoded. It runs on small boards, whose memory cannot hold the tables of all tasks at once. The graph and its costs
// are the user's own types; the planner sees them through a cost model.
//
//   partition_a_graph [boards] [frames] [MiB of memory a board]
#include <cstdint>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/core/error.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/graph/algorithms/critical_path.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/plan/planner.hpp>

namespace ap = autopar;
using namespace ap::literals;

namespace {

struct Task {
  std::string name;
  ap::Seconds per_frame;
  ap::Bytes tables;  // held for as long as the program runs
};
struct Message {
  ap::Bytes per_frame;
};
using TaskGraph = ap::Graph<Task, Message>;

TaskGraph stereo_camera() {
  constexpr ap::Bytes kImage = 6_MiB, kHalfImage = 3_MiB, kDepth = 8_MiB, kList = 256_KiB;
  TaskGraph graph;
  const auto task = [&](const char* name, ap::Seconds per_frame, ap::Bytes tables) {
    return graph.add_node({name, per_frame, tables});
  };
  const auto decode_left = task("decode left", 4.0_ms, 24_MiB), decode_right = task("decode right", 4.0_ms, 24_MiB);
  const auto denoise_left = task("denoise left", 6.5_ms, 48_MiB), denoise_right = task("denoise right", 6.5_ms, 48_MiB);
  const auto rectify_left = task("rectify left", 2.5_ms, 64_MiB), rectify_right = task("rectify right", 2.5_ms, 64_MiB);
  const auto features = task("features", 5.0_ms, 90_MiB), stereo = task("stereo match", 14.0_ms, 200_MiB);
  const auto depth = task("filter depth", 3.5_ms, 32_MiB), segment = task("segment", 11.0_ms, 340_MiB);
  const auto flow = task("optical flow", 7.0_ms, 120_MiB), fuse = task("fuse", 4.5_ms, 80_MiB);
  const auto render = task("render", 3.0_ms, 150_MiB), encode = task("encode", 6.0_ms, 60_MiB);

  graph.add_edge(decode_left, denoise_left, {kImage});
  graph.add_edge(decode_right, denoise_right, {kImage});
  graph.add_edge(denoise_left, rectify_left, {kImage});
  graph.add_edge(denoise_right, rectify_right, {kImage});
  for (const auto reader : {stereo, features, segment, flow, render}) graph.add_edge(rectify_left, reader, {kImage});
  graph.add_edge(rectify_right, stereo, {kImage});
  graph.add_edge(stereo, depth, {kDepth});
  graph.add_edge(depth, fuse, {kDepth});
  graph.add_edge(segment, fuse, {kHalfImage});
  graph.add_edge(features, flow, {kList});
  graph.add_edge(flow, fuse, {kHalfImage});
  graph.add_edge(fuse, render, {kList});
  graph.add_edge(render, encode, {kImage});
  return graph;
}

/// What the planner asks about the tasks and the boards. Any type with these members will do.
class BoardCost {
 public:
  explicit BoardCost(const ap::Cluster& boards) : boards_(&boards) {}

  [[nodiscard]] ap::NodeCost node(const TaskGraph& graph, ap::NodeId task, double frames) const {
    return {.forward = 50.0_us + frames * graph[task].per_frame};
  }
  [[nodiscard]] ap::Bytes resident(const TaskGraph& graph, ap::NodeId task) const { return graph[task].tables; }
  // All readers of a task read the same result, so it goes to each board once.
  [[nodiscard]] ap::ValueProfile value(const TaskGraph& graph, ap::EdgeId edge) const {
    const auto bytes = static_cast<double>(graph[edge].per_frame.value());
    return {.value = graph.source(edge).value(), .bytes = {.per_sample = bytes}, .differentiable = false};
  }
  [[nodiscard]] ap::Seconds transfer(ap::Bytes bytes, ap::Rank from, ap::Rank to) const {
    return from == to ? ap::Seconds{} : boards_->between(from, to).transfer(bytes);
  }
  // Nothing is trained: there are no gradients to sum and no parameters to update.
  [[nodiscard]] ap::Seconds all_reduce(ap::Bytes, std::span<const ap::Rank>) const { return {}; }
  [[nodiscard]] ap::Seconds update(ap::Bytes, double) const { return {}; }

 private:
  const ap::Cluster* boards_;
};
static_assert(ap::CostModel<BoardCost, TaskGraph>);

ap::Cluster make_boards(int count, ap::Bytes memory) {
  ap::Cluster boards;
  boards.name = "camera";
  boards.devices = count;
  boards.device.name = "board";
  boards.device.memory = memory;
  boards.levels = {{"10 GbE", count, {.latency = 30.0_us, .bandwidth = ap::BytesPerSecond(1.2e9)}}};
  return boards;
}

double milliseconds(ap::Seconds time) { return time.value() * 1e3; }

std::string boards_of(const ap::StagePlan& stage) {
  std::string text;
  for (const ap::Rank rank : stage.mesh.ranks()) text += (text.empty() ? "" : ",") + std::to_string(rank.value());
  return text;
}

void print_plan(const TaskGraph& graph, const ap::Plan& plan) {
  const double batches_a_frame = plan.microbatches / static_cast<double>(plan.batch);
  std::cout << std::fixed << std::setprecision(1) << "stage  boards   ms/frame  MiB used  tasks\n";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const ap::StagePlan& stage = plan.stages[i];
    std::string tasks;
    for (const ap::NodeId task : stage.atoms) tasks += (tasks.empty() ? "" : ", ") + graph[task].name;
    std::cout << std::setw(5) << i << "  " << std::left << std::setw(7) << boards_of(stage) << std::right
              << std::setw(10) << milliseconds(stage.forward) * batches_a_frame << std::setw(10)
              << stage.peak_memory / 1_MiB << "  " << tasks << "\n";
  }
}

void print_summary(const TaskGraph& graph, const ap::Plan& plan) {
  ap::Seconds one_board{};
  for (const ap::NodeId task : graph.nodes()) one_board += graph[task].per_frame;
  const auto path = ap::critical_path(graph, [&](ap::NodeId task) { return graph[task].per_frame; });
  const double frames = static_cast<double>(plan.batch);
  std::cout << "\n"
            << plan.batch << " frames in " << plan.microbatches << " batches: " << frames / plan.step.value()
            << " frames/s, " << frames * one_board.value() / plan.step.value()
            << " x one board with memory for everything\n"
            << "one frame takes at least " << milliseconds(path.cost) << " ms:";
  for (const ap::NodeId task : path.nodes) std::cout << (task == path.nodes.front() ? " " : " -> ") << graph[task].name;
  std::cout << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int count = argc > 1 ? std::atoi(argv[1]) : 4;
    const int frames = argc > 2 ? std::atoi(argv[2]) : 64;
    const ap::Bytes memory = (argc > 3 ? std::atoi(argv[3]) : 800) * 1_MiB;

    const TaskGraph graph = stereo_camera();
    const ap::Cluster boards = make_boards(count, memory);
    const BoardCost cost(boards);
    const ap::Plan plan = ap::Planner<>{}.plan(graph, cost, boards, {.batch = frames});
    print_plan(graph, plan);
    print_summary(graph, plan);
  } catch (const ap::Error& error) {
    std::cerr << "partition_a_graph: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}

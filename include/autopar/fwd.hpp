#pragma once

namespace autopar {

class World;
class Session;
struct Options;
struct Plan;
struct Cluster;
struct ModelProfile;
struct SessionStats;
template <class... Policies>
class Planner;  // plan/planner.hpp, for planners other than the default

}  // namespace autopar

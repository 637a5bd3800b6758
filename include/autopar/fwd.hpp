#pragma once

namespace autopar {

class World;
class Session;
struct Options;
struct Plan;
struct Cluster;
struct ModelProfile;
struct SessionStats;

}  // namespace autopar

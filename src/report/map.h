// All-reduces on the map of docs/where_it_matters.md, as latency and bandwidth. Written by studies/worth/worth.py.
#pragma once

namespace firkin {

struct MappedNetwork {
  const char* cluster;
  int ranks;
  double alpha_s, beta_s_per_byte;
};

inline constexpr MappedNetwork kMappedNetworks[] = {
    {"H200, NVLink", 8, 4.142e-05, 3.942e-12},
    {"A100, NVLink (SuperBench)", 8, 3.806e-05, 8.302e-12},
    {"PCIe (CS336), A100 assumed", 2, 6.703e-05, 4.93e-11},
    {"PCIe (CS336), A100 assumed", 4, 9.543e-05, 7.404e-11},
    {"Azure, A100, InfiniBand", 2, 9.816e-06, 5.99e-12},
    {"Azure, A100, InfiniBand", 4, 1.774e-05, 7.855e-12},
    {"Azure, A100, InfiniBand", 8, 3.327e-05, 8.719e-12},
    {"Azure, A100, InfiniBand", 16, 4.671e-05, 1.587e-11},
    {"Azure, A100, InfiniBand", 32, 7.748e-05, 1.684e-11},
    {"Azure, A100, InfiniBand", 64, 0.0001075, 1.728e-11},
    {"Azure, A100, InfiniBand", 128, 0.0001245, 1.798e-11},
    {"AWS, A100, EFA", 16, 0.0001847, 2.9e-11},
    {"Zaratan, A100 (CMSC 828G)", 8, 0.003334, 7.221e-11},
    {"Alps, GH200, Slingshot", 4, 9.207e-06, 4.883e-12},
    {"Alps, GH200, Slingshot", 8, 2.389e-05, 1.382e-11},
    {"Alps, GH200, Slingshot", 16, 3.906e-05, 2.256e-11},
    {"Alps, GH200, Slingshot", 32, 5.429e-05, 2.408e-11},
    {"Alps, GH200, Slingshot", 64, 7.073e-05, 2.523e-11},
    {"Alps, GH200, Slingshot", 128, 8.822e-05, 6.487e-11},
    {"Alps, GH200, Slingshot", 256, 0.0001131, 4.547e-11},
    {"Alps, GH200, Slingshot", 512, 0.0001519, 3.708e-11},
    {"Alps, GH200, Slingshot", 1024, 0.0001678, 4.896e-11},
    {"Alps, GH200, Slingshot", 2048, 0.000173, 4.486e-11},
    {"TCP, 25 Gbit/s", 2, 0.0001, 3.404e-10},
    {"TCP, 25 Gbit/s", 8, 0.0007, 5.957e-10},
    {"TCP, 25 Gbit/s", 32, 0.0031, 6.596e-10},
    {"TCP, 10 Gbit/s", 2, 0.0001, 8.511e-10},
    {"TCP, 10 Gbit/s", 8, 0.0007, 1.489e-09},
    {"TCP, 10 Gbit/s", 32, 0.0031, 1.649e-09},
    {"TCP, 1 Gbit/s", 2, 0.0001, 8.511e-09},
    {"TCP, 1 Gbit/s", 8, 0.0007, 1.489e-08},
    {"TCP, 1 Gbit/s", 32, 0.0031, 1.649e-08},
};

}  // namespace firkin

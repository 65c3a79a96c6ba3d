// The model in closed form: equal buckets, gradients at an even rate, a(x) = overhead + x / bandwidth.
//
// The simulation meets these formulas where their assumptions hold; they say why it answers what it answers.
#pragma once

#include <cstdint>
#include <vector>

namespace firkin {

// A backward pass that makes gradient bytes at an even rate, over a link with a linear a(x). All are more than 0.
struct EvenWorkload {
  double total_bytes = 0;        // s, or B
  double backward_s = 0;         // T_b: the rate is r = B / T_b bytes per second
  double overhead_s = 0;         // o: of each call, on the link
  double bandwidth_bytes_s = 0;  // w
};

// CS336's question: computing a bucket takes as long as sending it (B / T_b = w), so only the last bucket and the overheads are left over.
// overhead(n) = s / (n w) + n o. It is least for n = sqrt(s / (o w)) buckets of sqrt(s o w) bytes, where it is 2 sqrt(s o / w).
struct EqualBuckets {
  double count = 0;
  double bucket_bytes = 0;
  double exposed_s = 0;
};
double balanced_exposed_s(const EvenWorkload& workload, double bucket_count);  // ignores backward_s
EqualBuckets best_balanced_buckets(const EvenWorkload& workload);              // ignores backward_s

// Any ratio of the two rates (the continuous version of CMSC 828G's T(b)): the link is either waiting for gradients or never idle, so
//
//   T(b) = max(T_b + o + b / w,  b / r + (B / b) o + B / w)
//
// The first term rises with b; the second falls until sqrt(B o r). They meet at b = o / (1 / r - 1 / w) when w > r, and nowhere else.
double even_backward_s(const EvenWorkload& workload, double bucket_bytes);

// The b that minimises it: sqrt(B o r), or the meeting point if that is smaller; at most B.
EqualBuckets best_even_buckets(const EvenWorkload& workload);

// Unequal buckets, where communication takes at least as long as computation (q = r / w >= 1): the link never idles when each bucket is
// ready just as the one before it ends, S_{k+1} = r (o + S_k / w). So the best buckets grow, each q times the last plus r o, and T = S_1 /
// r + n o + B / w, for the number n that makes it least. Bytes, in launch order. Throws InputError when q < 1.
struct GrowingBuckets {
  std::vector<double> bucket_bytes;
  double backward_s = 0;  // with communication
};
GrowingBuckets best_growing_buckets(const EvenWorkload& workload);

}  // namespace firkin

// A network link that is not there: collectives move their data through Gloo, and complete no earlier than they would over this link.
//
//   ProcessGroup group = connect(info, {.link = parse_link("1gbit", info.world_size)});
//
// One link, first in, first out. Collective k, of x bytes, which the last rank has joined at j_k, ends at
//   end_k = max(j_k + a(x), end_{k-1} + g(x))
// (latency and gap, as in LogGP; Alexandrov et al. 1995) and never before its data are there. What the hosts do is real, and takes its real
// time: launching, threads, copies, sums. What is modelled is the wire.
//
// What pays: every all-reduce and every broadcast; and every round of an agreement (start_or()), which begins when the message of the
// round has arrived and passes beside the queue of the large ones. Barriers pass free: Firkin places them before what it times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "firkin/plan/cost_curve.h"

namespace firkin {

struct ModelledLink {
  int64_t world = 0;                    // ranks that a collective is timed for; at least as many as there really are
  double bits_per_s = 0;                // of every rank, in each direction, headers included
  double latency_s = 0;                 // from one rank to the next
  std::optional<CommCosts> table = {};  // measured at `world` ranks: instead of rate and latency
  std::string file = {};                // of the table
};

// When `latency` is not given: a switched Ethernet's, one way.
inline constexpr double kDefaultLinkLatency = 50e-6;

// text: "RATE[,LATENCY]", such as "1gbit" or "200mbit,1ms" (units bit, kbit, mbit, gbit, tbit and us, ms, s), or the name of an
// allreduce.csv (it ends with ".csv"). Throws InputError, which names --link, for anything else, and for a table without `world` ranks.
ModelledLink parse_link(const std::string& text, int64_t world);

// "1 Gbit/s, 50 us, 2 ranks" or "allreduce.csv, 2048 ranks".
std::string describe(const ModelledLink& link);

// Seconds.
struct LinkTime {
  double alone_s = 0;  // a(x): over an idle link
  double gap_s = 0;    // g(x): from the end of the collective before, when it waited for that
};

// By rate and latency, a ring over n ranks: 2(n-1) steps, each of x / n bytes and one latency. Gloo has two collectives under way at a
// time, so the latencies of one pass beside the bytes of the other: the gap is that of the bytes, or half of a collective.
//
// 1448 of 1514 bytes on the wire are payload: TCP over Ethernet in full frames of 1500 bytes, with headers of 14 (Ethernet), 20 (IP) and
// 32 (TCP with timestamps), which is what tc and a cloud's limits count. A cable itself takes another 24 (preamble, checksum, gap).
LinkTime all_reduce_time(const ModelledLink& link, int64_t bytes);

// By rate and latency, Gloo's binomial tree: ceil(log2 n) steps, each of all bytes. With a table: as an all-reduce, which is an upper
// bound.
LinkTime broadcast_time(const ModelledLink& link, int64_t bytes);

// Seconds of an agreement of all ranks (start_or()): ceil(log2 n) hops, each of all bytes and one latency. With a table, an all-reduce's.
double agreement_time(const ModelledLink& link, int64_t bytes);

}  // namespace firkin

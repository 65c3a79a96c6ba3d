// A modelled network link: collectives move their data through Gloo, and complete no earlier than they would over this
// link.
//
//   ProcessGroup group = connect(info, {.link = parse_link("1gbit", info.world_size)});
//
// The link is first in, first out. Collective k of x bytes, joined by its last rank at j_k, ends at
//
//   end_k = max(j_k + a(x), end_{k-1} + g(x))
//
// (latency and gap, as in LogGP; Alexandrov et al. 1995), and never before its data have arrived. Only the wire is
// modelled: work on the hosts, such as launches, copies and sums, takes its real time.
//
// Every all-reduce, broadcast, all-to-all and all-gather takes link time, and so does every round of an agreement
// (start_or()), which begins when the message of the round before has arrived and bypasses the queue of large messages.
// Barriers are free, because Firkin places them outside of what it times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "firkin/plan/cost_curve.h"

namespace firkin {

struct ModelledLink {
  int64_t world = 0;                    // ranks a collective is timed for; at least the real number
  double bits_per_s = 0;                // per rank and direction, headers included
  double latency_s = 0;                 // per hop between ranks
  std::optional<CommCosts> table = {};  // measured at `world` ranks; replaces rate and latency
  std::string file = {};                // the table's file
  int sms = 0;                          // multiprocessors that a collective holds on a GPU; 0: one thread of one
};

// Default latency: one way through switched Ethernet.
inline constexpr double kDefaultLinkLatency = 50e-6;

// text: "RATE[,LATENCY]", such as "1gbit" or "200mbit,1ms" (units bit, kbit, mbit, gbit, tbit and us, ms, s), or the
// name of an allreduce.csv (ending in ".csv"). ",sms=16" behind either sets `sms`. Throws InputError naming --link for
// anything else, and for a table without `world` ranks.
ModelledLink parse_link(const std::string& text, int64_t world);

// "1 Gbit/s, 50 us, 2 ranks" or "allreduce.csv, 2048 ranks, 16 SMs".
std::string describe(const ModelledLink& link);

// Times in seconds.
struct LinkTime {
  double alone_s = 0;  // a(x): over an idle link
  double gap_s = 0;    // g(x): from the end of the previous collective, if queued behind it
};

// With rate and latency: a ring over n ranks, 2(n-1) steps of x / n bytes and one latency each. PyTorch 2.13's Gloo
// runs two collectives at a time, so that the latencies of one overlap the bytes of the other: the gap is the time of
// the bytes, but at least half a collective's.
//
// 1448 of 1514 bytes on the wire are payload: TCP over Ethernet in full frames of 1500 bytes, with headers of 14
// (Ethernet), 20 (IP) and 32 (TCP with timestamps). tc and the limits of clouds count these bytes; a cable carries
// another 24 (preamble, checksum, gap).
LinkTime all_reduce_time(const ModelledLink& link, int64_t bytes);

// With rate and latency: Gloo's binomial tree, ceil(log2 n) steps of all bytes each. With a table: the time of an
// all-reduce, an upper bound.
LinkTime broadcast_time(const ModelledLink& link, int64_t bytes);

// The time of an all-to-all or an all-gather with `bytes` in all on every rank: half the time of an all-reduce, which
// consists of the two. The planner assumes the same.
LinkTime share_time(const ModelledLink& link, int64_t bytes);

// Seconds for an agreement of all ranks (start_or()): ceil(log2 n) hops of all bytes and one latency each; with a
// table, the time of an all-reduce.
double agreement_time(const ModelledLink& link, int64_t bytes);

}  // namespace firkin

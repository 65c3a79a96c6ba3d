// Collectives over a modelled link.
#pragma once

#include <memory>

#include "backends.h"
#include "device_time.h"
#include "firkin/comm/modelled_link.h"

namespace firkin {

// A backend whose all-reduces, broadcasts, all-to-alls and all-gathers take the time of a modelled link, while `inner`
// moves the data. Barriers, send and recv of `inner` take no link time; other collectives are refused. Errors of
// `inner` come through at once. The destructor waits for what is in flight, unless it runs in its completion.
//
// Nothing says when the last rank has joined a collective. So each is accompanied by a one-element all-reduce of
// `inner`, which is over when all ranks have come. The link's time counts from there: counted from this rank's own
// start it would be too short when another rank is late, and counted from the end of the data's own move it would be
// too long by that.
c10::intrusive_ptr<c10d::Backend> make_linked_backend(c10::intrusive_ptr<c10d::Backend> inner, const ModelledLink& link);

// The same for tensors on a device, for one rank, which stands for one of link.world: nothing is sent, sums are what
// the rank has, and each collective is a wait on a stream of this backend, which begins behind the current one. wait()
// on a work makes the current stream wait. The last rank to join is the only one. A wait takes one thread of a
// multiprocessor, and no memory traffic. Thread-safe.
c10::intrusive_ptr<c10d::Backend> make_linked_device(const ModelledLink& link, c10::Device device, std::unique_ptr<DeviceTimer> timer);

}  // namespace firkin

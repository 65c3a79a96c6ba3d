// Gloo, the backend for CPU tensors. Its headers stay inside gloo_backend.cpp: the wheel does not ship them.
#pragma once

#include <string>

#include "firkin/comm/process_group.h"

namespace firkin {

// address: of the meeting point; a loopback address keeps the ranks' connections on loopback as well. Otherwise Gloo uses the interface
// that GLOO_SOCKET_IFNAME names, or the one of this machine's host name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout);

}  // namespace firkin

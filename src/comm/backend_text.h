// Error texts of LibTorch and Gloo, as one line of ours quotes them.
#pragma once

#include <string>
#include <string_view>

namespace firkin {

// The first line, without the place in the other project's sources before it, the advice after it, and a full stop at its end:
// "[.../pair.cc:547] Connection closed by peer [127.0.0.1]:1234" -> "Connection closed by peer [127.0.0.1]:1234".
std::string shorten_backend_text(std::string_view text);

}  // namespace firkin

#include "torch_log.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace firkin {

void set_torch_log_level() {
  constexpr int kErrors = 2;  // glog's number; the names of levels differ between builds of LibTorch
  const char* level = std::getenv("TORCH_CPP_LOG_LEVEL");
  if (level != nullptr && *level != '\0') {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = kErrors;
  }
}

}  // namespace firkin

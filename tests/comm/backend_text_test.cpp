#include "../../src/comm/group_state.h"

#include <gtest/gtest.h>

namespace firkin {
namespace {

TEST(BackendText, LosesThePlaceInTheOtherProjectsSources) {
  EXPECT_EQ(shorten_backend_text("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"),
            "Connection closed by peer [127.0.0.1]:1234");
  EXPECT_EQ(shorten_backend_text("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [::1]:33844: Connection reset by peer"),
            "Read error [::1]:33844: Connection reset by peer");
}

TEST(BackendText, LosesTheAdviceAndTheFullStop) {
  EXPECT_EQ(
      shorten_backend_text("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv "
                           "operation to complete. This may indicate a possible application crash on rank 0 or a network set up issue."),
      "Timed out waiting 2000ms for recv operation to complete");
  EXPECT_EQ(
      shorten_backend_text("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:24757: Connection reset by "
                           "peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of the "
                           "remote worker before reporting an error. GLHF! \xf0\x9f\x8f\x96"),
      "Read error [127.0.0.1]:24757: Connection reset by peer");
}

TEST(BackendText, IsTheFirstLine) {
  EXPECT_EQ(shorten_backend_text("Operation timed out!\nException raised from wait at Work.cpp:102"), "Operation timed out!");
}

TEST(BackendText, KeepsWhatIsNoPlaceInASource) {
  EXPECT_EQ(shorten_backend_text("[127.0.0.1]:1234 is gone"), "[127.0.0.1]:1234 is gone");
  EXPECT_EQ(shorten_backend_text("[a/b.cc:x] odd"), "[a/b.cc:x] odd");
  EXPECT_EQ(shorten_backend_text("[unfinished"), "[unfinished");
  EXPECT_EQ(shorten_backend_text(""), "");
}

}  // namespace
}  // namespace firkin

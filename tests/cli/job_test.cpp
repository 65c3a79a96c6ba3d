// The job that ranks of the program train: a language model on windows of a text.
#include "../../src/cli/job.h"

#include "../base/temporary_folder.h"
#include "../torch.h"

namespace firkin {

// Which main() has in the program.
const std::vector<std::string>& cli::command_line() {
  static const std::vector<std::string> none;
  return none;
}

namespace {

// Of one rank's windows, in a step.
double loss_of(const std::string& text, int rank, int64_t batch_size, int64_t step) {
  cli::JobFlags flags;
  flags.model.sizes = {{"d_model", 32}, {"d_ff", 64}, {"num_layers", 1}};
  flags.batch_size = batch_size;
  flags.sequence_length = 6;
  flags.data = text;
  ProcessGroup group;
  group.rank = rank;
  return cli::make_job(flags, group, /*seed=*/9).loss(step).item<double>();
}

TEST(Job, TheRanksTogetherHaveTheBatchOfOneProcessAndAnotherOneInEveryStep) {
  const TemporaryFolder folder;
  folder.write("text.txt", "the quick brown fox jumps over the lazy dog");
  const std::string text = folder.path / "text.txt";
  std::vector<double> alone;
  for (const int64_t step : {0, 1, 2}) {
    alone.push_back(loss_of(text, 0, 6, step));
    std::vector<double> parts;
    for (const int rank : {0, 1, 2}) parts.push_back(loss_of(text, rank, 2, step));
    EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0) / 3, alone.back(), 1e-5);
    EXPECT_NE(parts[0], parts[1]);
    EXPECT_NE(parts[1], parts[2]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
}

}  // namespace
}  // namespace firkin

// The job that ranks of the program train: a language model on windows of a text.
#include "cli/job.h"

#include "../base/temporary_folder.h"
#include "../torch.h"
#include "workload/transformer.h"

namespace firkin {

// Which main() has in the program.
const std::vector<std::string>& cli::command_line() {
  static const std::vector<std::string> none;
  return none;
}

namespace {

constexpr int64_t kSequence = 6;
constexpr uint64_t kSeed = 9;

Workload make_job(const std::string& text, int rank, int64_t batch_size, uint64_t seed) {
  cli::JobFlags flags;
  flags.model.sizes = {{"d_model", 32}, {"d_ff", 64}, {"num_layers", 1}};
  flags.batch_size = batch_size;
  flags.sequence_length = kSequence;
  flags.data = text;
  ProcessGroup group;
  group.rank = rank;
  return cli::make_job(flags, group, seed);
}

TEST(Job, TheRanksTogetherHaveTheBatchOfOneProcessAndAnotherOneInEveryStep) {
  const TemporaryFolder folder;
  folder.write("text.txt", "the quick brown fox jumps over the lazy dog");
  const std::string text = folder.path / "text.txt";
  std::vector<double> alone;
  for (const int64_t step : {0, 1, 2}) {
    alone.push_back(make_job(text, 0, 6, kSeed).loss(step).item<double>());
    std::vector<double> parts;
    for (const int rank : {0, 1, 2}) parts.push_back(make_job(text, rank, 2, kSeed).loss(step).item<double>());
    EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0) / 3, alone.back(), 1e-5);
    EXPECT_NE(parts[0], parts[1]);
    EXPECT_NE(parts[1], parts[2]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
}

TEST(Job, PredictsTheNextBytesOfWindowsAtEveryPlaceWhichTheSeedDraws) {
  const std::vector<int64_t> bytes = {'a', 128, 'b', 'c', 255, 200, 'd', '\n'};  // two windows
  const TemporaryFolder folder;
  folder.write("text.txt", std::string(bytes.begin(), bytes.end()));
  std::set<std::string> drawn;  // the places of a seed, by step
  for (const uint64_t seed : {kSeed, kSeed + 1, kSeed + (uint64_t{1} << 32)}) {
    const Workload job = make_job(folder.path / "text.txt", 0, 1, seed);
    const auto loss_at = [&](int64_t place) {
      const at::Tensor window = at::tensor(bytes).narrow(0, place, kSequence + 1), input = window.narrow(0, 0, kSequence);
      const at::Tensor logits = std::dynamic_pointer_cast<TransformerLMImpl>(job.module)->forward(input.unsqueeze(0))[0];
      return torch::nn::functional::cross_entropy(logits, window.narrow(0, 1, kSequence)).item<double>();
    };
    const double first = loss_at(0), last = loss_at(1);
    std::string places;
    for (int64_t step = 0; step < 32; ++step) {
      const double loss = job.loss(step).item<double>();
      places += std::abs(loss - first) < std::abs(loss - last) ? "first " : "last ";
      EXPECT_NEAR(loss, places.ends_with("first ") ? first : last, 1e-5);
    }
    EXPECT_THAT(places, AllOf(HasSubstr("first last"), HasSubstr("last first")));
    drawn.insert(places);
  }
  EXPECT_THAT(drawn, SizeIs(3));
}

}  // namespace
}  // namespace firkin

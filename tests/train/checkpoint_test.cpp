// Checkpoints: what comes back, what is refused, which stay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "../base/added_memory.h"
#include "../comm/thread_ranks.h"
#include "firkin/base/file.h"
#include "tiny_training.h"
#include "train/checkpoint.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Checkpoints : public testing::Test {
 protected:
  std::filesystem::path file(int64_t step = 7) const { return checkpoint_path(folder_.path, step); }

  Checkpoint write(int64_t step = 7, std::optional<double> held_loss = {}) const {
    Checkpoint checkpoint{.head = {.step = step, .held_loss = held_loss, .about = {{"dtype", "fp32"}}}};
    checkpoint.tensors = {{"parameter/a.b", at::arange(100, at::kFloat)}, {"steps", at::tensor({3, 4}, at::kLong)}};
    write_checkpoint(file(step), checkpoint);
    return checkpoint;
  }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const StoredCheckpoint& one : list_checkpoints(folder_.path)) found.push_back(one.step);
    return found;
  }

  static std::string why_refused(const std::filesystem::path& path) {
    try {
      read_checkpoint(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "not refused";
  }

  TemporaryFolder folder_;
};

TEST_F(Checkpoints, ComeBackAsTheyWere) {
  const Checkpoint written = write(7, 1.25);
  const Checkpoint read = read_checkpoint(file());
  EXPECT_EQ(read.head.step, 7);
  EXPECT_EQ(read.head.held_loss, 1.25);
  EXPECT_EQ(read.head.about, written.head.about);
  ASSERT_EQ(read.tensors.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read.tensors[i].first, written.tensors[i].first);
    EXPECT_TRUE(at::equal(read.tensors[i].second, written.tensors[i].second));
  }
  EXPECT_EQ(read_checkpoint_head(file()).step, 7);
}

TEST_F(Checkpoints, AreReadInLittleMoreMemoryThanTheyTake) {
  constexpr int64_t kBytes = 128 * kMiB;
  Checkpoint written;
  written.head.step = 7;
  written.tensors = {{"large", at::ones({kBytes / 4})}};
  write_checkpoint(file(), written);
  written = {};
  Checkpoint read;
  const auto added = added_memory_bytes([&] { read = read_checkpoint(file()); });
  if (!added) GTEST_SKIP() << "the peak cannot be counted anew";
  EXPECT_GE(*added, kBytes);
  EXPECT_LT(*added, kBytes + kBytes / 4);
}

TEST_F(Checkpoints, CutAnywhereAreRefused) {
  write();
  const std::string whole = read_file(file());
  for (size_t size = 0; size < whole.size(); size += 1 + size / 50) {
    write_file_atomically(file(), whole.substr(0, size));
    EXPECT_THAT(why_refused(file()), AllOf(HasSubstr(file().string()), HasSubstr("not a checkpoint"))) << size;
  }
}

TEST_F(Checkpoints, WithAnyByteChangedAreRefused) {
  write();
  const std::string whole = read_file(file());
  for (size_t place = 0; place < whole.size(); place += 7) {
    std::string changed = whole;
    changed[place] = static_cast<char>(changed[place] ^ 0x10);
    write_file_atomically(file(), changed);
    EXPECT_THAT(why_refused(file()), HasSubstr(file().string() + ": ")) << place;
  }
}

TEST_F(Checkpoints, OfAnotherKindOrFormatAreRefusedByName) {
  EXPECT_THAT(why_refused(folder_.path / "none.ckpt"), HasSubstr("none.ckpt: cannot be read: No such file"));
  write_file_atomically(file(), "some text");
  EXPECT_THAT(why_refused(file()), HasSubstr("not a checkpoint of firkin train"));
  std::ostringstream foreign;
  torch::save(at::ones({3}), foreign);
  write_file_atomically(file(), foreign.str());
  EXPECT_THAT(why_refused(file()), HasSubstr("not a checkpoint of firkin train"));
  write();
  std::string newer = read_file(file());
  newer.replace(newer.find("\"firkin_checkpoint\":1"), 21, "\"firkin_checkpoint\":2");
  write_file_atomically(file(), newer);
  EXPECT_THAT(why_refused(file()), HasSubstr("format 2; this version of Firkin reads format 1"));
}

TEST_F(Checkpoints, TheNewestThatIsWholeIsFoundAndTheOthersAreNamed) {
  write(5);
  write(10);
  write(15);
  write_file_atomically(file(15), read_file(file(15)).substr(0, 300));
  std::vector<std::string> problems;
  const auto newest = read_newest_checkpoint(folder_.path, problems);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->checkpoint.head.step, 10);
  EXPECT_THAT(problems, testing::ElementsAre(HasSubstr("step-00000015.ckpt: truncated")));
  EXPECT_FALSE(read_newest_checkpoint(folder_.path / "none", problems).has_value());
}

TEST_F(Checkpoints, TheNewestAndTheBestStay) {
  for (const auto& [step, loss] : {std::pair{1, 3.0}, {2, 1.5}, {3, 1.5}, {4, 2.0}, {5, 2.5}}) write(step, loss);
  remove_old_checkpoints(folder_.path, 2);
  EXPECT_THAT(steps(), testing::ElementsAre(2, 4, 5));
  remove_old_checkpoints(folder_.path, 2);
  EXPECT_THAT(steps(), testing::ElementsAre(2, 4, 5));
}

TEST_F(Checkpoints, WhatAKilledWriterLeftIsRemovedAndNothingElse) {
  write(5);
  folder_.write("step-00000010.ckpt.Xy12Ab", "half");
  folder_.write("notes.txt", "mine");
  folder_.write("step-a.ckpt.old", "mine");
  remove_unfinished_checkpoints(folder_.path);
  EXPECT_FALSE(std::filesystem::exists(folder_.path / "step-00000010.ckpt.Xy12Ab"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path / "notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path / "step-a.ckpt.old"));
  EXPECT_THAT(steps(), testing::ElementsAre(5));
}

TEST_F(Checkpoints, AWriterThatCannotWriteSaysSoAndWhichOneIsTheLast) {
  write(5);
  std::filesystem::create_directories(file(10) / "in the way");
  CheckpointWriter writer(folder_.path, 3);
  Checkpoint checkpoint;
  checkpoint.head.step = 10;
  writer.write(checkpoint);
  writer.wait();
  const auto problem = writer.problem();
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(*problem, AllOf(HasSubstr("the checkpoint of step 10 was not written"), HasSubstr("the last one is")));
  EXPECT_FALSE(writer.problem().has_value());
  EXPECT_TRUE(writer.last_failed());
  checkpoint.head.step = 15;
  writer.write(checkpoint);
  writer.wait();
  EXPECT_FALSE(writer.last_failed());
}

// Trains `steps` steps; from a checkpoint where there is one; leaves a checkpoint.
std::vector<double> train_on(const TinyTraining& training, int world_size, const std::string& strategy, int64_t until,
                             const std::filesystem::path& from, const std::filesystem::path& to, at::ScalarType type = at::kFloat) {
  static std::mutex one_at_a_time;
  std::vector<double> losses;
  run_ranks(world_size, [&](const ProcessGroup& group) {
    at::set_num_threads(1);  // as in master_weights_test.cpp
    std::optional<Checkpoint> checkpoint;
    if (group.rank == 0 && !from.empty()) checkpoint = read_checkpoint(from);
    std::unique_lock lock(one_at_a_time);
    torch::manual_seed(static_cast<uint64_t>(group.rank) + 50);  // rank 0's parameters count
    TransformerLM net(kTinyModel, at::TensorOptions(type));
    lock.unlock();
    if (group.rank == 0 && from.empty()) {
      for (const at::Tensor& parameter : net->parameters()) parameter.detach().mul_(0.5);
    }
    if (checkpoint) load_parameters(*checkpoint, *net);
    DataParallelOptions options;
    options.strategy = find_strategy(strategy);
    options.cap.cap_bytes = 4096;
    const Continuation continuation = share_continuation(group, *net, checkpoint ? &*checkpoint : nullptr);
    if (continuation.step > 0) options.ready_order = continuation.ready_order;
    auto loss = [net](const TokenBatch& batch) mutable { return language_model_loss(net->forward(batch.tokens), batch.targets); };
    Trainer trainer(group, net.ptr(), loss, training.data(), training.settings, options);
    if (continuation.step > 0) continue_training(trainer, continuation, checkpoint ? &*checkpoint : nullptr);
    while (trainer.next_step() < until) {
      const double mean = trainer.step(false).loss;
      if (group.rank == 0) losses.push_back(mean);
    }
    trainer.gather_optimizer();
    if (group.rank != 0) return;
    Checkpoint last;
    last.head.step = until;
    last.tensors = copy_of_training(trainer);
    write_checkpoint(to, last);
  });
  return losses;
}

// A training of 12 steps, and one that was interrupted after 5 and went on.
struct Interrupted {
  std::vector<double> whole, rest;
  Checkpoint expected, found;
};

Interrupted interrupt_in(const std::filesystem::path& folder, const TinyTraining& training, int world_size, const std::string& strategy,
                         at::ScalarType type) {
  const auto file = [&folder](const char* name) { return folder / name; };
  Interrupted result;
  result.whole = train_on(training, world_size, strategy, 12, {}, file("whole"), type);
  train_on(training, world_size, strategy, 5, {}, file("begun"), type);
  result.rest = train_on(training, world_size, strategy, 12, file("begun"), file("rest"), type);
  result.expected = read_checkpoint(file("whole"));
  result.found = read_checkpoint(file("rest"));
  return result;
}

void expect_same_bits(const Interrupted& training) {
  EXPECT_EQ(training.rest, std::vector<double>(training.whole.begin() + 5, training.whole.end()));
  ASSERT_EQ(training.found.tensors.size(), training.expected.tensors.size());
  for (size_t i = 0; i < training.expected.tensors.size(); ++i) {
    const auto& [name, tensor] = training.expected.tensors[i];
    EXPECT_TRUE(at::equal(training.found.tensors[i].second, tensor)) << name;
  }
}

TEST_F(Checkpoints, ATrainingThatGoesOnHasTheLossesThatItWouldHaveHadToTheLastBit) {
  const TinyTraining training;
  for (const auto& [world_size, strategy] :
       {std::pair{1, "bucketed"}, {2, "bucketed"}, {4, "bucketed"}, {4, "overlap"}, {2, "ordered"}, {2, "sharded"}, {4, "sharded"}}) {
    SCOPED_TRACE(testing::Message() << strategy << " on " << world_size);
    expect_same_bits(interrupt_in(folder_.path, training, world_size, strategy, at::kFloat));
  }
}

TEST_F(Checkpoints, InBf16MasterWeightsGoOnToTheLastBit) {
  const TinyTraining training;
  for (const auto& [world_size, strategy] : {std::pair{1, "bucketed"}, {2, "bucketed"}, {2, "ordered"}, {2, "sharded"}, {4, "sharded"}}) {
    SCOPED_TRACE(testing::Message() << strategy << " on " << world_size);
    const Interrupted interrupted = interrupt_in(folder_.path, training, world_size, strategy, at::kBFloat16);
    expect_same_bits(interrupted);
    int masters = 0;
    for (const auto& [name, tensor] : interrupted.found.tensors) {
      if (!name.starts_with("master/")) continue;
      ++masters;
      EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
      EXPECT_FALSE(at::equal(tensor, tensor.to(at::kBFloat16).to(at::kFloat))) << name << " is more than its parameter";
    }
    EXPECT_EQ(masters, 21);
  }
}

TEST_F(Checkpoints, ATrainingGoesOnWithAnotherNumberOfRanks) {
  const TinyTraining training;
  const std::vector<double> whole = train_on(training, 4, "bucketed", 12, {}, file(12));
  train_on(training, 4, "bucketed", 5, {}, file(5));
  const std::vector<double> rest = train_on(training, 1, "bucketed", 12, file(5), file(13));
  for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i], whole[i + 5], 1e-5);
}

TEST_F(Checkpoints, OfAnotherModelAreRefused) {
  const TinyTraining training;
  train_on(training, 1, "bucketed", 1, {}, file(1));
  TransformerConfig wider = kTinyModel;
  wider.d_ff = 64;
  TransformerLM net(wider);
  const Checkpoint checkpoint = read_checkpoint(file(1));
  EXPECT_THAT([&] { load_parameters(checkpoint, *net); }, ThrowsMessage<InputError>(HasSubstr("elements; expected")));
}

}  // namespace
}  // namespace firkin

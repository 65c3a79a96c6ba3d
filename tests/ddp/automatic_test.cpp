// Buckets that are chosen while the training runs: gradients stay right and equal through every phase and every switch, whatever happens to
// the steps.
#include "firkin/ddp/options.h"

#include <set>

#include "../test.h"
#include "autograd_functions.h"
#include "training.h"

namespace firkin {
namespace {

// A call costs far more than the test models' bytes, so that one tensor a bucket, with which training begins, is bad.
constexpr const char* kLink = "1gbit,1ms";
constexpr int kMostSteps = 500;
const std::set kAllPhases = {AutomaticPhase::kWarmUp, AutomaticPhase::kProfiling, AutomaticPhase::kMeasuring, AutomaticPhase::kTrying,
                             AutomaticPhase::kSettled};

AutomaticBuckets quick(std::vector<std::string>* log = nullptr) {
  AutomaticBuckets buckets{.budget_s = 4, .profile_steps = 3, .trial_pairs = 6, .trial_steps = 2, .log = {}};
  buckets.log = [log](const std::string& line) {
    if (log != nullptr) log->push_back(line);
  };
  return buckets;
}

DataParallelOptions bad_start(AutomaticBuckets buckets, const std::string& strategy = "bucketed") {
  DataParallelOptions options = with_strategy(strategy, /*cap_bytes=*/1);
  options.buckets = std::move(buckets);
  return options;
}

// An identity whose backward takes some time.
struct SleepInBackward : torch::autograd::Function<SleepInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/, torch::autograd::tensor_list gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return gradients;
  }
};

enum class Disturbance { kNone, kThrowsInBackward, kThrowsInForward, kNoSync, kJoin, kSlowRank, kInPlace };

struct Course {
  Disturbance disturbance = Disturbance::kNone;
  int ranks = 2;
  const char* model = "mlp";
  bool finish_with_backward = true;
  const char* strategy = "bucketed";
};

std::ostream& operator<<(std::ostream& out, const Course& course) {
  return out << course.strategy << ", " << course.model << ", " << course.ranks << " ranks, disturbance "
             << static_cast<int>(course.disturbance) << (course.finish_with_backward ? "" : ", finished by hand");
}

// Samples of the global batch that a step has learned from.
struct Learned {
  int step = 0;
  int64_t samples = 0;  // from the first on
};

// What one rank has seen of a course.
struct Seen {
  Tensors parameters;             // at the end
  std::vector<BucketPlan> plans;  // for the next step
  std::vector<Learned> learned;
  std::set<AutomaticPhase> disturbed;  // phases
  int64_t awaited_bytes = 0;           // at the end
  std::vector<std::string> log;
};

class RankCourse {
 public:
  RankCourse(const Course& course, const ProcessGroup& group, Seen& seen)
      : course_(course),
        group_(group),
        seen_(seen),
        model_(make_test_model(course.model, at::kDouble)),
        training_(*model_.module, group, options(course, seen)) {}

  // Until the plan has settled, and some steps more.
  void run() {
    int after = 0;
    bool disturbs = false;
    for (int step = 0; after < 6; ++step) {
      if (step > kMostSteps) throw std::runtime_error("the buckets have not settled");
      if (phase() == AutomaticPhase::kSettled) ++after;
      const bool is_new_phase = !seen_.disturbed.contains(phase());
      disturbs = !disturbs && course_.disturbance != Disturbance::kNone && (step % 4 == 1 || is_new_phase);
      if (disturbs) seen_.disturbed.insert(phase());
      if (disturbs && course_.disturbance == Disturbance::kJoin) {
        join(step++);
      } else if (disturbs && course_.disturbance == Disturbance::kThrowsInForward) {
        fail_forward(step);
      } else {
        train(step, disturbs);
      }
    }
    seen_.awaited_bytes = ddp_.stats().awaited_bytes;
    seen_.parameters = copies(ddp_.module().parameters());
  }

 private:
  static DataParallelOptions options(const Course& course, Seen& seen) {
    DataParallelOptions result = bad_start(quick(&seen.log), course.strategy);
    result.finish_with_backward = course.finish_with_backward;
    return result;
  }

  AutomaticPhase phase() const { return *ddp_.stats().automatic; }

  at::Tensor loss(int step, int part, int parts) {
    const int64_t samples = kGlobalBatch / group_.size / parts;
    return model_.loss(step, group_.rank * kGlobalBatch / group_.size + part * samples, samples) / parts;
  }

  void train(int step, bool disturbs) {
    training_.zero_grad(course_.disturbance != Disturbance::kInPlace);
    try {
      backward(step, disturbs);
      ddp_.finish_gradient_synchronization();
    } catch (const std::exception& error) {
      if (!disturbs) throw;
      ddp_.abandon_step(error.what());
      for (const at::Tensor& parameter : model_.module->parameters()) EXPECT_FALSE(parameter.grad().defined());
      return;
    }
    learned(step, kGlobalBatch);
  }

  void backward(int step, bool disturbs) {
    if (disturbs && course_.disturbance == Disturbance::kThrowsInBackward && group_.rank == step / 4 % group_.size) {
      const at::Tensor broken = ThrowInBackward::apply(model_.module->parameters()[0].sum(), "on purpose");  // last in backward
      return (loss(step, 0, 1) + 0 * broken).backward();
    }
    if (disturbs && course_.disturbance == Disturbance::kNoSync) {
      const auto scope = ddp_.no_sync();
      loss(step, 0, 2).backward();
    } else {
      const bool sleeps = course_.disturbance == Disturbance::kSlowRank && group_.rank == 1;
      const at::Tensor whole = loss(step, 0, 1);
      return (sleeps ? SleepInBackward::apply(whole) : whole).backward();
    }
    loss(step, 1, 2).backward();
  }

  void fail_forward(int step) {
    training_.zero_grad();
    if (group_.rank == 1) return ddp_.abandon_step("no more memory");
    EXPECT_THROW(
        {
          loss(step, 0, 1).backward();
          ddp_.finish_gradient_synchronization();
        },
        StepError);
  }

  // Two steps; in the second only rank 0 has samples.
  void join(int step) {
    train(step, false);
    if (group_.rank == 0) {
      training_.zero_grad();
      model_.loss(step + 1, 0, kGlobalBatch / group_.size).backward();
      ddp_.finish_gradient_synchronization();
      learned(step + 1, kGlobalBatch / group_.size);
    }
    ddp_.join([&] { learned(step + 1, kGlobalBatch / group_.size); });
  }

  void learned(int step, int64_t samples) {
    training_.step();
    seen_.plans.push_back(ddp_.plan());
    seen_.learned.push_back({step, samples});
  }

  const Course& course_;
  const ProcessGroup& group_;
  Seen& seen_;
  TestModel model_;
  Training training_;
  DataParallel& ddp_ = training_.ddp;
};

std::vector<Seen> seen_in(const Course& course) {
  const auto run = [&](const ProcessGroup& group) {
    Seen seen;
    RankCourse(course, group, seen).run();
    return seen;
  };
  return results_of(course.ranks, run, kLink);
}

// The parameters of one process that learns from the same samples.
Tensors learned_alone(const Course& course, const std::vector<Learned>& learned) {
  const TestModel model = make_test_model(course.model, at::kDouble);
  torch::optim::SGD optimizer(model.module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const auto& [step, samples] : learned) {
    optimizer.zero_grad();
    model.loss(step, 0, samples).backward();
    optimizer.step();
  }
  return copies(model.module->parameters());
}

class AutomaticCourse : public testing::TestWithParam<Course> {};

TEST_P(AutomaticCourse, KeepsRanksEqualAndLearnsWhatOneProcessLearnsThroughAllPhases) {
  const Course& course = GetParam();
  std::vector<Seen> seen;
  for (int tries = 0; tries < 3; ++tries) {  // where a machine is too busy to show that the start was bad, another time
    seen = seen_in(course);
    for (const Seen& rank : seen) {
      EXPECT_EQ(rank.plans, seen[0].plans);
      EXPECT_TRUE(same_bits(rank.parameters, seen[0].parameters));
    }
    EXPECT_LE(relative_difference(seen[0].parameters, learned_alone(course, seen[0].learned)), 1e-9);
    if (Value(seen[0].log, ElementsAre(HasSubstr("instead of 1 B caps")))) break;
  }
  if (course.disturbance != Disturbance::kNone) {
    EXPECT_EQ(seen[0].disturbed, kAllPhases);
  }
  int switches = 0;
  for (size_t i = 2; i < seen[0].plans.size(); ++i) switches += seen[0].plans[i] != seen[0].plans[i - 1] ? 1 : 0;
  EXPECT_GE(switches, 6);
  EXPECT_LT(seen[0].plans.back().buckets.size(), seen[0].plans.front().buckets.size());
  EXPECT_THAT(seen[0].log, ElementsAre(AllOf(HasSubstr("firkin: "), HasSubstr("instead of 1 B caps"), HasSubstr("95 % interval"))));
  for (size_t rank = 1; rank < seen.size(); ++rank) EXPECT_THAT(seen[rank].log, IsEmpty());
  EXPECT_EQ(seen[0].awaited_bytes > 0, course.strategy == std::string("ordered"));
}

// Each disturbance once, under either strategy and on either number of ranks.
INSTANTIATE_TEST_SUITE_P(Disturbances, AutomaticCourse,
                         Values(Course{.ranks = 3, .model = "tied"},
                                Course{.disturbance = Disturbance::kThrowsInBackward, .ranks = 3, .finish_with_backward = false},
                                Course{.disturbance = Disturbance::kThrowsInForward}, Course{.disturbance = Disturbance::kSlowRank},
                                Course{.disturbance = Disturbance::kInPlace, .model = "convolutional"},
                                Course{.disturbance = Disturbance::kJoin, .model = "transformer", .strategy = "ordered"},
                                Course{.disturbance = Disturbance::kNoSync, .ranks = 3, .model = "transformer", .strategy = "ordered"}));
INSTANTIATE_TEST_SUITE_P(Full, AutomaticCourse,
                         Values(Course{}, Course{.disturbance = Disturbance::kThrowsInBackward},
                                Course{.disturbance = Disturbance::kNoSync},
                                Course{.disturbance = Disturbance::kNoSync, .ranks = 3, .finish_with_backward = false},
                                Course{.disturbance = Disturbance::kJoin}, Course{.disturbance = Disturbance::kJoin, .ranks = 3},
                                Course{.model = "transformer", .strategy = "ordered"},
                                Course{.disturbance = Disturbance::kThrowsInBackward, .model = "transformer", .strategy = "ordered"}));

// In one process, as without automatic buckets.
TEST(AutomaticBuckets, OfOneRankAreSettledFromTheStart) {
  run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    DataParallel ddp(*net, group, bad_start(quick()));
    EXPECT_EQ(ddp.stats().automatic, AutomaticPhase::kSettled);
    net->forward(at::ones({1, 2})).sum().backward();
    EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({2, 2})));
  });
}

// A thread of the backend may let go of what it has sent a moment after it has said so.
bool is_soon_gone(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
  for (int i = 0; i < 3000 && !storage.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return storage.expired();
}

TEST(AutomaticBuckets, OldBucketsAreGoneBeforeNewOnesAreMade) {
  run_linked_ranks(2, kLink, [](const ProcessGroup& group) {
    const TestModel model = make_test_model("mlp", at::kDouble);
    DataParallel ddp(*model.module, group, bad_start(quick()));
    int switches = 0;
    for (int step = 0; *ddp.stats().automatic != AutomaticPhase::kSettled; ++step) {
      ASSERT_LT(step, kMostSteps);
      const BucketPlan before = ddp.plan();
      model.loss(step, 0, kGlobalBatch).backward();
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> old;
      for (const at::Tensor& parameter : model.module->parameters()) old.push_back(parameter.grad().storage().getWeakStorageImpl());
      model.module->zero_grad();
      if (ddp.plan() == before || step == 0) continue;
      ++switches;
      for (const auto& storage : old) EXPECT_TRUE(is_soon_gone(storage)) << "after step " << step;
    }
    EXPECT_GE(switches, 6);
  });
}

TEST(AutomaticBuckets, WithoutTheTimeToMeasureTheCapStaysAndTheLogSaysWhy) {
  std::vector<std::string> log;
  run_linked_ranks(2, kLink, [&](const ProcessGroup& group) {
    const TestModel model = make_test_model("mlp", at::kDouble);
    AutomaticBuckets buckets = quick(&log);
    buckets.budget_s = 1e-6;
    DataParallel ddp(*model.module, group, bad_start(buckets));
    for (int step = 0; step < 10; ++step) {
      model.module->zero_grad();
      model.loss(step, 0, kGlobalBatch).backward();
    }
    EXPECT_EQ(ddp.stats().automatic, AutomaticPhase::kSettled);
    EXPECT_EQ(ddp.plan().buckets.size(), model.module->parameters().size());
  });
  EXPECT_THAT(log, ElementsAre(AllOf(HasSubstr("keeps 1 B caps"), HasSubstr("is too short to measure"))));
}

TEST(AutomaticBuckets, AreRefusedWhereTheyCannotBe) {
  run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    const auto refuses = [&](const std::string& what, const std::function<void(DataParallelOptions&)>& change) {
      DataParallelOptions options = bad_start(quick());
      change(options);
      EXPECT_THAT(message_of<InputError>([&] { DataParallel ddp(*net, group, options); }), HasSubstr(what));
    };
    for (const char* strategy : {"none", "naive", "flat", "overlap", "planned", "sharded"}) {
      refuses(std::string("strategy ") + strategy + "; expected bucketed or ordered",
              [&](auto& o) { o.strategy = find_strategy(strategy); });
    }
    refuses("automatic buckets and a plan are both set", [](auto& o) { o.plan = BucketPlan{{{0, 2}}, {}}; });
    refuses("budget_s is 0;", [](auto& o) { o.buckets->budget_s = 0; });
    refuses("profile_steps is 2;", [](auto& o) { o.buckets->profile_steps = 2; });
    refuses("trial_pairs is 5;", [](auto& o) { o.buckets->trial_pairs = 5; });
    refuses("trial_steps is 1;", [](auto& o) { o.buckets->trial_steps = 1; });
  });
}

}  // namespace
}  // namespace firkin
